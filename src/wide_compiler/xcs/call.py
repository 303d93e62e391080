"""The state of one execution of a site, used by the rewritten code.

The rewritten code checks `done`. If it is set, `take()` returns the result. Otherwise the original code runs
in place over `rest()`, and `end()` appends the values that a rung has computed meanwhile. Exceptions of plain
Python therefore come from the user's own frames, and a rung can take over in the middle of a long first call.
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

SWITCH_AFTER = 2e-3  # seconds of plain loop after which a rung may take over the remaining items


class SiteCall:
    """One execution of a site: `done` with values or an error, or the original code runs over the rest.

    Attributes:
        functions: the bodies of the items; None if no rung may take over in the middle.
        containers: the containers that a loop fills.
        pure: True if running the original code again would be correct.
        late: values that a rung computed for the last items.
        items, costs: set if the plain loop is timed.
        looked: time at which the site began to examine this call; later, how many seconds that took.
        mapping: (`map`, function) if the site is a call of `map`.
        began: time at which the original code started.
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

    # Called by the rewritten code.

    def take(self) -> Any:
        """Return the result of a finished call, or raise its error."""
        text, values, error = self.site.text, self.values, self.error
        self.values = self.error = None
        if error is not None and text.kind == "generator":
            return then_raises(values, error)
        if error is not None:
            raise_here(error)
        return values

    def rest(self) -> Iterable[Any]:
        """Return the items left for the original code."""
        source, items = made(self.source), self.items
        self.source = self.items = None
        return source if items is None else watched(self, source, items)

    def end(self, whole: Any) -> Any:
        """Return the result of the original code, `whole`, with the values of a rung appended."""
        kind = self.site.text.kind
        if kind == "generator":
            return whole if self.functions is None else itertools.chain(whole, self._added())
        if self.late is not None:
            (whole.extend if kind == "list" else whole.update)(self._added())
        return whole

    def value(self, i: int) -> Any:
        """Return the result of the i-th of several independent statements, or raise the error."""
        if i < len(self.values):
            return self.values[i]
        assert self.error is not None
        raise_here(self.error)

    def over(self) -> None:
        """Report that all independent statements have run."""
        if self.items is not None:
            n, self.items = self.items.n, None
            self.site.ran_plainly(self, n, n, timing.now() - self.began, True)

    def map(self) -> Any:
        """Return the original `map` call over the rest. The function was evaluated only once."""
        (mapper, function), self.mapping = self.mapping, None
        return mapper(function, self.rest())

    def _added(self) -> Iterator[Any]:
        late, self.late = self.late, None
        yield from late or ()

    # Called by the site.

    def filled(self) -> Iterable[Any]:
        """Fill the loop's containers. Returns an empty iterable, or one that raises the error."""
        values, error, self.values, self.error = self.values, self.error, None, None
        for held, new in zip(self.containers or (), values, strict=False):
            (held.extend if type(held) is list else held.update)(new)
        return () if error is None else raises(error)

    def watch(self, items: Items, costs: "Costs", functions: Any = None) -> None:
        """Time the original code; with `functions`, `take_over` may end it early."""
        self.items, self.costs, self.functions = items, costs, functions
        self.began = timing.now()


def watched(call: SiteCall, source: Any, items: Items) -> Iterator[Any]:
    """Yield the items of `source`, timed; stop early if a rung takes the rest."""
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
        for thing in things:  # the loop's body may have appended to the list
            done += 1
            yield thing
        ended = True
    finally:
        site.ran_plainly(call, n, done, timing.now() - began, ended)
