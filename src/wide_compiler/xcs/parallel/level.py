"""How many waiting calls at a time: as many as the other side bears."""

import statistics
from collections.abc import Sequence

FEWEST = 2
LONGER = 3.0  # so many times as long, and there were too many at a time
UNEVEN = 5.0  # the longest call beside the median


class Level:
    """Fewer at a time where each then takes much longer; more again later, and ever later where that was too
    many once more.

    Calls of one loop that differ much may do so by themselves, or because too many were at it: a server that
    takes five at a time lets the sixth wait for a second. Once, fewer are tried to find out.
    """

    def __init__(self, most: int):
        self.most = self.now = most
        self.best: float | None = None  # the mean time of a call
        self.calm = 0  # loops before more are tried
        self.patience = 4
        self.doubted: tuple[int, float] | None = None  # level and mean before fewer were tried
        self.doubts = 1

    def of(self, n: int) -> int:
        """For a loop of n calls."""
        return min(n, self.now)

    def too_many(self, n: int) -> None:
        self.now = max(FEWEST, self.of(n) // 2)
        self.patience *= 2
        self.calm = self.patience

    def learn(self, seconds: Sequence[float], n: int) -> None:
        """From the times of all calls of a loop."""
        mean = sum(seconds) / len(seconds)
        self.best = mean if self.best is None else min(mean, self.best * 1.02)
        if self.doubted is not None:
            self._decide(mean)
        elif n > FEWEST and mean > LONGER * self.best:
            self.too_many(n)
        elif self.doubts and self.of(n) > FEWEST and max(seconds) > UNEVEN * statistics.median(seconds):
            self.doubts -= 1
            self.doubted = self.now, mean
            self.now = max(FEWEST, self.of(n) // 2)
        elif self.calm:
            self.calm -= 1
        elif self.now < self.most:
            self.now = min(self.most, self.now + max(1, self.now // 8))

    def _decide(self, mean: float) -> None:
        """Were there too many, or do calls differ by themselves?"""
        assert self.doubted is not None
        level, before = self.doubted
        self.doubted = None
        if before > LONGER * mean:
            self.calm = self.patience
        else:
            self.now = level
