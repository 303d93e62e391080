"""One call of a site, held by the rewritten text while it runs.

The text asks `done`: then `take()` gives the result. Else it runs as written, in its own place, over
`rest()`, and `end()` joins what a rung has taken over on the way. So plain Python's errors come from plain
Python's frames, and a first call that turns out to be long need not run as written to its end.
"""

import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from . import timing
from .filling import built, fill
from .items import Items, made
from .raising import raise_here, raises, then_raises

if TYPE_CHECKING:
    from .ledger import Ledger
    from .site import Site

SWITCH_AFTER = 2e-3  # seconds of a loop before it is asked whether a rung should take the rest


class Call:
    """`done` with values or an error; or not, and then the text runs over the rest.

    Attributes:
        late: values that a rung gave for the last items.
        items, ledger: set if the plain loop is timed.
        body, cond: what a rung may take over on the way.
        containers: those that a loop fills.
        looked: when the site began to look at this call; later, how many seconds that took.
        mapping: `map` and its function, where the text is that.
    """

    __slots__ = (
        "body", "cond", "containers", "done", "error", "items", "late", "ledger", "looked", "mapping", "site",
        "source", "values",
    )  # fmt: skip

    def __init__(self, site: "Site", source: Any, containers: tuple | None = None):
        self.site, self.source, self.containers = site, source, containers
        self.done, self.looked = False, 0.0
        self.values = self.late = self.body = self.cond = self.mapping = None  # type: Any
        self.error: BaseException | None = None
        self.items: Items | None = None
        self.ledger: Ledger | None = None

    # For the rewritten text.

    def take(self) -> Any:
        """The result of a call that is done."""
        text, values, error = self.site.text, self.values, self.error
        self.values = self.error = None
        if error is not None and text.kind == "generator":
            return then_raises(values, error)
        whole = built(text, values)
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
        kind = self.site.text.kind
        if kind == "generator":
            return whole if self.body is None else itertools.chain(whole, self._added())
        if self.late is not None:
            (whole.extend if kind == "list" else whole.update)(self._added())
        return whole

    def map(self) -> Any:
        """`map` as it was written, of a function that was asked for once."""
        (mapper, function), self.mapping = self.mapping, None
        return mapper(function, self.rest())

    def _added(self) -> Iterator[Any]:
        late, self.late = self.late, None
        yield from late or ()

    # For the site.

    def filled(self, totals: list[Any]) -> Iterable[Any]:
        """Put the values where the loop would have put them; what is left to do: nothing, or an error."""
        values, error, self.values, self.error = self.values, self.error, None, None
        try:
            fill(self.site.text, values, self.containers or (), totals)
        except Exception as refused:
            error = refused
        return () if error is None else raises(error)

    def watch(self, items: Items, ledger: "Ledger", body: Any = None, cond: Any = None) -> None:
        """The text runs as written, timed; with a body given, `take_over` may end it early."""
        self.items, self.ledger, self.body, self.cond = items, ledger, body, cond

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
