"""Work: one execution of a site with its items and body."""

import operator
import types
from typing import TYPE_CHECKING, Any

from ..errors import ValidationError
from .exceptions import raise_interrupt
from .items import Items

if TYPE_CHECKING:
    from .plan import Plan
    from .site import Site


def closure_values(function: Any) -> list[Any]:
    """Return the contents of a function's closure cells in order; ABSENT for an empty cell."""
    return [ABSENT if cell == _EMPTY else cell.cell_contents for cell in function.__closure__ or ()]


ABSENT: Any = object()
_EMPTY = types.CellType()


class Bail(BaseException):
    """A fast path cannot continue, so the plain loop runs.

    A BaseException, so that `except Exception` in user code does not catch it.
    """


class Miss:
    """Returned instead of values if the original code should run."""


class Failed(Exception):
    """An item raised `error`; `values` are those of the items before it."""

    def __init__(self, values: list[Any], error: BaseException):
        super().__init__()
        self.values, self.error = values, error


class Mismatch(ValidationError):
    """Raised with `check=True` if a site's result differs from plain Python."""


class Work:
    """The items, body and condition of one execution.

    Each item yields a list of values: none if the condition is false, one, or the events of a loop with
    several sinks.

    Args:
        seen: objects that the plan's guards looked up, if known.
    """

    def __init__(
        self,
        site: "Site",
        plan: "Plan",
        items: Items,
        functions: dict[str, Any],
        seen: list[Any] | None = None,
    ):
        self.site, self.plan, self.items, self.functions = site, plan, items, functions
        self.body: Any = functions.get("body", operator.call)
        self.cond: Any = functions.get("cond")
        self.events = site.text.kind == "loop" and not site.text.single
        self.seen = seen
        self.record: Any = None  # costs of the rung that ran all items
        self.new = False  # whether the signature of the items is new
        self.partial: dict[int, list[Any]] = {}  # events of an item that raised, by index

    @property
    def each(self) -> bool:
        """True if each item yields exactly one value."""
        return self.cond is None and not self.events

    def one(self, i: int) -> list[Any]:
        """Return the values of item i, computed by plain Python."""
        row = self.items.row(i)
        if self.events:
            noted: list[Any] = []
            try:
                self.body(noted, *row)
            except BaseException:
                self.partial[i] = noted
                raise
            return noted
        if self.cond is not None and not self.cond(*row):
            return []
        return [self.body(*row)]

    def compared(self, i: int) -> list[Any]:
        """Return the values of item i for comparison with a fast path. Raises `Bail` if the item raises."""
        try:
            return self.one(i)
        except Exception as error:
            raise_interrupt(error)
            raise Bail(f"item {i} raises {type(error).__name__}") from None

    def ran(self, name: str) -> None:
        """Record that the rung or strategy of this name ran all items."""
        self.plan.last = name
        self.site.took(name)

    def took(self, seconds: float) -> None:
        """Record how long the whole call took, overhead included."""
        costs, n, record = self.plan.costs, self.items.n, self.record
        costs.unseen += seconds
        if record is not None:
            record.took(seconds, n)
            over = seconds - costs.plain_item * n
            if over > 0.0 and costs.plain_item:
                record.lost(over)
                self.site.budget.used += over
            else:
                record.losses = 0
