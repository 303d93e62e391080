"""Functions that call themselves, by a global name, as a method, or jitted."""

import pytest

from wide_compiler.xcs import Config, jit
from xcs import oracle

LOG = []


def fib(k):
    return k if k < 2 else fib(k - 1) + fib(k - 2)


def gcd(a, b):
    return a if b == 0 else gcd(b, a % b)


def collatz(n):
    return 0 if n == 1 else 1 + collatz(n // 2 if n % 2 == 0 else 3 * n + 1)


def power(x, n):
    return 1.0 if n == 0 else x * power(x, n - 1)


def depth(x):
    return 1 + max([depth(y) for y in x], default=0) if isinstance(x, list) else 1


def forever(n):
    return forever(n + 1)


def noted(n):
    if n == 0:
        LOG.append(1)
        return 0
    return noted(n - 1)


class Stairs:
    def down(self, n):
        return n if n <= 0 else self.down(n - 2)


STAIRS = Stairs()


@jit
def factorials(ns):
    return [1 if n == 0 else n * sum(factorials([n - 1])) for n in ns]


CASES = {
    "fib": (lambda xs: [fib(x) for x in xs], list(range(8))),
    "gcd": (lambda xs: [gcd(a, b) for a, b in xs], [(7 * i, 3 * i + 1) for i in range(20)]),
    "power": (lambda xs: [power(x, 5) for x in xs], [0.5 * i for i in range(30)]),
    "collatz": (lambda xs: [collatz(x) for x in xs], list(range(1, 40))),
    "depth": (lambda xs: [depth(x) for x in xs], [[1, [2]], [[[3]]], [], [[1], [2, [3]]]]),
    "forever": (lambda xs: [forever(x) for x in xs], [1, 2, 3]),
    "noted": (lambda xs: [noted(x) for x in xs], [1, 2, 3]),
    "method": (lambda xs: [STAIRS.down(x) for x in xs], [5, 6, 7, 8]),
}


def compared(run, fast, items):
    for _ in range(3):
        seen = []
        for function in (run, fast):
            LOG.clear()
            found = oracle.observe(function, (items,))
            found.world = list(LOG)
            seen.append(found)
        oracle.compare(*seen, rtol=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_recursive_functions(name):
    run, items = CASES[name]
    fast = jit(run, config=Config(measure=False))
    compared(run, fast, items)
    assert next(iter(fast.stats().values())) == {"plain": 3}


def test_a_jitted_function_that_calls_itself():
    for _ in range(3):
        assert factorials(list(range(8))) == [1, 1, 2, 6, 24, 120, 720, 5040]
