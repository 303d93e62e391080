"""How often a site is looked at, and that every call is counted."""

import numpy as np

from wide_compiler.xcs import Config, items, jit
from wide_compiler.xcs.costs import LOOKS, MOST, Schedule


def paused(schedule):
    return None in schedule.left


def test_a_pause_is_a_number_of_calls():
    schedule = Schedule(measure=True, never=False)
    schedule.pause(3)
    assert [paused(schedule) for _ in range(5)] == [True, True, True, False, False]
    schedule.enter()
    assert schedule.skipped == 3
    schedule.leave()
    assert not paused(schedule) and schedule.skipped == 3


def test_a_site_that_calls_itself_is_not_looked_at_meanwhile():
    schedule = Schedule(measure=True, never=False)
    assert not paused(schedule)
    schedule.enter()
    assert paused(schedule) and paused(schedule)
    schedule.leave()
    assert not paused(schedule) and schedule.skipped == 2


def test_looks_are_paid_from_a_share_of_the_loop_s_time():
    schedule = Schedule(measure=True, never=False)
    schedule.enter()
    schedule.rest(1e-6, 1e-3)  # a look of 1 us beside a loop of 1 ms: nothing to save
    assert not paused(schedule)
    schedule.enter()
    schedule.rest(1e-4, 1e-4)
    skipped = next(i for i in range(100) if not paused(schedule))
    assert 0.5 / LOOKS <= skipped <= 1.5 / LOOKS
    for _ in range(30):  # of which nothing comes: ever more rarely, but never for good
        schedule.enter()
        schedule.rest(1e-4, 1e-4)
    skipped = next(i for i in range(10_000) if not paused(schedule))
    assert 8 / LOOKS <= skipped <= MOST


def test_a_plain_loop_that_is_only_timed_again_is_no_reason_to_pause():
    schedule = Schedule(measure=True, never=False)
    for _ in range(3):
        schedule.enter()
        schedule.rest(1e-4, 1e-4)
    assert paused(schedule)
    schedule.enter()
    schedule.gained()
    schedule.leave()
    schedule.enter()
    schedule.rest(1e-4, 1e-4)
    assert not paused(schedule)


def test_items_are_not_looked_at_before_that_can_pay(monkeypatch):
    def run(pairs):
        return [a + b for a, b in pairs]

    seen = []
    own = items._unzipped
    monkeypatch.setattr(items, "_unzipped", lambda pairs, shape: seen.append(len(pairs)) or own(pairs, shape))
    fast = jit(run)
    for _ in range(300):
        fast([(1.0, 2.0)] * 1000)
    assert seen and set(seen) == {1}  # of 1000 short items, the first shows that no analysis pays


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


def test_empty_lists_are_not_looked_at_each_time(monkeypatch):
    looks, own = [], Schedule.enter
    monkeypatch.setattr(Schedule, "enter", lambda self: looks.append(1) or own(self))
    fast = jit(short)
    for _ in range(1000):
        fast([])
    assert 1 < len(looks) < 300


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
