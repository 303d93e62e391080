"""One call of a site, held by the rewritten text while it runs.

The text asks `done`: then `take()` gives the result. Else it runs as written, in its own place, over
`rest()`, and `end()` joins what a rung has taken over on the way. So plain Python's errors come from plain
Python's frames, and a first call that turns out to be long need not run as written to its end.
"""

import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from . import timing
from .items import Items, made
from .raising import raise_here, then_raises

if TYPE_CHECKING:
    from .ledger import Ledger
    from .site import Site

SWITCH_AFTER = 2e-3  # seconds of a loop before it is asked whether a rung should take the rest


class Call:
    """`done` with values or an error; or not, and then the text runs over the rest."""

    __slots__ = (
        "body", "cond", "containers", "done", "error", "items", "late", "ledger", "looked", "mapping", "site",
        "source", "values",
    )  # fmt: skip

    def __init__(self, site: "Site", source: Any):
        self.site, self.source = site, source
        self.done = False
        self.values: Any = None
        self.error: BaseException | None = None
        self.late: Any = None  # values that a rung gave for the last items
        self.items: Items | None = None  # if the plain loop is watched
        self.ledger: Ledger | None = None
        self.body: Any = None  # and cond: of what a rung may take over
        self.cond: Any = None
        self.containers: tuple | None = None  # that a loop fills
        self.looked = 0.0  # seconds
        self.mapping: Any = None

    # For the rewritten text.

    def take(self) -> Any:
        """The result of a call that was taken."""
        text, values, error = self.site.text, self.values, self.error
        self.values = self.error = None
        if error is not None and text.kind == "generator":
            return then_raises(values, error)
        whole = values
        if text.kind in ("set", "dict"):
            whole = set(values) if text.kind == "set" else dict(values)  # raises if a key cannot be hashed
        if error is not None:
            raise_here(error)
        return whole

    def rest(self) -> Iterable[Any]:
        """What is left to do as written."""
        source, items = made(self.source), self.items
        self.source = self.items = None
        return source if items is None else watched(self, source, items)

    def end(self, whole: Any) -> Any:
        """What the text has made, with what a rung has added to it."""
        if self.site.text.kind == "generator":
            return whole if self.body is None else itertools.chain(whole, self._added())
        if self.late is not None:
            (whole.extend if self.site.text.kind == "list" else whole.update)(self.late)
            self.late = None
        return whole

    def map(self) -> Any:
        """`map` as it was written, of a function that was asked for once."""
        mapper, function = self.mapping
        self.mapping = None
        return mapper(function, self.rest())

    def _added(self) -> Iterator[Any]:
        late, self.late = self.late, None
        yield from late or ()

    # For the site.

    def watch(self, items: Items, ledger: "Ledger") -> None:
        """The text runs as written, timed; `take_over` may end it early."""
        self.items, self.ledger = items, ledger

    def may_switch(self, body: Any, cond: Any) -> None:
        self.body, self.cond = body, cond

    def forget(self) -> None:
        self.items = self.ledger = self.body = self.cond = None


def watched(call: Call, source: Any, items: Items) -> Iterator[Any]:
    """The source, timed while it is looped over; not to its end if a rung takes the rest."""
    site, n, things = call.site, items.n, iter(source)
    began, computed = timing.now(), timing.cpu_time()
    done, block, ended = 0, 1, False

    def taken() -> tuple[float, float]:
        seconds = timing.now() - began
        return seconds, seconds - (timing.cpu_time() - computed)

    try:
        while not site.short_circuits and done < n:
            yield from itertools.islice(things, block)
            done = min(done + block, n)
            long = call.body is not None and done < n and timing.now() - began > SWITCH_AFTER
            if long and site.take_over(call, items, done, *taken()):
                return
            block = done
        for thing in things:  # a list may have grown meanwhile
            done += 1
            yield thing
        ended = True
    finally:
        site.ran_plainly(call, n, done, *taken(), ended)


def counted(values: list[Any], ledger: "Ledger") -> Iterator[Any]:
    """Values for a consumer that may stop early: how far it came tells where the plain loop would stop."""
    count = 0
    try:
        for value in values:
            count += 1
            yield value
    finally:
        ledger.stops_at(max(count, 1) / max(len(values), 1))


class Timed:
    """Independent statements that run as written, one after another, and are timed."""

    plain = True

    def __init__(self, site: "Site"):
        self.site = site
        self.began = timing.now()

    def over(self) -> None:
        """The last of them is done."""
        self.site.spent += timing.now() - self.began
