"""Measured costs at a site, and the budget for trials.

The plain loop is timed whenever it runs. Analyses and trials together may use 5% of the time that the site's
plain loop has taken so far. A trial's cost is the expected cost of the next one, doubled each time the
rung loses or fails, so that one bad timing neither decides for good nor costs much. The plain loop is timed
again once rungs have run for twenty times as long as the plain loop takes.
"""

from dataclasses import dataclass, field
from typing import Any

SHARE = 0.05
MEDIAN_OF = 5
TOO_LITTLE = "the expected gain is too small so far"
KEPT = 3  # number of recent calls of a rung that are remembered


@dataclass
class Budget:
    """The time budget of one site.

    Attributes:
        spent: seconds of its plain loop.
        used: seconds of analyses and trials.
    """

    spent: float = 0.0
    used: float = 0.0

    def affords(self, seconds: float) -> bool:
        return SHARE * self.spent >= self.used + seconds


@dataclass
class RungCosts:
    """Measured costs of one rung at one site.

    Attributes:
        recent: (seconds, number of items) of the last calls, the trial included.
        signatures: signatures of items whose results were compared with the plain loop.
        price: seconds of the last lost trial or failed call.
        losses: number of consecutive losses.
        why_not: why the rung failed last; '' if it did not.
    """

    recent: list[tuple[float, int]] = field(default_factory=list)
    signatures: set[Any] = field(default_factory=set)
    price: float = 0.0
    losses: int = 0
    why_not: str = ""

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
    """Measured costs of a plan: of its rungs and of the plain loop.

    Attributes:
        recent: seconds per item of the last plain loops.
        records: costs by name of the rung.
        unseen: seconds of rungs since the plain loop was last timed.
    """

    recent: list[float] = field(default_factory=list)
    records: dict[str, RungCosts] = field(default_factory=dict)
    unseen: float = 0.0

    def of(self, rung: str) -> RungCosts:
        return self.records.setdefault(rung, RungCosts())

    @property
    def plain_item(self) -> float:
        """Seconds per item in the plain loop; the median, because other processes disturb single timings."""
        return sorted(self.recent)[(len(self.recent) - 1) // 2] if self.recent else 0.0

    def measured(self, seconds: float, items: int) -> None:
        """Record that a plain loop took `seconds` for `items` items."""
        self.recent = [*self.recent[1 - MEDIAN_OF :], seconds / max(items, 1)]
        self.unseen = 0.0

    def is_due(self, n: int) -> bool:
        """Return whether the plain loop should be timed again."""
        return SHARE * self.unseen > self.plain_item * n
