"""How often a site is looked at, and that every call is counted."""

import time

import numpy as np

from wide_compiler.xcs import Config, jit, timing
from wide_compiler.xcs.schedule import LOOKS, ROUND, Schedule, yes


def test_a_pause_ends_by_calls_or_by_the_clock():
    schedule = Schedule(measure=True, never=False)
    schedule.pause(3)
    assert [schedule.ready() for _ in range(5)] == [False, False, False, True, True]
    assert schedule.enter() and schedule.skipped == 3
    schedule.leave()
    assert schedule.ready() and schedule.skipped == 3


def test_the_clock_is_read_once_in_a_round_of_calls(monkeypatch):
    seconds = [0.0]
    monkeypatch.setattr(timing, "now", lambda: seconds[0])
    schedule = Schedule(measure=True, never=False)
    schedule.pause(1_000_000, 0.25)
    for calls in (ROUND, 2 * ROUND, 4 * ROUND):  # rounds that take no time become longer
        assert [schedule.ready() for _ in range(calls + 1)] == [False] * calls + [True]
        assert not schedule.enter()  # not yet
    assert schedule.skipped == 7 * ROUND + 3
    seconds[0] = 0.1
    assert [schedule.ready() for _ in range(8 * ROUND + 1)][-1] and not schedule.enter()
    assert [schedule.ready() for _ in range(ROUND + 1)] == [False] * ROUND + [True]  # that one took long
    seconds[0] = 0.3
    assert schedule.enter()


def test_a_site_that_calls_itself_is_not_looked_at_meanwhile():
    schedule = Schedule(measure=True, never=False)
    assert schedule.ready() and schedule.enter()
    assert not schedule.ready() and not schedule.ready()
    schedule.leave()
    assert schedule.ready() and schedule.skipped == 2


def test_looks_are_paid_from_a_share_of_the_loop_s_time():
    schedule = Schedule(measure=True, never=False)
    schedule.enter()
    schedule.rest(1e-6, 1e-3)  # a look of 1 us beside a loop of 1 ms: nothing to save
    assert schedule.ready is not yes or schedule.enter()
    schedule.leave()
    schedule.enter()
    schedule.rest(1e-4, 1e-4)
    skipped = next(i for i in range(100) if schedule.ready())
    assert 0.5 / LOOKS <= skipped <= 1.5 / LOOKS


def test_larger_calls_after_small_ones_are_looked_at_soon():
    """Small ones are not worth a look at each; the clock sees to it that large ones are."""

    def run(rows):
        return [np.sin(row).sum() for row in rows]

    fast = jit(run)
    rows = [np.linspace(i, i + 1.0, 64) for i in range(2000)]
    for _ in range(60):
        fast(rows[:8])
    began = time.perf_counter()
    while time.perf_counter() - began < 10.0 and not any("numpy lanes" in c for c in fast.stats().values()):
        fast(rows)
    assert any("numpy lanes" in counts for counts in fast.stats().values())


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
