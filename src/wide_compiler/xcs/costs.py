"""What was measured at a site, and what may be tried there.

The plain loop is timed while it runs. Trials are paid from a budget: 5% of the time that the plain loop of
the site has taken so far; so are analyses. What a trial took is the price of the next one, doubled each time
the rung loses or fails: one bad timing must not decide for ever, nor cost much. The plain loop is timed again
once a rung has run for twenty times as long as that takes.
"""

from dataclasses import dataclass, field
from typing import Any

SHARE = 0.05
MEDIAN_OF = 5
KEPT = 3  # calls of a rung


@dataclass
class Budget:
    """Of one site. spent: seconds of its plain loop; analysed: of analyses; tried: of trials."""

    spent: float = 0.0
    analysed: float = 0.0
    tried: float = 0.0

    def affords_analysis(self, seconds: float) -> bool:
        return SHARE * self.spent >= self.analysed + seconds

    def affords_trial(self, seconds: float) -> bool:
        return SHARE * self.spent >= self.tried + seconds


@dataclass
class RungCosts:
    """One rung at one site."""

    told: tuple[float, int] | None = None  # seconds for so many items, as the last trial says
    recent: list[tuple[float, int]] = field(default_factory=list)  # seconds and items of its last calls
    signatures: set[Any] = field(default_factory=set)  # of items that were compared with the plain loop
    price: float = 0.0  # seconds of the last trial that it lost, or of what failed
    losses: int = 0  # in a row
    why_not: str = ""

    def predicted(self, n: int) -> float | None:
        """Seconds for n items: part of the time does not depend on them. Calls tell more than a trial."""
        known = self.recent if len(self.recent) == KEPT else [self.told] if self.told is not None else []
        return min((seconds * (0.25 + 0.75 * n / items) for seconds, items in known), default=None)

    def took(self, seconds: float, n: int) -> None:
        self.recent = [*self.recent[1 - KEPT :], (seconds, n)]

    def lost(self, seconds: float, why: str = "") -> None:
        """A trial, or a call, has cost so many seconds and gained nothing."""
        self.price, self.losses, self.why_not = seconds, min(self.losses + 1, 20), why
        if why:
            self.recent, self.told = [], None


@dataclass
class Costs:
    """All rungs of one plan, and the plain loop."""

    recent: list[float] = field(default_factory=list)  # seconds of an item in the last plain calls
    records: dict[str, RungCosts] = field(default_factory=dict)
    unseen: float = 0.0  # seconds that rungs have taken since the plain loop was timed

    def of(self, rung: str) -> RungCosts:
        return self.records.setdefault(rung, RungCosts())

    @property
    def plain_item(self) -> float:
        """Seconds of an item in the plain loop: a median, since a machine may do other things in between."""
        return sorted(self.recent)[(len(self.recent) - 1) // 2] if self.recent else 0.0

    def measured(self, seconds: float, items: int) -> None:
        """A plain loop came to so many items."""
        self.recent = [*self.recent[1 - MEDIAN_OF :], seconds / max(items, 1)]
        self.unseen = 0.0

    def is_due(self, n: int) -> bool:
        """Should the plain loop be timed again?"""
        return SHARE * self.unseen > self.plain_item * n
