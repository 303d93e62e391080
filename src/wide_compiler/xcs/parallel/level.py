"""How many waiting calls run at a time: as many as the other side can serve without slowing down."""

import statistics
from collections.abc import Sequence

FEWEST = 2
LONGER = 3.0  # the mean time of a call grows by this factor: there were too many at a time
UNEVEN = 5.0  # the longest call takes this many times the median


class Level:
    """Halved where calls take much longer than they once did, and raised slowly again; each time that was
    too many, the next attempt comes later.

    Calls of one loop may differ by themselves, or because a server takes five at a time and lets the sixth
    wait. To tell, a lower level is tried once.
    """

    def __init__(self, most: int):
        self.most = self.now = most
        self.best: float | None = None  # the lowest mean time of a call
        self.calm = 0  # loops until a higher level is tried
        self.patience = 4
        self.doubted: tuple[int, float] | None = None  # level and mean time before a lower level was tried
        self.may_doubt = True

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
        mean = sum(seconds) / len(seconds)
        self.best = mean if self.best is None else min(mean, self.best * 1.02)
        if self.doubted is not None:
            (level, before), self.doubted = self.doubted, None
            if before > LONGER * mean:
                self.calm = self.patience
            else:
                self.now = level  # calls differ by themselves
        elif n > FEWEST and mean > LONGER * self.best:
            self.too_many(n)
        elif self.may_doubt and self.of(n) > FEWEST and max(seconds) > UNEVEN * statistics.median(seconds):
            self.may_doubt, self.doubted = False, (self.now, mean)
            self._halve(n)
        elif self.calm:
            self.calm -= 1
        elif self.now < self.most:
            self.now = min(self.most, self.now + max(1, self.now // 8))
