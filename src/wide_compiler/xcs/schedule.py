"""When a site is looked at. Looking costs time: where nothing comes of it, it must become rare."""

import itertools
import operator
from collections.abc import Callable, Iterator

LOOKS = 0.02  # of the time of the plain loop may go into looks
MOST = 2048  # calls without a look: later ones may be larger than those that were not worth it
RECURSION = 64  # calls without a look while one is under way: a site that calls itself runs as written
PATIENT = 4  # looks in a row of which nothing comes, before pauses grow
# Asked before each call, these cost some 30 ns.
yes = itertools.repeat(True).__next__
no = itertools.repeat(False).__next__


class Schedule:
    """Says at each call, by `ready`, whether the site is looked at."""

    def __init__(self, measure: bool, never: bool):
        self.measure = measure  # without measuring, it is looked at always
        self.ready: Callable[[], bool] = no if never else yes
        self._pause: Iterator[bool] = iter(())
        self._calls = 0  # of this pause
        self._skipped = 0  # in pauses that are over
        self._fruitless = 0  # looks in a row
        self._turn = 0.0
        self._failures = 0
        self._entered = False  # a look is under way

    @property
    def skipped(self) -> int:
        """Calls that were not looked at, so far."""
        return self._skipped + self._calls - operator.length_hint(self._pause)

    def enter(self) -> None:
        """A call is looked at. Calls that it makes itself run as written."""
        self.pause(RECURSION)
        self._entered = True

    def leave(self) -> None:
        """The look is over, and so is what runs as written after it."""
        if self._entered:
            self.pause(0)

    def pause(self, calls: int) -> None:
        """No look in so many calls."""
        self._skipped, self._calls = self.skipped, calls
        self._pause = itertools.repeat(False, calls)
        self.ready = itertools.chain(self._pause, itertools.repeat(True)).__next__ if calls else yes
        self._entered = False

    def rest(self, looked: float, plain: float) -> None:
        """A look took so long, and the loop as written so long: the next one comes when it is paid for."""
        if self.measure and self._entered:
            # Pauses of ever other lengths: calls that take turns must not be such that always the same one is
            # looked at.
            self._turn = (self._turn + 0.618) % 1.0
            self._fruitless += 1
            grown = (0.5 + self._turn) * 2.0 ** min(max(self._fruitless - PATIENT, 0), 4)
            self.pause(int(min(looked / (LOOKS * max(plain, 3e-7)) * grown, MOST)))

    def gained(self) -> None:
        """Something came of a look."""
        self._fruitless = 0

    def back_off(self) -> None:
        """Ever longer pauses: it is not proven, or an item raised."""
        self._failures += 1
        if self.measure:
            self.pause(min(100 * 2**self._failures, 1_000_000))
