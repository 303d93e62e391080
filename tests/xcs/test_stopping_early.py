"""`any` and `all` stop at the first item that decides: all at once must not cost more than those few."""

import gc
import weakref

import numpy as np
import pytest

from wide_compiler.xcs import Config, jit, schedule
from wide_compiler.xcs.call import counted
from wide_compiler.xcs.costs import Costs

ITEMS = 1000
ROWS = [np.random.default_rng(i).normal(size=16) for i in range(ITEMS)]


def some(xs, limit):
    return any(np.tanh(x * 0.5 + 0.25).sum() > limit for x in xs)


def every(xs, limit):
    return all(np.tanh(x * 0.5 + 0.25).sum() < limit for x in xs)


def some_of_few(xs, limit):
    return any(np.tanh(x * 0.5 + 0.25).sum() > limit for x in xs if x[0] < 1e12)


def some_of_pairs(xs, limit):
    return any(np.tanh(x * 0.5 + i * 0.0).sum() > limit for i, x in enumerate(xs))


PLAINS = [some, every, some_of_few, some_of_pairs]


def decided_at(position):
    """Rows of which the one at this position decides, and none before it."""
    found = [row - 100.0 for row in ROWS]
    if position is not None:
        found[position] = np.full(16, 1e9)
        found[position + 1 :] = ROWS[position + 1 :]
    return found


def calls(fast, plain, position, most, enough=lambda fast: False):
    xs = decided_at(position)
    wanted = plain(xs, 15.9)
    for _ in range(most):
        assert fast(xs, 15.9) is wanted
        if enough(fast):
            return


def taken(fast):
    return sum(counts.get("numpy lanes", 0) for counts in fast.stats().values())


@pytest.mark.parametrize("plain", PLAINS)
def test_what_the_first_item_decides_is_never_run_as_a_whole(plain):
    fast = jit(plain)
    calls(fast, plain, 0, 200)
    assert taken(fast) == 0
    assert sum(counts["plain"] for counts in fast.stats().values()) == 200
    assert sum(site.schedule.skipped for site in fast.__xcs__.sites) > 0  # nor looked at each time


@pytest.mark.parametrize("plain", PLAINS)
def test_what_an_early_item_decides_is_left_to_the_plain_loop(plain):
    fast = jit(plain)
    calls(fast, plain, 10, 2000)
    assert taken(fast) <= 12


@pytest.mark.parametrize("position", [None, ITEMS - 50])
@pytest.mark.parametrize("plain", PLAINS)
def test_where_most_items_run_all_are_run_at_once(plain, position):
    fast = jit(plain)
    calls(fast, plain, position, 400, lambda fast: taken(fast) >= 20)
    assert taken(fast) >= 20


def test_what_has_stopped_early_may_run_on_later(monkeypatch):
    pause = schedule.Schedule.pause
    monkeypatch.setattr(
        schedule.Schedule, "pause", lambda self, calls, *rest: pause(self, min(calls, 20), *rest)
    )
    fast = jit(some)
    calls(fast, some, 0, 50)
    assert taken(fast) == 0
    calls(fast, some, None, 2000, lambda fast: taken(fast) >= 5)
    assert taken(fast) >= 5
    before = taken(fast)
    calls(fast, some, 0, 2000)
    assert taken(fast) <= before + 20


@pytest.mark.parametrize("config", [Config(), Config(measure=False)])
def test_nothing_of_a_call_is_kept(config):
    class Row:
        def __init__(self, value):
            self.value = value

    def run(xs):
        return any(x.value > 2.0 for x in xs)

    fast = jit(run, config=config)
    xs = [Row(float(i)) for i in range(20)]
    assert fast(xs)
    gone = weakref.ref(xs[15])
    del xs
    gc.collect()
    assert gone() is None


def test_how_far_a_plain_loop_came_is_known():
    fast = jit(some)
    calls(fast, some, 99, 1)
    (site,) = fast.__xcs__.sites
    assert site.first.share == pytest.approx(0.1)
    values = counted([0, 0, 1, 0], costs := Costs())
    assert any(values)
    del values
    assert costs.share == pytest.approx(0.75)


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
