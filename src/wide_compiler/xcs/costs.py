"""Measured costs at a site, and the budget for trials.

The plain loop is timed whenever it runs. Analyses and trials together may use 4% of the time that the site's
plain loop has taken so far. A trial's cost is the expected cost of the next one, doubled each time the
rung loses or fails, so that one bad timing neither decides for good nor costs much. The plain loop is timed
again once rungs have run for twenty-five times as long as the plain loop takes.

Examining a site costs time too, so a `Schedule` examines fruitless sites rarely, and others when the budget
is expected to afford the next step.
"""

import itertools
import operator
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

SHARE = 0.04
MEDIAN_OF = 5
TOO_LITTLE = "the expected gain is too small so far"
KEPT = 3  # number of recent calls of a rung that are remembered
LOOKS = 0.01  # fraction of the plain loop's time that may be spent on examining
# The longest pause after fruitless looks: calls, or seconds where calls are short. Later calls may be larger.
MOST, PAUSE = 2048, 0.05
RECURSION = 64  # calls not examined while one is in progress, so that recursive calls run the original code
PATIENT = 4  # fruitless examinations in a row before pauses grow


@dataclass
class Budget:
    """Seconds `spent` in a site's plain loop, and `used` by its analyses and trials."""

    spent: float = 0.0
    used: float = 0.0
    # Seconds in the plain loop until what was refused in this call is affordable; 0 if nothing was.
    missing: float = 0.0

    def affords(self, seconds: float) -> bool:
        missing = (self.used + seconds) / SHARE - self.spent
        if missing > 0.0:
            self.missing = min(missing, self.missing or missing)
        return missing <= 0.0


@dataclass
class RungCosts:
    """Measured costs of one rung at one site."""

    recent: list[tuple[float, int]] = field(default_factory=list)  # (seconds, items) of trial and last calls
    signatures: set[Any] = field(default_factory=set)  # of items whose results were compared
    price: float = 0.0  # seconds of the last lost trial or failed call
    losses: int = 0  # in a row
    why_not: str = ""  # why the rung failed last

    def predicted(self, n: int) -> float | None:
        """Return the estimated seconds for n items, or None.

        A quarter of the time is assumed to be independent of the number of items.
        """
        return min((seconds * (0.25 + 0.75 * n / items) for seconds, items in self.recent), default=None)

    def took(self, seconds: float, n: int) -> None:
        self.recent = [*self.recent[1 - KEPT :], (seconds, n)]

    def lost(self, seconds: float, why: str = "") -> None:
        """Record a trial or a call that took `seconds` without a gain."""
        self.price, self.losses, self.why_not = seconds, min(self.losses + 1, 20), why
        if why:
            self.recent = []


@dataclass
class Costs:
    """Measured costs of a plan."""

    recent: list[float] = field(default_factory=list)  # seconds per item of the last plain loops
    records: dict[str, RungCosts] = field(default_factory=dict)  # by name of the rung
    unseen: float = 0.0  # seconds of rungs since the plain loop was last timed

    def of(self, rung: str) -> RungCosts:
        return self.records.setdefault(rung, RungCosts())

    @property
    def plain_item(self) -> float:
        """Seconds per item in the plain loop; the median, because other processes disturb single timings."""
        return statistics.median_low(self.recent) if self.recent else 0.0

    def measured(self, seconds: float, items: int) -> None:
        """Record that a plain loop took `seconds` for `items` items."""
        self.recent = [*self.recent[1 - MEDIAN_OF :], seconds / max(items, 1)]
        self.unseen = 0.0

    def is_due(self, n: int) -> bool:
        """Return whether the plain loop should be timed again."""
        return SHARE * self.unseen > self.plain_item * n


class Schedule:
    """Decides at each call whether the site is examined.

    Attributes:
        left: an iterator with one None for each call that is not examined. The rewritten code asks `None in
            left` before each execution, which takes one of them. This is faster than any call.
    """

    def __init__(self, measure: bool, never: bool):
        self.measure = measure  # if False, the site is always examined
        self.left: Iterator[None] = itertools.repeat(None) if never else iter(())
        self._calls = 0  # length of the current pause
        self._skipped = 0  # calls skipped in earlier pauses
        self._fruitless = 0  # consecutive examinations without a gain
        self._turn = 0.0
        self._failures = 0
        self._entered = False  # an examination is in progress

    @property
    def skipped(self) -> int:
        """Number of calls that were not examined so far."""
        return self._skipped + self._calls - operator.length_hint(self.left)

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
        self.left = itertools.repeat(None, calls)
        self._entered = False

    def rest(self, looked: float, plain: float, missing: float = 0.0) -> None:
        """Pause until the time spent on examining is a small fraction of the plain loop's time.

        There is no pause after a gain, since the plain loop may have run just to be timed.

        Args:
            looked, plain: seconds that this examination, and the plain loop, took (0 if unknown).
            missing: seconds in the plain loop until the next step is affordable, if known.
        """
        if self.measure and self._entered:
            # Varying lengths, so that among calls that alternate not always the same one is examined.
            self._turn = (self._turn + 0.618) % 1.0
            self._fruitless += 1
            most, plain = 8 * MOST if plain else MOST, max(plain, 3e-7)
            least = (0.5 + self._turn) * looked / (LOOKS * plain) if self._fruitless > 1 else 0.0
            grown = missing / plain if missing else least * 2.0 ** min(max(self._fruitless - PATIENT, 0), 4)
            self.pause(int(min(max(least, min(grown, max(MOST, PAUSE / plain))), most)))

    def gained(self) -> None:
        """Record that an examination led to a gain."""
        self._fruitless = 0

    def back_off(self) -> None:
        """Pause ever longer, after a failed proof or an exception in an item."""
        self._failures += 1
        if self.measure:
            self.pause(min(100 * 2**self._failures, 1_000_000))
