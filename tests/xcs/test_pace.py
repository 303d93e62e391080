"""How often a site is looked at, and that every call is counted."""

import time

import numpy as np

from wide_compiler.xcs import Config, jit
from wide_compiler.xcs.pace import Pace


def test_a_pause_ends_by_calls_or_by_the_clock():
    pace = Pace(measure=True, never=False)
    pace.pause(3)
    assert [pace.ready() for _ in range(5)] == [False, False, False, True, True]
    pace.enter()
    assert pace.skipped == 3 and pace.entered() == 3 and pace.entered() == 0
    pace.pause(1_000_000, 0.02)
    assert not pace.ready() and pace.skipped == 4
    time.sleep(0.03)
    assert pace.ready()
    pace.enter()
    assert pace.skipped == 4 and pace.entered() == 1


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
