"""Loops that stop early: `any` and `all` stay as written, and loops that raise are hardly looked at."""

import pytest

from wide_compiler.xcs import Config, jit


@pytest.mark.parametrize("config", [Config(), Config(measure=False)])
def test_what_stops_early_runs_as_written(config):
    seen = []

    def large(x):
        seen.append(x)
        return x > 2.0

    def some(xs):
        return any(large(x) for x in xs)

    fast, xs = jit(some, config=config), [float(i) for i in range(20)]
    for _ in range(50):
        assert fast(xs) and seen == [0.0, 1.0, 2.0, 3.0]
        seen.clear()
    assert list(fast.stats().values()) == [{"plain": 50}]
    assert "stop early" in str(fast.explain())


def test_a_plain_loop_comes_to_the_end_of_a_list_that_grows_meanwhile():
    xs = [1.0] * 8

    def growing(xs):
        return [xs.append(x + len(xs)) if len(xs) < 20 else x for x in xs]

    fast = jit(growing)
    assert len(fast(xs)) == 20 and len(xs) == 20


def inverses(xs):
    out = []
    for x in xs:
        out.append(1.0 / x)
    return out


def summed(xs):
    return sum(1.0 / x for x in xs)


@pytest.mark.parametrize("plain", [inverses, summed])
def test_loops_that_raise_early_are_hardly_looked_at(plain):
    """Looking costs as much as all items, the plain loop only as much as those before the error."""
    fast, xs = jit(plain), [float(12 - i) for i in range(2000)]
    for _ in range(300):
        with pytest.raises(ZeroDivisionError):
            fast(xs)
    assert sum(fast.__xcs__.sites[0].counts.values()) < 20
