"""When a site is looked at. Looking costs time: where nothing comes of it, it must become rare."""

import itertools
import math
import operator
from collections.abc import Callable, Iterator

from . import timing

SHARE = 0.05  # of the time the plain loop has taken may go into analyses and trials
LOOKS = 0.02  # and into looks
LONGEST = 0.25  # seconds without a look: later calls may be larger than those that were not worth one
ROUND = 64  # calls between two reads of the clock, at first
MOST = 20_000
PATIENT = 4  # looks in a row of which nothing comes, before pauses grow
RECURSION = 64  # calls without a look while one is under way: a site that calls itself runs as written
# Asked before each call, these cost some 30 ns.
yes = itertools.repeat(True).__next__
no = itertools.repeat(False).__next__


class Schedule:
    """Says at each call, by `ready`, whether the site is entered; `enter` says whether it is looked at.

    A pause is a number of calls and a time, whichever ends first. The clock is read once in a round of calls,
    since reading it at each one would cost more than a short loop may; rounds of short loops become longer.
    """

    def __init__(self, measure: bool, never: bool):
        self.measure = measure  # without measuring, it is looked at always
        self.ready: Callable[[], bool] = no if never else yes
        self._round: Iterator[bool] = iter(())
        self._calls = 0  # of this round
        self._pending = 0.0  # calls of the pause after this round
        self._until = 0.0
        self._round_calls, self._round_began = ROUND, 0.0
        self._fruitless = 0  # looks in a row
        self._skipped = 0  # in rounds that are over
        self._turn = 0.0
        self._failures = 0
        self._entered = False  # a look is under way

    @property
    def skipped(self) -> int:
        """Calls that were not looked at, so far."""
        return self._skipped + self._calls - operator.length_hint(self._round)

    def enter(self) -> bool:
        """A call is at the site: is the pause over?"""
        now = timing.now()
        if self._pending and now < self._until:
            self._skipped, self._calls, self._round = self.skipped + 1, 0, iter(())
            quick = now - self._round_began < LONGEST / 16
            self._round_calls = min(2 * self._round_calls, MOST) if quick else ROUND
            self._next_round(now)
            return False
        self.pause(RECURSION)
        self._entered = True
        return True

    def leave(self) -> None:
        """The look is over, and so is what runs as written after it."""
        if self._entered:
            self._end()

    def pause(self, calls: float, seconds: float = math.inf) -> None:
        """No look in so many calls, or seconds."""
        self._end()
        now = timing.now()
        self._pending, self._until = calls, now + seconds
        self._next_round(now)

    def _end(self) -> None:
        self._skipped, self._calls, self._round = self.skipped, 0, iter(())
        self.ready, self._pending, self._entered = yes, 0, False

    def _next_round(self, now: float) -> None:
        self._round_began = now
        self._calls = int(min(self._pending, self._round_calls if self._until < math.inf else MOST))
        self._pending -= self._calls
        self._round = itertools.repeat(False, self._calls)
        self.ready = itertools.chain(self._round, itertools.repeat(True)).__next__

    def rest(self, looked: float, plain: float) -> None:
        """A look took so long, and the loop as written so long: the next one comes when it is paid for."""
        if self.measure and self._entered:
            # Pauses of ever other lengths: calls that take turns must not be such that always the same one is
            # looked at.
            self._turn = (self._turn + 0.618) % 1.0
            jitter = 0.5 + self._turn
            self._fruitless += 1
            grown = jitter * 2.0 ** min(max(self._fruitless - PATIENT, 0), 20)
            calls = int(min(looked / (LOOKS * max(plain, 3e-7)) * grown, MOST))
            if calls:
                self.pause(calls, LONGEST * jitter)

    def gained(self) -> None:
        """Something came of a look."""
        self._fruitless = 0

    def back_off(self) -> None:
        """Ever longer pauses: it is not proven, or an item raised."""
        self._failures += 1
        if self.measure:
            self.pause(min(100 * 2**self._failures, 1_000_000))
