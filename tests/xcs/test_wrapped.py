"""Functions above and below `jit`: decorators around a jitted helper, and defaults it is given later.

Beside each program that must run as written stands one much like it that does take a fast path.
"""

import functools

import numpy as np
import pytest

from wide_compiler.xcs import Config, XcsWarning, jit
from xcs import oracle

NOW = Config(measure=False)
ROWS = [np.linspace(0.1 * i, 1.0 + i, 4) for i in range(9)]
SEEN = []


def taken(fast, rung="numpy lanes"):
    return sum(counts.get(rung, 0) for counts in fast.stats().values())


def compared(plain, fast, items=None):
    items = ROWS if items is None else items
    assert oracle.same(plain(items), fast(items), rtol=1e-9)


def clamped(function):
    @functools.wraps(function)
    def inner(x):
        return np.minimum(function(x), 5.0)

    return inner


def counted(function):
    @functools.wraps(function)
    def inner(x):
        SEEN.append(1)
        return function(x)

    return inner


@jit
def squared(x):
    return (x * x).sum()


@pytest.mark.parametrize("called_before", [False, True])
def test_a_decorator_above_jit_is_called(called_before):
    helper = clamped(squared)
    if called_before:
        helper(ROWS[0])

    def run(xs):
        return [helper(x) for x in xs]

    fast = jit(run, config=NOW)
    compared(run, fast)
    assert taken(fast) == 1
    assert max(fast(ROWS)) == 5.0


def test_a_decorator_above_jit_that_counts():
    helper = counted(squared)
    helper(ROWS[0])
    fast = jit(lambda xs: [helper(x) for x in xs], config=NOW)
    SEEN.clear()
    fast(ROWS)
    assert len(SEEN) == len(ROWS) and "side effect" in str(fast.explain())


def test_a_jitted_function_that_was_given_other_code():
    @jit
    def helper(x):
        return sum([y * 2.0 for y in (x,)])

    def other(x):
        return x * 3.0 + (helper is None)

    helper(ROWS[0])
    helper.__code__ = other.__code__  # which has one free name as well

    def run(xs):
        return [helper(x) for x in xs]

    fast = jit(run, config=NOW)
    compared(run, fast)
    assert taken(fast) == 1


def test_defaults_that_a_jitted_helper_was_given_later():
    @jit
    def helper(x, k=2.0, *, m=1.0):
        return x * k + m

    helper(ROWS[0])

    def run(xs):
        return [helper(x) for x in xs]

    fast = jit(run, config=NOW)
    for k, m in ((2.0, 1.0), (3.0, 1.0), (3.0, 5.0), (4.0, 6.0)):
        helper.__defaults__ = (k,)
        helper.__kwdefaults__ = {"m": m}
        compared(run, fast)
    helper.__kwdefaults__["m"] = 7.0
    compared(run, fast)
    assert taken(fast) == 5


def test_defaults_of_a_function_without_text(tmp_path, monkeypatch):
    path = tmp_path / "changing_on_disk.py"
    path.write_text("def scaled(xs, k=2.0):\n    return [x * k for x in xs]\n")
    monkeypatch.syspath_prepend(tmp_path)
    import changing_on_disk

    path.write_text("def scaled(xs, k=2.0):\n    return [x * k * 7.0 for x in xs]\n")
    with pytest.warns(XcsWarning, match="source code"):
        fast = jit(changing_on_disk.scaled)
    fast.__defaults__ = (3.0,)
    assert fast([1.0]) == [3.0]


def test_defaults_belong_to_the_last_parameters():
    def helper(x, k=2.0):
        return x * k

    def run(xs):
        return [helper(x) for x in xs]

    fast = jit(run, config=NOW)
    for defaults in ((2.0,), (2.0, 3.0), (4.0,)):
        helper.__defaults__ = defaults
        for _ in range(3):  # the steps of the first are kept for the next ones
            compared(run, fast)
    assert taken(fast) == 9
    helper.__defaults__ = None
    with pytest.raises(TypeError, match="missing 1 required"):
        fast(ROWS)
