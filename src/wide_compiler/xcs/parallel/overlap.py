"""Threads at a loop whose items may wait: how many at a time, and what they give."""

import statistics
from collections.abc import Sequence
from typing import Any

from ..independent import marked_in
from ..work import Failed, Work
from .threads import CHEAP, Overlap, crowded

FEWEST = 2
LONGER = 3.0  # the mean time of a call grows by this factor: there were too many at a time
UNEVEN = 5.0  # the longest call takes this many times the median
PATIENCE = 50  # times as long as a call took must loops have taken before as many are tried again
PART = 128  # items of a long loop that run in threads before it is asked whether they wait


class Level:
    """Halved where calls take much longer than they once did, and raised slowly again; each time that was
    too many, the next attempt comes later. A level at which a call took long (a server whose queue was full,
    say) is tried again once loops have taken fifty times as long since.

    Calls of one loop may differ by themselves, or because a server takes five at a time and lets the sixth
    wait. To tell, a lower level is tried once.
    """

    def __init__(self, most: int):
        self.most = self.now = most
        self.best: float | None = None  # the lowest mean time of a call
        self.calm = 0  # loops until a higher level is tried
        self.patience = 4
        # Level, mean time and longest call before a lower level was tried.
        self.doubted: tuple[int, float, float] | None = None
        self.may_doubt = True
        self.bad, self.damage = 0, 0.0  # a level that was too many, and the longest call at it
        self.spent = 0.0  # seconds of loops since

    def of(self, n: int) -> int:
        """For a loop of n calls."""
        return min(n, self.now)

    def too_many(self, n: int) -> None:
        self._halve(n)
        self.patience *= 2
        self.calm = self.patience

    def _halve(self, n: int) -> None:
        self.now = max(FEWEST, self.of(n) // 2)

    def learn(self, seconds: Sequence[float], n: int) -> None:
        """From the times of all calls of a loop."""
        mean, longest = sum(seconds) / len(seconds), max(seconds)
        self.spent += sum(seconds) / self.of(n)
        self.best = mean if self.best is None else min(mean, self.best * 1.02)
        if self.doubted is not None:
            (level, before, took), self.doubted = self.doubted, None
            if before > LONGER * mean:
                self.calm = self.patience
                self._was_bad(level, took)
            else:
                self.now = level  # calls differ by themselves
        elif n > FEWEST and mean > LONGER * self.best:
            self._was_bad(self.of(n), longest)
            self.too_many(n)
        elif self.may_doubt and self.of(n) > FEWEST and longest > UNEVEN * statistics.median(seconds):
            self.may_doubt, self.doubted = False, (self.of(n), mean, longest)
            self._halve(n)
        elif self.calm:
            self.calm -= 1
        elif self.now < self.most:
            higher = min(self.most, self.now + max(1, self.now // 8))
            if not self.bad or higher < self.bad or self.spent > PATIENCE * self.damage:
                self.now = higher

    def _was_bad(self, level: int, longest: float) -> None:
        self.bad, self.damage, self.spent = level, longest, 0.0


def overlapped(work: Work) -> list[Any]:
    """Run items in threads: those of a site that was seen to take long, or of one that is not measured."""
    config, n = work.site.config, work.items.n
    run = Overlap(work.one, n, config.max_workers)
    level = work.plan.memory.setdefault("level", Level(config.max_workers))
    if config.measure and n > 2 * PART:  # a long loop: do they still wait?
        run.up_to(PART, level.of(PART))
        if not run.errors and sum(run.seconds) < PART * CHEAP / 4:
            return _one_by_one(work, run)
    run.up_to(n, level.of(n))
    if run.errors:
        if not may_repeat(run.errors[min(run.errors)], work.plan):
            raise _failed(work, run, min(run.errors))
        level.too_many(n)
        return _one_by_one(work, run)
    if config.measure:
        level.learn(run.seconds, n)
    return [v for i in range(n) for v in run.results[i]]


def may_repeat(error: BaseException, plan: Any) -> bool:
    """Did an item fail only because of the others at the same time? A read is then repeated alone; what the
    user has marked as independent may write, and is never repeated."""
    return crowded(error) and not marked_in(plan)


def _one_by_one(work: Work, run: Overlap) -> list[Any]:
    """Run the items that have no result yet, one after another."""
    values: list[Any] = []
    for i in range(work.items.n):
        if i in run.errors and not may_repeat(run.errors[i], work.plan):
            raise _failed(work, run, i)
        try:
            run.results[i] = run.results[i] if i in run.results else work.one(i)
        except Exception as error:
            run.errors[i] = error
            raise _failed(work, run, i) from None
        values += run.results[i]
    return values


def _failed(work: Work, run: Overlap, lowest: int) -> Failed:
    """The lowest item that raised, with the values of the items before it and what it had noted itself."""
    values = [v for i in range(lowest) for v in run.results[i]]
    return Failed([*values, *work.partial.get(lowest, ())], run.errors[lowest])
