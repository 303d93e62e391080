"""What was measured at a site: the plain loop's time for an item, and each rung's time for a call.

No choice is for good. A rung that lost or failed is tried again once the plain loop has spent fifty times
what the trial would cost, and the plain loop is timed again once a rung has spent twenty times what that
would cost: one bad timing must not decide for ever.
"""

from dataclasses import dataclass, field
from typing import Any

from .schedule import SHARE

SHORT = 4e-7  # an item that takes less is as fast in the loop as on the way to NumPy and back
TRY_AGAIN = 50.0
FAILURES = 3
TRIALS = 3
CLOSE = 1.25
MEDIAN_OF = 5


@dataclass
class RungCosts:
    """One rung at one site."""

    recent: list[tuple[float, int]] = field(default_factory=list)  # seconds and items of its last calls
    failures: int = 0
    signatures: set[Any] = field(default_factory=set)  # of items that were compared with the plain loop
    spent: float = 0.0  # by the plain loop since the last trial
    wasted: float = 0.0  # by the last trial that failed or lost
    defeats: int = 0  # how often it has started anew
    why_not: str = ""

    def predicted(self, n: int) -> float | None:
        """Seconds for n items: part of the time does not depend on them."""
        if not self.recent:
            return None
        return min(seconds * (0.25 + 0.75 * n / items) for seconds, items in self.recent)

    def may_try_again(self, expected: float, limit: float) -> bool:
        """It has lost. One bad timing is not for good: where it was close, three calls are timed before it
        rests, and once the plain loop has spent fifty times what they took, it starts anew."""
        if len(self.recent) < TRIALS and expected < CLOSE * limit:
            return True
        took = max(self.wasted, sum(seconds for seconds, _ in self.recent[-TRIALS:]))
        if self.spent > TRY_AGAIN * took * 2.0**self.defeats:
            self.recent.clear()
            self.spent, self.defeats = 0.0, min(self.defeats + 1, 10)
        return False

    def succeeded(self, seconds: float, n: int) -> None:
        self.recent = [*self.recent[-7:], (seconds, n)]
        self.failures, self.why_not = 0, ""

    def failed(self, seconds: float, why: str) -> None:
        self.failures += 1
        self.wasted, self.spent, self.why_not = max(seconds, 1e-4), 0.0, why

    @property
    def resting(self) -> bool:
        """Failed so often that it only runs again now and then."""
        if self.failures == 0:
            return False
        lasting = min(self.failures - FAILURES, 10)
        patience = TRY_AGAIN * 2.0**lasting if lasting >= 0 else 2.0
        return self.spent < patience * self.wasted


@dataclass
class Costs:
    """All rungs of one plan, and the plain loop."""

    recent: list[float] = field(default_factory=list)  # seconds of an item in the last plain calls
    idle_item: float = 0.0  # of that time, in which nothing was computed: it waited
    records: dict[str, RungCosts] = field(default_factory=dict)
    spent: float = 0.0  # by the plain loop, so far
    unseen: float = 0.0  # seconds that rungs have taken since the plain loop was timed
    share: float | None = None  # of its items the plain loop comes to, where it may stop early

    def of(self, rung: str) -> RungCosts:
        return self.records.setdefault(rung, RungCosts())

    @property
    def plain_item(self) -> float:
        """Seconds of an item in the plain loop: a median, since a machine may do other things in between."""
        return sorted(self.recent)[(len(self.recent) - 1) // 2] if self.recent else 0.0

    def plain(self, n: int) -> float:
        """Seconds of the plain loop over n items."""
        items = n if self.share is None else max(self.share * n, 1.0)
        return self.plain_item * items

    def stops_at(self, share: float) -> None:
        """Where the plain loop stopped, or would have: by the calls before, the latest ones most."""
        self.share = share if self.share is None else 0.5 * (self.share + share)

    def measured(self, seconds: float, idle: float, items: int) -> None:
        """A plain loop came to so many items."""
        self.recent = [*self.recent[1 - MEDIAN_OF :], seconds / max(items, 1)]
        self.idle_item = idle / max(items, 1)
        self.unseen = 0.0

    def is_due(self, n: int) -> bool:
        """Should the plain loop be timed again?"""
        return SHARE * self.unseen > self.plain(n)

    def went_plain(self, seconds: float) -> None:
        self.spent += seconds
        for record in self.records.values():
            record.spent += seconds
