"""Schedule of how often a site is examined. Examining costs time, so fruitless sites are examined rarely."""

import itertools
import operator
from collections.abc import Callable, Iterator

LOOKS = 0.02  # fraction of the plain loop's time that may be spent on examining
MOST = 2048  # maximum number of calls not examined; later calls may be larger
RECURSION = 64  # calls not examined while one is in progress, so that recursive calls run the original code
PATIENT = 4  # fruitless examinations in a row before pauses grow
# Iterators rather than functions: called before each execution, they take about 30 ns.
yes = itertools.repeat(True).__next__
no = itertools.repeat(False).__next__


class Schedule:
    """Decides at each call, by `ready()`, whether the site is examined."""

    def __init__(self, measure: bool, never: bool):
        self.measure = measure  # if False, the site is always examined
        self.ready: Callable[[], bool] = no if never else yes
        self._pause: Iterator[bool] = iter(())
        self._calls = 0  # length of the current pause
        self._skipped = 0  # calls skipped in earlier pauses
        self._fruitless = 0  # consecutive examinations without a gain
        self._turn = 0.0
        self._failures = 0
        self._entered = False  # an examination is in progress

    @property
    def skipped(self) -> int:
        """Number of calls that were not examined so far."""
        return self._skipped + self._calls - operator.length_hint(self._pause)

    def enter(self) -> None:
        """Begin to examine a call. Recursive calls run the original code."""
        self.pause(RECURSION)
        self._entered = True

    def leave(self) -> None:
        """End the examination, and the original code that ran after it."""
        if self._entered:
            self.pause(0)

    def pause(self, calls: int) -> None:
        """Do not examine the next `calls` calls."""
        self._skipped, self._calls = self.skipped, calls
        self._pause = itertools.repeat(False, calls)
        self.ready = itertools.chain(self._pause, itertools.repeat(True)).__next__ if calls else yes
        self._entered = False

    def rest(self, looked: float, plain: float) -> None:
        """Pause until the time spent on examining is a small fraction of the plain loop's time."""
        if self.measure and self._entered:
            # Varying lengths, so that among calls that alternate not always the same one is examined.
            self._turn = (self._turn + 0.618) % 1.0
            self._fruitless += 1
            grown = (0.5 + self._turn) * 2.0 ** min(max(self._fruitless - PATIENT, 0), 4)
            self.pause(int(min(looked / (LOOKS * max(plain, 3e-7)) * grown, MOST)))

    def gained(self) -> None:
        """Record that an examination led to a gain."""
        self._fruitless = 0

    def back_off(self) -> None:
        """Pause ever longer, after a failed proof or an exception in an item."""
        self._failures += 1
        if self.measure:
            self.pause(min(100 * 2**self._failures, 1_000_000))
