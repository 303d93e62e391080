"""`list(map(f, xs))` and the like run as written, and `explain()` says what to write instead."""

import time

import numpy as np
import pytest

from wide_compiler.xcs import Config, jit
from xcs import oracle

NOW = Config(measure=False)
ROWS = [np.linspace(i, i + 1.0, 5) for i in range(40)]


def waits(x):
    time.sleep(0.001)
    return x


def length(row):
    return float(np.sqrt((row * row).sum()))


def stops(x):
    if x == 3:
        raise StopIteration(x)
    return x


def fails(x):
    if x == 3:
        raise KeyError(x)
    return x


class Scorer:
    def __init__(self):
        self.weights = np.arange(5.0)

    def score(self, row):
        return row @ self.weights


def listed(xs):
    return list(map(waits, xs))


def total(xs):
    return sum(map(length, xs))


def by_method(xs, scorer=Scorer()):  # noqa: B008
    return tuple(map(scorer.score, xs))


def handed_on(xs):
    ys = [x * 2.0 for x in xs]
    return list(map(length, ys))


def stopped(xs):
    return list(map(stops, xs))


def failed(xs):
    return list(map(fails, xs))


def failed_in_threads(xs):
    return list(map(waits_and_fails, xs))


def waits_and_fails(x):
    waits(x)
    return fails(x)


CASES = [
    (listed, list(range(16))),
    (total, ROWS),
    (by_method, ROWS),
    (handed_on, ROWS),
    (stopped, list(range(8))),
    (failed, list(range(8))),
    (failed_in_threads, list(range(8))),
]


@pytest.mark.parametrize(("plain", "given"), CASES, ids=[case[0].__name__ for case in CASES])
def test_equal(plain, given):
    fast = jit(plain, config=NOW)
    for _ in range(3):
        oracle.compare(oracle.observe(plain, (given,)), oracle.observe(fast, (given,)), rtol=1e-9)
    assert "map() is lazy; write [f(x) for x in xs]" in str(fast.explain())


def test_a_map_of_ones_own():
    def map(function, items):
        return [("mine", item) for item in items]

    def run(xs):
        return list(map(waits, xs))

    fast = jit(run, config=NOW)
    assert fast([1, 2]) == run([1, 2])


def unset(xs):
    if not xs:
        function = waits
    return list(map(function, xs))


def test_a_function_that_is_not_there():
    fast = jit(unset, config=NOW)
    for _ in range(2):
        oracle.compare(oracle.observe(unset, ([1, 2],)), oracle.observe(fast, ([1, 2],)))


def others(xs, ys):
    maps = map(waits, xs), list(map(pow, xs, ys)), list(map(lambda x: x + 1, xs))  # noqa: C417
    drained = list(x for x in iter(xs)), max((x for x in xs), key=lambda x: -x)  # noqa: C400
    while xs:
        xs = xs[1:]
    return list(maps[0]), maps[1:], drained


def test_every_loop_that_is_no_site_has_a_row():
    fast = jit(others)
    assert fast([1, 2], [3, 4]) == others([1, 2], [3, 4])
    said = str(fast.explain())
    for text in (
        "map(waits, xs)",
        "map(pow, xs, ys)",
        "map(lambda x: x + 1, xs)",
        "while xs:",
        "(x for x in xs)",
    ):
        assert text in said
    assert said.count("map() is lazy; write [f(x) for x in xs]") == 3


class Counted:
    def __init__(self):
        self.asked = 0

    @property
    def change(self):
        self.asked += 1
        return str.upper if self.asked % 2 else str.lower


def changed(counted, xs):
    return list(map(counted.change, xs)), counted.asked


def test_the_function_is_asked_for_once():
    for config in (NOW, Config()):
        fast, one, other = jit(changed, config=config), Counted(), Counted()
        for xs in (["Ab", "Cd"], [], ["Ef"]):
            assert fast(one, xs) == changed(other, xs)
