"""Shapes of functions: methods, closures, defaults, generators, names that change."""

import contextvars
import sys
import threading

from ._table import pattern
from .numbers import floats, ints

SCALE = 2.0
THIS = sys.modules[__name__]
NAME = contextvars.ContextVar("name", default=1.0)


def helper(x):
    return x + 1.0


class Model:
    factor = 3.0

    def __init__(self, offset):
        self.offset = offset

    @property
    def shift(self):
        return self.offset * 2.0

    def one(self, x):
        return self.factor * x + self.shift

    def many(self, xs):
        return [self.one(x) for x in xs]


class Counter:
    def __init__(self):
        self.n = 0

    def __call__(self, x):
        self.n += 1
        return x + self.n


class Sneaky(float):
    def __add__(self, other):
        raise ValueError("added")


@pattern("numpy lanes", lambda n=24: (Model(0.5), *floats(n)))
def method_calls(model, xs):
    """Methods, properties and class attributes."""
    return [model.one(x) for x in xs]


@pattern("numpy lanes", lambda n=24: (0.5, *floats(n)))
def closure_over_argument(shift, xs):
    """A function defined inside, over an argument."""

    def shifted(x):
        return x + shift

    return [shifted(x) for x in xs]


@pattern("numpy lanes", floats)
def reads_a_global(xs):
    """A global number."""
    return [x * SCALE for x in xs]


def patched(i):
    THIS.helper = [helper, lambda x: x - 1.0, helper][i]


ORIGINAL_HELPER = helper


@pattern(
    "numpy lanes",
    floats,
    between=lambda i: setattr(THIS, "helper", ORIGINAL_HELPER if i != 1 else (lambda x: x * 100.0)),
)
def patched_global(xs):
    """A global function replaced between calls."""
    return [helper(x) for x in xs]


def shadow(i):
    if i == 1:
        THIS.abs = lambda x: -1.0
    elif hasattr(THIS, "abs"):
        del THIS.abs


@pattern("numpy lanes", floats, between=shadow)
def shadowed_builtin(xs):
    """A builtin shadowed between calls."""
    return [abs(x) for x in xs]


@pattern(
    "numpy lanes",
    lambda n=24: (Model(0.5), *floats(n)),
    between=lambda i: setattr(Model, "factor", 3.0 + i),
)
def patched_class(model, xs):
    """A class attribute changed between calls."""
    return [model.one(x) for x in xs]


@pattern("plain", lambda n=24: (Counter(), *floats(n)))
def counting_object(counter, xs):
    """An object that counts its calls."""
    return [counter(x) for x in xs]


@pattern("plain", lambda n=24: ([Sneaky(i) for i in range(n)],))
def surprising_type(xs):
    """A number class with operators of its own."""
    return [x + 1.0 for x in xs]


@pattern("plain", lambda n=24: ([1, 2.0, "a", None] * (n // 4),))
def mixed_types(xs):
    """Items of several types."""
    return [str(x) for x in xs]


def remember(x, seen=[]):  # noqa: B006
    seen.append(x)
    return len(seen)


@pattern(
    "plain",
    floats,
    world=lambda: list(remember.__defaults__[0]),
    reset=lambda: remember.__defaults__[0].clear(),
)
def mutable_default(xs):
    """A default argument that grows."""
    return [remember(x) for x in xs]


def numbers_up_to(n):
    for i in range(n):
        yield float(i)


@pattern("plain", lambda n=24: (n,))
def over_a_generator(n):
    """A comprehension over a generator."""
    return [x * 2.0 for x in numbers_up_to(n)]


@pattern("plain", ints)
def lambdas_over_the_variable(xs):
    """Lambdas that capture the loop variable."""
    return [f() for f in [lambda: x for x in xs]]  # noqa: B023


@pattern("plain", floats)
def walrus(xs):
    """An assignment inside the comprehension."""
    out = [last := x + 1.0 for x in xs]
    return out, last


@pattern("plain", floats)
def variable_used_afterwards(xs):
    """The loop variable used after the loop."""
    out = []
    for x in xs:
        out.append(x + 1.0)
    return out, x


@pattern("numpy lanes", floats)
def variable_reused(xs):
    """One variable in two loops."""
    first = []
    for x in xs:
        first.append(x + 1.0)
    second = []
    for x in xs:
        second.append(x * 2.0)
    return first, second


@pattern("plain", floats)
def reads_locals(xs):
    """A function that looks at its own locals."""
    out = [x + 1.0 for x in xs]
    return sorted(locals()), out


@pattern("plain", floats)
def growing_list_captured(xs):
    """A list that a closure sees grow."""
    out = []

    def count(x):
        return x + len(out)

    for x in xs:
        out.append(count(x))
    return out


@pattern("plain", lambda n=24: ([1.0] * n,))
def changes_what_it_loops_over(xs):
    """A loop that changes what it loops over."""
    out = []
    for x in xs:
        if len(xs) < 40:
            xs.append(x + 1.0)
        out.append(x)
    return out


@pattern("numpy lanes", floats)
def nested_loops(xs):
    """A loop inside the body."""
    out = []
    for x in xs:
        total = 0.0
        for k in range(3):
            total += x * k
        out.append(total)
    return out


@pattern("plain", lambda n=24: ([[float(i), 1.0] for i in range(n)],))
def aliased_results(rows):
    """Results that share a list with the arguments."""
    return [(row, row[0]) for row in rows]


@pattern("plain", floats)
def reads_a_context_variable(xs):
    """A context variable."""
    return [x + NAME.get() for x in xs]


@pattern("plain", floats)
def asks_for_its_thread(xs):
    """A function that asks which thread it is in."""
    return [threading.current_thread() is threading.main_thread() for x in xs]


@pattern("plain", lambda n=24: ([],))
def empty(xs):
    """Nothing to loop over."""
    return [x * 2 for x in xs], sum(x for x in xs), {x: x for x in xs}
