"""The state of one execution of a site, used by the rewritten code.

The rewritten code checks `done`. If it is set, `take()` returns the result. Otherwise the original code runs
in place over `rest()`, so exceptions of plain Python come from the user's own frames.
"""

import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ..measure import clock
from .exceptions import raise_here, then_raises
from .items import made

if TYPE_CHECKING:
    from .costs import Costs
    from .site import Site


class SiteCall:
    """One execution of a site: `done` with values or an error, or the original code runs."""

    __slots__ = ("began", "costs", "done", "error", "looked", "n", "pure", "site", "source", "values")

    def __init__(self, site: "Site", source: Any):
        self.site, self.source = site, source
        self.done = self.pure = False  # `pure`: running the original code again would be correct
        self.looked = 0.0  # when the site began to examine this call; later, how many seconds that took
        self.values: Any = None
        self.error: BaseException | None = None
        # Set if the original code is timed.
        self.costs: Costs | None = None
        self.n, self.began = 0, 0.0

    # Called by the rewritten code.

    def take(self) -> Any:
        """Return the result of a finished call, or raise its error."""
        values, error = self.values, self.error
        self.values = self.error = None
        if error is not None and self.site.text.kind == "generator":
            return then_raises(values, error)
        if error is not None:
            raise_here(error)
        return values

    def rest(self) -> Iterable[Any]:
        """Return the items for the original code."""
        source = made(self.source)
        self.source = None
        if self.costs is None:
            return source
        self.began = clock.now()
        return itertools.chain(source, self._ended())

    def _ended(self) -> Iterator[Any]:
        """Yield nothing, but report that the original code has taken all items."""
        self.over()
        yield from ()

    def value(self, i: int) -> Any:
        """Return the result of the i-th of several independent statements, or raise the error."""
        if i < len(self.values):
            return self.values[i]
        assert self.error is not None
        raise_here(self.error)

    def over(self) -> None:
        """Report that the original code has run to its end. If it raises, the site pauses for a while."""
        if self.costs is not None:
            self.site.ran_plainly(self.costs, self.n, clock.now() - self.began, self.looked)

    # Called by the site.

    def fill(self, containers: tuple) -> Iterable[Any]:
        """Fill the loop's containers. Returns an empty iterable, or one that raises the error."""
        for held, new in zip(containers, self.values, strict=False):
            (held.extend if type(held) is list else held.update)(new)
        return () if self.error is None else then_raises((), self.error)

    def watch(self, n: int, costs: "Costs") -> None:
        """Time the original code."""
        self.n, self.costs, self.began = n, costs, clock.now()
