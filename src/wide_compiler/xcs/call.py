"""One call of a site, held by the rewritten text while it runs.

The text asks `done`: then `take()` gives the result. Else it runs as written, in its own place, over
`rest()`, and `end()` joins what a rung has taken over on the way. So plain Python's errors come from plain
Python's frames, and a first call that turns out to be long need not run as written to its end.
"""

import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from . import timing
from .exceptions import raise_here, raises, then_raises
from .items import Items, made

if TYPE_CHECKING:
    from .costs import Costs
    from .site import Site

SWITCH_AFTER = 2e-3  # seconds of a loop before it is asked whether a rung should take the rest


class Call:
    """`done` with values or an error; or not, and then the text runs over the rest.

    Attributes:
        functions: the bodies of its items; None where no rung may take items over on the way.
        containers: those that a loop fills.
        pure: what it is done by could run again as written.
        late: values that a rung gave for the last items.
        items, costs: set if the plain loop is timed.
        looked: when the site began to look at this call; later, how many seconds that took.
        mapping: `map` and its function, where the text is that.
        began: when the text began to run as written.
    """

    __slots__ = (
        "began", "containers", "costs", "done", "error", "functions", "items", "late", "looked", "mapping",
        "pure", "site", "source", "values",
    )  # fmt: skip

    def __init__(self, site: "Site", source: Any, containers: tuple | None = None):
        self.site, self.source, self.containers = site, source, containers
        self.done, self.pure, self.looked, self.began = False, False, 0.0, 0.0
        self.values = self.late = self.functions = self.mapping = None  # type: Any
        self.error: BaseException | None = None
        self.items: Items | None = None
        self.costs: Costs | None = None

    # For the rewritten text.

    def take(self) -> Any:
        """The result of a call that is done."""
        text, values, error = self.site.text, self.values, self.error
        self.values = self.error = None
        if error is not None and text.kind == "generator":
            return then_raises(values, error)
        if error is not None:
            raise_here(error)
        return values

    def rest(self) -> Iterable[Any]:
        """What is left to do as written."""
        source, items = made(self.source), self.items
        self.source = self.items = None
        return source if items is None else watched(self, source, items)

    def end(self, whole: Any) -> Any:
        """What the text has made, with what a rung has added to it."""
        kind = self.site.text.kind
        if kind == "generator":
            return whole if self.functions is None else itertools.chain(whole, self._added())
        if self.late is not None:
            (whole.extend if kind == "list" else whole.update)(self._added())
        return whole

    def value(self, i: int) -> Any:
        """Of independent statements that are done: what the i-th gave."""
        if i < len(self.values):
            return self.values[i]
        assert self.error is not None
        raise_here(self.error)

    def over(self) -> None:
        """All independent statements were run."""
        if self.items is not None:
            n, self.items = self.items.n, None
            self.site.ran_plainly(self, n, n, timing.now() - self.began, True)

    def map(self) -> Any:
        """`map` as it was written, of a function that was asked for once."""
        (mapper, function), self.mapping = self.mapping, None
        return mapper(function, self.rest())

    def _added(self) -> Iterator[Any]:
        late, self.late = self.late, None
        yield from late or ()

    # For the site.

    def filled(self) -> Iterable[Any]:
        """Put the values where the loop would have put them; what is left to do: nothing, or an error."""
        values, error, self.values, self.error = self.values, self.error, None, None
        for held, new in zip(self.containers or (), values, strict=False):
            (held.extend if type(held) is list else held.update)(new)
        return () if error is None else raises(error)

    def watch(self, items: Items, costs: "Costs", functions: Any = None) -> None:
        """The text runs as written, timed; with functions given, `take_over` may end it early."""
        self.items, self.costs, self.functions = items, costs, functions
        self.began = timing.now()


def watched(call: Call, source: Any, items: Items) -> Iterator[Any]:
    """The source, timed while it is looped over; not to its end if a rung takes the rest."""
    site, n, things = call.site, items.n, iter(source)
    call.began = began = timing.now()
    done, block, ended = 0, 1, False
    try:
        while done < n:
            yield from itertools.islice(things, block)
            done = min(done + block, n)
            seconds = timing.now() - began
            long = call.functions is not None and done < n and seconds > SWITCH_AFTER
            if long and site.take_over(call, items, done, seconds):
                return
            block = done
        for thing in things:  # a list may have grown meanwhile
            done += 1
            yield thing
        ended = True
    finally:
        site.ran_plainly(call, n, done, timing.now() - began, ended)
