"""Loops over numbers, strings and other plain values."""

import hashlib
import math

from ._table import pattern


def floats(n=24):
    return ([0.25 * i - 2.0 for i in range(n)],)


def ints(n=24):
    return (list(range(-3, n - 3)),)


def huge(n=24):
    return ([2**61 + i for i in range(n)],)


def texts(n=24):
    return ([f"line {i} of text" for i in range(n)],)


def zero_inside(n=24):
    return ([float(i - 5) for i in range(n)],)


def pairs(n=24):
    return ([(i, 0.5 * i) for i in range(n)],)


def nested(n=24):
    return ([[1.0 * i, 2.0 * i] for i in range(n)],)


def table(n=24):
    return ({f"k{i}": float(i) for i in range(n)},)


@pattern("numpy lanes", floats)
def polynomial(xs):
    """A polynomial of floats."""
    return [3.0 * x * x + 2.0 * x + 1.0 for x in xs]


@pattern("numpy lanes", floats)
def math_functions(xs):
    """Functions of math."""
    return [math.sqrt(x * x + 1.0) + math.fabs(x) for x in xs]


@pattern("numpy lanes", ints)
def integer_arithmetic(xs):
    """Integers, exactly."""
    return [(7 * x + 3) % 11 for x in xs]


@pattern("plain", huge)
def large_integers(xs):
    """Integers beyond 64 bits."""
    return [x * x for x in xs]


@pattern("numpy lanes", lambda n=24: (n,))
def over_a_range(n):
    """A comprehension over a range."""
    return [i * i + 1 for i in range(n)]


@pattern("numpy lanes", floats)
def set_comprehension(xs):
    """A set comprehension."""
    return {x * 2.0 for x in xs}


@pattern("numpy lanes", ints)
def dict_comprehension(xs):
    """A dict comprehension."""
    return {x: x * x for x in xs}


@pattern("numpy lanes", table)
def dict_values(d):
    """Over the values of a dict."""
    return [v * 2.0 for v in d.values()]


@pattern("numpy lanes", ints)
def filtered(xs):
    """A test in the comprehension."""
    return [x + 1 for x in xs if x % 2 == 0]


@pattern("numpy lanes", floats)
def conditional_value(xs):
    """A conditional expression."""
    return [x if x > 0 else -x for x in xs]


@pattern("numpy lanes", pairs)
def unpacked_pairs(ps):
    """Tuples, unpacked by the loop."""
    return [a + 2 * b for a, b in ps]


@pattern("numpy lanes", lambda n=6: (list(range(n)), [0.5, 1.5, 2.5]))
def two_loops(xs, ys):
    """Two loops in one comprehension."""
    return [x * y for x in xs for y in ys]


@pattern("numpy lanes", floats)
def summed(xs):
    """sum of a generator."""
    return sum(x * x for x in xs)


@pattern("numpy lanes", floats)
def largest(xs):
    """max of a generator."""
    return max(x * x - x for x in xs)


@pattern("plain", floats)
def any_of(xs):
    """any, which stops early."""
    return any(x > 1.0 for x in xs), all(x > -100.0 for x in xs)


@pattern("numpy lanes", floats)
def accumulated(xs):
    """Accumulation in a loop, added in order."""
    total = 0.0
    for x in xs:
        total += x * x
    return total


@pattern("numpy lanes", ints)
def filled_dict(xs):
    """A loop that fills a dict."""
    squares = {}
    for x in xs:
        squares[x] = x * x
    return squares


@pattern("numpy lanes", ints)
def split_in_two(xs):
    """A loop that fills two lists."""
    even, odd = [], []
    small = []
    large = []
    for x in xs:
        if x > 4:
            large.append(x * 2)
        else:
            small.append(x)
    return even, odd, small, large


@pattern("numpy lanes", floats)
def list_of_generator(xs):
    """list and tuple of generators."""
    return list(x + 1.0 for x in xs), tuple(x - 1.0 for x in xs)  # noqa: C400


@pattern("plain", zero_inside)
def exception_in_the_middle(xs):
    """An exception in the middle."""
    out = []
    for x in xs:
        out.append(1.0 / x)
    return out


def kept_prefix(xs):
    """An exception, with what came before it kept."""
    out = []
    try:
        for x in xs:
            out.append(1.0 / x)
    except ZeroDivisionError as error:
        return out, str(error)
    return out, ""


pattern("plain", zero_inside)(kept_prefix)


def digest(text):
    value = text.encode()
    for _ in range(3):
        value = hashlib.sha256(value).digest()
    return value.hex()


@pattern("plain", texts)
def hashed(ts):
    """Pure work on strings, too little to send elsewhere."""
    return [digest(t) for t in ts]


@pattern("plain", nested)
def nested_comprehension(rows):
    """A comprehension inside a comprehension."""
    return [[v + 1.0 for v in row] for row in rows]


@pattern("plain", texts)
def joined(ts):
    """Strings, joined."""
    return ", ".join(t.upper() for t in ts)


@pattern("plain", ints)
def carried(xs):
    """A value carried from one round to the next."""
    out = []
    last = 0
    for x in xs:
        last = last * 2 + x
        out.append(last)
    return out


@pattern("plain", ints)
def early_exit(xs):
    """A loop that breaks off early."""
    out = []
    for x in xs:
        if x > 5:
            break
        out.append(x)
    return out


def fib(k):
    return k if k < 2 else fib(k - 1) + fib(k - 2)


@pattern("plain", lambda n=8: (list(range(min(n, 10))),))
def recursive_helper(ns):
    """A recursive function."""
    return [fib(k) for k in ns]


def flatten(tree):
    """A recursive function that is jitted itself."""
    return [leaf for branch in tree for leaf in (flatten(branch) if isinstance(branch, list) else [branch])]


pattern("plain", lambda n=3: ([1, [2, [3, [4]]], 5],))(flatten)
