"""The rung "threads": how many items run at a time, and how their results are collected."""

import statistics
from collections.abc import Sequence
from typing import Any

from ..independent import marked_in
from ..work import Failed, Work
from .threads import CHEAP, Overlap, crowded

FEWEST = 2
LONGER = 3.0  # growth of the mean call time that indicates too much concurrency
UNEVEN = 5.0  # ratio of the longest call to the median that indicates queueing
PATIENCE = 50  # a level that was too high is tried again after this many times its longest call
PART = 128  # items of a long loop that run in threads before checking that they wait


class Level:
    """The concurrency level, adapted to measured call times.

    It is halved if calls take much longer than before, and then raised slowly; after each failure the next
    attempt comes later. A level at which a call took long (because a server's queue was full, for example) is
    tried again after fifty times that duration, and levels below it after five times. Call times within a
    loop may be uneven by nature, or because a server handles only a few requests at a time. A lower level is
    tried once to find out.
    """

    def __init__(self, most: int):
        self.most = self.now = most
        self.best: float | None = None  # the lowest mean call time so far
        self.calm, self.patience = 0, 4  # number of loops until a higher level is tried: now, next time
        # Level, mean time and longest call before a lower level was tried, which happens once.
        self.doubted: tuple[int, float, float] | None = None
        self.may_doubt = True
        self.bad, self.damage = 0, 0.0  # a level that was too high, and its longest call
        self.spent = 0.0  # seconds of loops since then

    def of(self, n: int) -> int:
        """Return the level for a loop of n calls."""
        return min(n, self.now)

    def too_many(self, n: int) -> None:
        self._halve(n)
        self.patience *= 2
        self.calm = self.patience

    def _halve(self, n: int) -> None:
        self.now = max(FEWEST, self.of(n) // 2)

    def learn(self, seconds: Sequence[float], n: int) -> None:
        """Adapt the level to the times of all calls of a loop of n items."""
        mean, longest = sum(seconds) / len(seconds), max(seconds)
        self.spent += sum(seconds) / self.of(n)
        self.best = mean if self.best is None else min(mean, self.best * 1.02)
        if self.doubted is not None:
            (level, before, took), self.doubted = self.doubted, None
            if before > LONGER * mean:
                self.calm = self.patience
                self.bad, self.damage, self.spent = level, took, 0.0
            else:
                self.now = level  # calls are uneven by nature
        elif n > FEWEST and mean > LONGER * self.best:
            self.bad, self.damage, self.spent = self.of(n), longest, 0.0
            self.too_many(n)
        elif self.may_doubt and self.of(n) > FEWEST and longest > UNEVEN * statistics.median(seconds):
            self.may_doubt, self.doubted = False, (self.of(n), mean, longest)
            self._halve(n)
        elif self.calm:
            self.calm -= 1
        elif self.now < self.most:
            higher = min(self.most, self.now + max(1, self.now // 8))
            patience = PATIENCE if higher >= self.bad else PATIENCE / 10
            if not self.bad or self.spent > patience * self.damage:
                self.now = higher


def overlapped(work: Work) -> list[Any]:
    """Return the values of all items, run in threads. Raises `Failed` if an item raises."""
    config, n = work.site.config, work.items.n
    run = Overlap(work.one, n, config.max_workers)
    level = work.plan.memory.setdefault("level", Level(config.max_workers))
    if config.measure and n > 2 * PART:  # a long loop: check first that its items still wait
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
    """Return whether an item may run again alone, since it failed only because too many ran at a time.

    Functions marked as independent may write, and are never repeated.
    """
    return crowded(error) and not marked_in(plan)


def _one_by_one(work: Work, run: Overlap) -> list[Any]:
    """Run the items without a result one after another, and return all values."""
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
    """Return the error of the lowest failing item, with the values before it and its own events so far."""
    values = [v for i in range(lowest) for v in run.results[i]]
    return Failed([*values, *work.partial.get(lowest, ())], run.errors[lowest])
