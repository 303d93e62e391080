"""How often a site is looked at. Looking costs time, and where nothing comes of it must become rare."""

import itertools
import operator
from collections.abc import Callable, Iterator

from ..measure.clock import now

LONGEST = 0.25  # seconds without a look: later calls may be larger than those that were not worth it
# Asked before each call, these cost next to nothing.
yes = itertools.repeat(True).__next__
no = itertools.repeat(False).__next__


class Pace:
    """When a site is looked at next: `ready` says so at each call."""

    def __init__(self, measure: bool, never: bool):
        self.measure = measure  # without measuring, it is looked at always
        self.ready: Callable[[], bool] = no if never else yes
        self._pause: Iterator[bool] = iter(())
        self._calls = 0  # of this pause
        self._skipped = 0  # in pauses that are over
        self._noted = 0
        self._pauses = 0
        self._analysed = 0
        self._looked_over = 0
        self._turn = 0.0

    @property
    def skipped(self) -> int:
        """Calls that were not looked at, so far."""
        return self._skipped + self._calls - operator.length_hint(self._pause)

    def enter(self) -> None:
        """It is looked at."""
        self.ready = yes
        if self._calls:
            self._skipped, self._calls, self._pause = self.skipped, 0, iter(())

    def entered(self) -> int:
        """How many calls were not looked at since this was asked."""
        rested, self._noted = self._skipped - self._noted, self._skipped
        return rested

    def analysed(self) -> int:
        """One more analysis was made; how many so far."""
        self._analysed += 1
        return self._analysed

    def pause(self, calls: int, seconds: float | None = None) -> None:
        """No look in so many calls, or seconds."""
        self.enter()
        self._pause, self._calls = itertools.repeat(False, calls), calls
        skipped: Iterator[bool] = self._pause
        if seconds is not None:  # no time is False: as long as there is some, calls are counted
            before = itertools.takewhile((now() + seconds).__gt__, iter(now, None))
            skipped = map(operator.is_, before, self._pause)
        self.ready = itertools.chain(skipped, itertools.repeat(True)).__next__

    def rest(self, looked: float, plain: float) -> None:
        """Looking took so long beside the plain loop: next time after so many calls that it costs 2%."""
        if self.measure and self.ready is yes:
            new, self._looked_over = self._analysed != self._looked_over, self._analysed
            most = 4 if new else 20_000  # an analysis is done once, and says nothing of later looks
            # Ever other pauses: calls that take turns must not be such that always the same one is looked at.
            self._turn = (self._turn + 0.618) % 1.0
            share = 0.5 + self._turn
            calls = int(min(50 * looked / max(plain, 3e-7), most) * share)
            if calls:
                self.pause(calls, LONGEST * share)

    def back_off(self) -> None:
        """Ever longer pauses: not proven, or an item raised."""
        self._pauses += 1
        if self.measure:
            self.pause(min(100 * 2**self._pauses, 1_000_000))
