"""What a site has measured: the plain loop's time for one item, each rung's time for a call, and when to
look again.

A choice is never for good. A rung that lost or failed is tried again once the plain loop has spent fifty
times what the trial would cost, so that looking costs two percent at most.
"""

import itertools
import operator
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ..measure.clock import cpu_time, now

LOOK_AGAIN = 50.0
LOOK_EVERY, LOOK_LEAST = 8, 64  # so many calls of a rung that has won: at first, and once it is far ahead
FAILURES = 3
TRIALS = 3


@dataclass
class Record:
    """One rung at one site."""

    recent: list[tuple[float, int]] = field(default_factory=list)  # seconds and items of its last calls
    failures: int = 0
    looks: set[Any] = field(default_factory=set)  # of items with which it was compared with the plain loop
    spent: float = 0.0  # by the plain loop since the last trial
    wasted: float = 0.0  # by the last trial that failed or lost
    why_not: str = ""

    def predicted(self, n: int) -> float | None:
        """Seconds for n items: part of the time does not depend on them."""
        least = None
        for seconds, items in self.recent:
            expected = seconds * (0.25 + 0.75 * n / items)
            if least is None or expected < least:
                least = expected
        return least

    def may_try_again(self, limit: float) -> bool:
        """It has lost. One bad timing is not for good: three calls are timed before it rests, and once the
        plain loop has spent fifty times what they took, it starts anew."""
        if len(self.recent) < TRIALS and min(s for s, _ in self.recent) < TRIALS * limit:
            return True
        if self.spent <= LOOK_AGAIN * sum(seconds for seconds, _ in self.recent[-TRIALS:]):
            return False
        self.recent.clear()
        self.spent = 0.0
        return True

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
        patience = LOOK_AGAIN if self.failures >= FAILURES else 2.0
        return self.spent < patience * self.wasted


@dataclass
class Eaten:
    """How much was eaten of `total` things. Counted on the way at next to no cost; none of them is kept."""

    total: int
    before: int  # of these, were eaten before

    def __post_init__(self) -> None:
        # More than there are: somebody may make the list longer meanwhile.
        self.ticks = itertools.repeat(True, sys.maxsize)

    def of(self, things: Iterable[Any]) -> Iterable[Any]:
        return itertools.compress(things, self.ticks)

    @property
    def share(self) -> float:
        eaten = sys.maxsize - operator.length_hint(self.ticks)
        return max(self.before + eaten, 1) / max(self.before + self.total, 1)


@dataclass
class Ledger:
    """All rungs of one plan, and the plain loop."""

    plain_item: float | None = None
    sampled: float = 0.0  # what an item took by itself, when that was last timed
    inlined: float = 1.0  # of that, it takes where it stands in the loop, and no function is called for it
    whole: bool = False  # was a whole loop timed yet, as far as it goes?
    waits: bool = False  # may its items wait? Then it is asked how much they do
    idle_item: float = 0.0  # of that time, in which nothing was computed
    records: dict[str, Record] = field(default_factory=dict)
    spent: float = 0.0
    looks: int = 0
    fast_calls: int = 0
    every: int = LOOK_EVERY  # fast calls from one look to the next
    next_look: int = LOOK_EVERY
    looked_at: float = 0.0  # what the plain loop had spent then
    share: float | None = None  # of its items the plain loop comes to, where it may stop early
    eating: Eaten | None = None  # in the last call

    def of(self, rung: str) -> Record:
        if rung not in self.records:
            self.records[rung] = Record()
        return self.records[rung]

    def plain(self, n: int) -> float:
        items = n if self.share is None else max(self.share * n, 1.0)
        return (self.plain_item or 0.0) * items

    def eaten(self, things: Iterable[Any], total: int, before: int = 0) -> Iterable[Any]:
        """So many things, for somebody who may stop early: how far he came is known at the next call."""
        self.eating = Eaten(total, before)
        return self.eating.of(things)

    def followed(self, things: Iterable[Any], total: int, before: int) -> Iterable[Any]:
        """The same, for the plain loop: if it comes to the end, it is known what one of them has cost."""
        watch = self.watch()

        def ended() -> None:
            self.measured(watch, total)

        return itertools.chain(self.eaten(things, total, before), iter(ended, None))

    def stops_at(self, share: float) -> None:
        """Where the plain loop stopped, or would have: by the calls before, the latest ones most."""
        self.share = share if self.share is None else 0.5 * (self.share + share)

    def enter(self, n: int, rested: int) -> None:
        """A call begins. So many ran plainly without being looked at."""
        if self.eating is not None:
            self.stops_at(self.eating.share)
            self.eating = None
            self.whole = True  # or it stopped early, and no more can be known
        if rested:
            self.went_plain(n, rested)

    def went_plain(self, n: int, calls: int = 1) -> None:
        seconds = self.plain(n) * calls
        self.spent += seconds
        for record in self.records.values():
            record.spent += seconds

    def due(self, fast: bool) -> bool:
        """May a rung that has won before be compared with the plain loop anew? At most 2% of the time
        goes there."""
        self.fast_calls += fast
        if fast:
            self.looks += self.look_is_next
            return self.look_is_next
        won = any(record.looks and record.failures == 0 for record in self.records.values())
        if not won or self.spent - self.looked_at < 2 * LOOK_AGAIN * (self.plain_item or 0.0):
            return False
        self.looks, self.looked_at = self.looks + 1, self.spent
        return True

    @property
    def look_is_next(self) -> bool:
        return self.fast_calls >= self.next_look

    def looked(self, far_ahead: bool) -> None:
        """A rung that was found far ahead once more need not be looked at so soon again."""
        self.every = min(2 * self.every, LOOK_LEAST) if far_ahead else LOOK_EVERY
        self.next_look = self.fast_calls + self.every

    def sample(self, seconds: list[float], own: float = 0.0) -> None:
        """Best of a few timed items, of which timing itself took a part; the best ever is not kept, machines
        get busier and idler."""
        self.sampled = max(min(seconds) - own, 1e-8)
        best = self.sampled * self.inlined
        self.plain_item = best if self.plain_item is None else min(best, 0.5 * (self.plain_item + best))

    def watch(self) -> tuple[float, float]:
        """A plain loop begins."""
        return now(), cpu_time() if self.waits else 0.0

    def measured(self, watch: tuple[float, float], items: int) -> float:
        """A whole plain loop has run since then: that is what an item costs. Gives its seconds."""
        seconds, idle = now() - watch[0], 0.0
        if self.waits:
            idle = seconds - (cpu_time() - watch[1])
        self.idle_item = idle / max(items, 1)
        item = seconds / max(items, 1)
        self.whole = True
        if self.sampled:
            self.inlined = min(item / self.sampled, 1.0)
        self.plain_item = item if self.plain_item is None else min(item, 0.5 * (self.plain_item + item))
        return seconds
