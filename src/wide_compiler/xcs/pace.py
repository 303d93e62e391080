"""How often a site is looked at. Looking costs time, and where nothing comes of it must become rare."""

import itertools
from collections.abc import Callable

# Asked before each call, these cost next to nothing.
yes = itertools.repeat(True).__next__
no = itertools.repeat(False).__next__


def after(calls: int) -> Callable[[], bool]:
    """False for so many calls, then True."""
    return itertools.chain(itertools.repeat(False, calls), itertools.repeat(True)).__next__


class Pace:
    """When a site is looked at next: `ready` says so at each call."""

    def __init__(self, measure: bool, never: bool):
        self.measure = measure  # without measuring, it is looked at always
        self.ready = no if never else yes
        self.rested = 0  # calls since the last look
        self._pauses = 0
        self._analysed = 0
        self._looked_over = 0

    def analysed(self) -> int:
        """One more analysis was made; how many so far."""
        self._analysed += 1
        return self._analysed

    def entered(self) -> int:
        """It is looked at; how many calls were not, since the last time."""
        rested, self.rested = self.rested, 0
        return rested

    def rest(self, looked: float, plain: float) -> None:
        """Looking took so long beside the plain loop: next time after so many calls that it costs 2%."""
        self.rested = 0
        if self.measure and self.ready is yes:
            new, self._looked_over = self._analysed != self._looked_over, self._analysed
            most = 4 if new else 20_000  # an analysis is done once, and says nothing of later looks
            self.rested = min(int(50 * looked / max(plain, 3e-7)), most)
            self.ready = after(self.rested)

    def back_off(self) -> None:
        """Ever longer pauses: not proven, or an item raised."""
        self._pauses += 1
        if self.measure:
            self.ready = after(min(100 * 2**self._pauses, 1_000_000))
