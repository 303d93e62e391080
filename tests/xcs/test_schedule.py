"""How often a site is looked at, and that every call is counted."""

import numpy as np

from wide_compiler.xcs import Config, jit
from wide_compiler.xcs.costs import LOOKS, MOST, Schedule, yes


def test_a_pause_is_a_number_of_calls():
    schedule = Schedule(measure=True, never=False)
    schedule.pause(3)
    assert [schedule.ready() for _ in range(5)] == [False, False, False, True, True]
    schedule.enter()
    assert schedule.skipped == 3
    schedule.leave()
    assert schedule.ready() and schedule.skipped == 3


def test_a_site_that_calls_itself_is_not_looked_at_meanwhile():
    schedule = Schedule(measure=True, never=False)
    assert schedule.ready()
    schedule.enter()
    assert not schedule.ready() and not schedule.ready()
    schedule.leave()
    assert schedule.ready() and schedule.skipped == 2


def test_looks_are_paid_from_a_share_of_the_loop_s_time():
    schedule = Schedule(measure=True, never=False)
    schedule.enter()
    schedule.rest(1e-6, 1e-3)  # a look of 1 us beside a loop of 1 ms: nothing to save
    assert schedule.ready is yes
    schedule.enter()
    schedule.rest(1e-4, 1e-4)
    skipped = next(i for i in range(100) if schedule.ready())
    assert 0.5 / LOOKS <= skipped <= 1.5 / LOOKS
    for _ in range(30):  # of which nothing comes: ever more rarely, but never for good
        schedule.enter()
        schedule.rest(1e-4, 1e-4)
    skipped = next(i for i in range(10_000) if schedule.ready())
    assert 8 / LOOKS <= skipped <= MOST


def test_larger_calls_after_small_ones_are_looked_at_soon():

    def run(rows):
        return [np.sin(row).sum() for row in rows]

    fast = jit(run)
    rows = [np.linspace(i, i + 1.0, 64) for i in range(2000)]
    for _ in range(60):
        fast(rows[:8])
    for _ in range(MOST):
        fast(rows)
        if any("numpy lanes" in counts for counts in fast.stats().values()):
            return
    raise AssertionError(str(fast.explain()))


def plain_loops(xs):
    print(end="")
    return [print(end="") for x in xs]


def short(xs):
    return [x + 1 for x in xs]


def test_every_call_is_counted():
    for plain, xs in ((plain_loops, [1, 2]), (short, [1, 2]), (short, []), (short, [1]), (short, {1, 2})):
        fast = jit(plain)
        for _ in range(300):
            fast(xs)
        assert list(fast.stats().values()) == [{"plain": 300}]
        assert "not run" not in str(fast.explain())


def test_places_with_one_text_are_counted_apart():
    @jit(config=Config(measure=False))
    def run(xs):
        return max(x + 1 for x in xs), list(x + 1 for x in xs), sorted(x + 1 for x in xs)  # noqa: C400

    run([1, 2])
    assert len(run.stats()) == 3 and all(sum(c.values()) == 1 for c in run.stats().values())
