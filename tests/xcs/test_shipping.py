"""What is sent to other processes is what is here now; what cannot be the same there is not sent."""

import base64
import dataclasses
import functools
import importlib
import json
import math
import operator
import os.path
import pickle
import posixpath
import re
import string
import sys

import numpy as np
import pytest

from wide_compiler.xcs import jit, module, oracle
from wide_compiler.xcs.parallel import processes, receiving, shipping

ITEMS = list(range(1, 25))
CONSTANT = [1, 2, 3]
DEEP = [[[[[[[[[1]]]]]]]]]
BIG = 10**30
FACTOR = 3


pytestmark = pytest.mark.usefixtures("eager_processes")


def runs(function):
    """How often; the clock may choose the plain loop once both are known, from the third call on."""
    return next(iter(function.stats().values())).get("processes", 0)


def compared(fast, plain, items=ITEMS, calls=1):
    for _ in range(calls):
        assert oracle.same(fast(items), plain(items))


@pytest.fixture
def settings(tmp_path, monkeypatch):
    """A module of the user's, as it is on disk."""
    (tmp_path / "settings_on_disk.py").write_text(
        "SCALE = 1\n"
        "TABLE = [1, 2]\n"
        "class Scaled:\n"
        "    factor = 1\n"
        "    def scaled(self, k):\n"
        "        return k * self.factor\n"
        "    def joined(self, k):\n"
        "        return str(k) if k % 2 else ''.join({'a' + str(k), 'bb', 'cc', 'dd'})\n"
        "    def longest(self, k):\n"
        "        return str(k) if k % 2 else max(['a' + str(k), 'bb', 'cc', 'dd'])\n"
        "def doubled(k):\n"
        "    return k * 2 * SCALE\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("settings_on_disk")
    del sys.modules["settings_on_disk"]


def test_modules_are_sent_as_they_are_now(settings):
    def read(items):
        return [k * settings.SCALE for k in items]

    def called(items):
        return [settings.doubled(k) + settings.TABLE[0] for k in items]

    for plain in (read, called):
        fast = jit(plain)
        for settings.SCALE, settings.TABLE[0] in ((1, 1), (10, 5), (7, 3)):
            compared(fast, plain)
        assert runs(fast) >= 2


def test_a_function_of_a_module_that_was_replaced(settings):
    def run(items):
        return [settings.doubled(k) for k in items]

    fast = jit(run)
    compared(fast, run)
    settings.doubled = lambda k: k * 3
    compared(fast, run, calls=2)
    assert runs(fast) >= 2


def test_classes_are_sent_as_they_are_now(settings):
    held = settings.Scaled()

    def run(items):
        return [held.scaled(k) for k in items]

    fast = jit(run)
    for settings.Scaled.factor in (1, 10, 4):
        compared(fast, run)
    held.factor = 6
    compared(fast, run)
    settings.Scaled.scaled = lambda self, k: -k
    compared(fast, run)
    assert runs(fast) >= 2


def test_methods_are_looked_through(settings):
    words = settings.Scaled()

    def joined(items):
        return [words.joined(k) for k in items]

    def longest(items):
        return [words.longest(k) for k in items]

    fast = jit(joined)
    compared(fast, joined, calls=3)
    assert runs(fast) == 0
    fast = jit(longest)
    compared(fast, longest, calls=3)
    assert runs(fast) >= 2


class Base:
    __slots__ = ("weight",)
    factor = 2

    def __init__(self, weight):
        self.weight = weight

    @property
    def double(self):
        return self.weight * 2

    @staticmethod
    def more(k):
        return k + 1

    def __call__(self, k):
        return k * self.factor + self.double + self.more(k)

    def unused(self):
        return {"a", "b"}


class Derived(Base):
    factor = 5


@module
class Module:
    weight: int

    def __call__(self, k):
        return k * self.weight


@dataclasses.dataclass
class Data:
    left: int
    right: int = 2

    def total(self):
        return self.left + self.right


def test_objects_of_all_kinds():
    base, derived, weighted, data = Base(3), Derived(4), Module(7), Data(1)
    method = derived.__call__
    bodies = [
        lambda items: [base(k) for k in items],
        lambda items: [derived(k) for k in items],
        lambda items: [weighted(k) for k in items],
        lambda items: [data.total() + k for k in items],
        lambda items: [method(k) for k in items],
        lambda items: [Data(k).total() for k in items],
    ]
    sent = []
    for body in bodies:
        fast = jit(body)
        compared(fast, body, calls=2)
        sent.append(runs(fast))
    assert sent[:5] == [2] * 5


def test_objects_that_are_more_than_they_hold_stay_here():
    class Lookup:
        def __getattr__(self, name):
            return name

    class Counted(int):
        pass

    for value in (Lookup(), Counted(3), object(), math.nan, [complex("nan")], {1}, math):
        with pytest.raises(shipping.NotSendable):
            shipping.packed(value)


def test_a_function_of_a_library_that_was_replaced(monkeypatch):
    real = math.sqrt

    def run(items):
        return [str(math.sqrt(k)) for k in items]

    @functools.wraps(real)
    def other(k):
        return 0.0 if k == 7 else real(k)

    fast = jit(run)
    compared(fast, run)
    assert runs(fast) == 1
    monkeypatch.setattr(math, "sqrt", other)
    compared(fast, run, calls=2)
    monkeypatch.undo()


def test_a_builtin_that_was_replaced(monkeypatch):
    def run(items):
        return [oct(k) + "!" for k in items]

    fast = jit(run)
    compared(fast, run)
    monkeypatch.setattr("builtins.oct", lambda k: "x")
    plain, got = run(ITEMS), fast(ITEMS)
    monkeypatch.undo()
    assert plain == got
    assert got[0] == "x!"


@pytest.mark.parametrize(
    ("place", "name", "value"),
    [
        (json.encoder, "encode_basestring_ascii", lambda text: '"?"'),
        (json.JSONEncoder, "encode", lambda self, o: "patched"),
        (vars(json._default_encoder), "item_separator", " ; "),  # else undone on the object, not on its class
    ],
)
def test_what_a_function_of_a_library_calls_was_replaced(place, name, value, monkeypatch):
    def run(items):
        return [json.dumps([str(k), 1, "x"]) for k in items]

    fast = jit(run)
    compared(fast, run, calls=2)
    assert runs(fast) == 2
    change = monkeypatch.setitem if isinstance(place, dict) else monkeypatch.setattr
    change(place, name, value)
    compared(fast, run, calls=2)
    assert runs(fast) == 2
    monkeypatch.undo()


def constant(k):
    return CONSTANT


def default(k, held=CONSTANT):
    return held


def deep(k):
    return DEEP[0][0][0][0][0][0][0]


def through(k):
    return (constant(k), k)


def kept(k):
    return holder.held


class Holder:
    held = CONSTANT


holder = Holder()


@pytest.mark.parametrize("body", [constant, default, deep, through, kept])
def test_results_that_are_objects_of_this_process(body):
    def run(items):
        return [body(k) for k in items]

    fast = jit(run)
    for _ in range(3):
        for mine, other in zip(fast(ITEMS), run(ITEMS), strict=True):
            if isinstance(mine, tuple):
                mine, other = mine[0], other[0]
            assert mine is other
    assert runs(fast) == 0


def test_results_that_are_equal_to_objects_of_this_process():
    def run(items):
        return [CONSTANT * 2 for k in items]

    fast = jit(run)
    compared(fast, run, calls=3)
    assert runs(fast) >= 2


def test_the_same_object_is_asked_for_here():
    def not_a_number(items):
        return [x is np.nan for x in items]

    def big(items):
        return [k is BIG for k in items]

    for run, items in ((not_a_number, [1.0, np.nan, *map(float, ITEMS)]), (big, [BIG, *ITEMS])):
        fast = jit(run)
        compared(fast, run, items, calls=3)
        assert any(fast(items)) and runs(fast) == 0


def test_none_and_classes_are_the_same_anywhere():
    def run(items):
        return [(k is None, k is not True, type(k) is int, str(k) if k is not None else "") for k in items]

    fast = jit(run)
    compared(fast, run, calls=2)
    assert runs(fast) == 2


def test_a_nan_is_in_a_list_where_it_is_the_same_object():
    values = [1.0, math.nan]

    def found(items):
        return [str(x in values) for x in items]

    def least(items):
        return [min(x, 5.0) for x in items]

    items = [math.nan, *map(float, ITEMS)]
    fast = jit(found)
    for _ in range(3):
        assert fast(items) == found(items)
    assert fast(items)[0] == "True" and runs(fast) == 0
    values[1] = 2.0
    fast = jit(found)
    compared(fast, found, items[1:], calls=2)
    assert runs(fast) == 2
    assert (jit(least)(items) == items) == (least(items) == items)


def test_arrays_that_lie_otherwise_there_stay_here():
    def run(items):
        return [str(x.sum()) for x in items]

    table = np.arange(48.0).reshape(24, 2)
    for items, sent in ((list(table.T.copy()), 2), (list(table.T), 0)):
        fast = jit(run)
        compared(fast, run, items, calls=2)
        assert runs(fast) == sent


def even(k):
    return True if k == 0 else odd(k - 1)


def odd(k):
    return False if k == 0 else even(k - 1)


def scaled(k):
    return k * scaled.factor


scaled.factor = 2


def test_functions_that_name_each_other_and_have_attributes():
    def numbers(items):
        return [str(even(k)) for k in items]

    def attributes(items):
        return [str(scaled(k)) for k in items]

    fast = jit(numbers)
    compared(fast, numbers, calls=2)
    assert runs(fast) == 2
    fast = jit(attributes)
    for scaled.factor in (2, 3, 4):
        compared(fast, attributes)


def test_what_bodies_commonly_do_is_sent():
    def regular(items):
        return [re.sub("[0-9]+", "<n>", f"Item {k}") + str(k) for k in items]

    def texts(items):
        return [json.dumps({"a": k, "b": str(k)}) for k in items]

    def arrays(items):
        return [float(np.linalg.norm(np.ones(k)) + np.mean(np.arange(k)) + math.sqrt(k)) for k in items]

    def paths(items):
        return [os.path.join("a", string.capwords(str(k) + " word")) for k in items]

    def coded(items):
        return [base64.b64encode(str(k).encode()).decode() for k in items]

    def caught(items):
        return [parsed(str(k) + "]" * (k % 2)) for k in items]

    for run in (regular, texts, arrays, paths, coded, caught):
        fast = jit(run)
        compared(fast, run, calls=2)
        assert runs(fast) == 2, (run, fast.explain())


def parsed(text):
    try:
        return (json.loads(text), 1)
    except ValueError:
        return "none"


def test_all_known_functions_of_libraries_are_the_same_in_a_worker():
    from wide_compiler.xcs.proof import pure_numpy, pure_tables

    known = [f for f in (*pure_tables.FUNCTIONS, *pure_numpy.NUMPY_FUNCTIONS) if f not in shipping.SEEDED]

    def checked(functions):
        return shipping.packed((processes.process_state.current(), truth, None, [(functions, 1)]))

    answers = processes._by_workers([checked([function]) for function in known])
    refused = [f for f, answer in zip(known, answers, strict=True) if pickle.loads(answer) != [[True]]]
    assert refused == [] and posixpath.join in known


def truth(functions, k):
    return True


NAMED = "pi"
ask = hasattr


def asked_for(x):
    return math.floor(x) + getattr(math, NAMED, 0)


def caught(x):
    try:
        return math.floor(x) + operator.attrgetter(NAMED)(math)
    except AttributeError:
        return math.floor(x)


def asked_whether(x):
    return math.floor(x) + ask(math, NAMED)


def raised(x):
    return math.floor(x) + operator.attrgetter(NAMED)(math)


@pytest.mark.parametrize("body", [asked_for, caught, asked_whether, raised])
def test_what_is_not_named_is_not_taken_for_missing(body):
    """Of a module only what the code names is there; an answer without the rest would be another one."""
    payload = shipping.packed((processes.process_state.current(), body, None, [(1.5,)]))
    assert pickle.loads(receiving.run_chunk(payload)) is None
    assert body(1.5) != 1


def test_modules_are_read_as_fast_as_here_where_nobody_catches_an_error():
    held = {}
    for body in (raised, caught):
        payload = shipping.packed((processes.process_state.current(), body, None, [(1.5,)]))
        _, made, _, _ = receiving._Unpickler(payload, {}).load()
        held[body] = vars(made.__globals__["math"])
    assert "__getattr__" not in held[raised] and "__getattr__" in held[caught]
