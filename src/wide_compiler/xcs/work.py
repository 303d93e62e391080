"""One call of a site: its items, its body, and what to do with an item plainly."""

import operator
import types
from typing import TYPE_CHECKING, Any

from .exceptions import raise_interrupt
from .items import Blocks, Items

if TYPE_CHECKING:
    from .plan import Plan
    from .site import Site


def held_by(function: Any) -> list[Any]:
    """What the cells of a function hold, in their order; ABSENT where one is empty."""
    return [ABSENT if cell == _EMPTY else cell.cell_contents for cell in function.__closure__ or ()]


ABSENT: Any = object()
_EMPTY = types.CellType()


class Bail(BaseException):
    """A fast path cannot go on; the plain loop decides. No `except Exception` of a user's function hides
    it."""


class Miss:
    """The run time did not take the call."""

    __slots__ = ()


class Failed(Exception):
    """An item raised; the values of the items before it are kept, and what it had noted itself."""

    def __init__(self, values: list[Any], error: BaseException):
        super().__init__()
        self.values, self.error = values, error


class Work:
    """Items, body and test of one call. A value is what an item adds: nothing, one thing, or noted events.

    Attributes:
        seen: what the paths of the plan's guards lead to, if they were asked.
        after: where blocks are put that the next site need not gather.
        new: do the items look like none before?
        record: of the rung that ran all items.
        partial: what an item had noted when it raised.
    """

    __slots__ = (
        "after", "body", "cond", "events", "functions", "items", "new", "partial", "plan", "record", "seen",
        "site",
    )  # fmt: skip

    def __init__(self, site: "Site", plan: "Plan", items: Items, functions: dict[str, Any]):
        self.site, self.plan, self.items, self.functions = site, plan, items, functions
        self.body: Any = functions.get("body", operator.call)
        self.cond: Any = functions.get("cond")
        self.events = site.text.kind == "loop" and not site.text.single
        self.seen: list[Any] | None = None
        self.after: list[Blocks] | None = None
        self.record: Any = None
        self.new = False
        self.partial: dict[int, list[Any]] = {}

    def one(self, i: int) -> list[Any]:
        """What item i adds, computed as written."""
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
        """The same, to be held against a fast path. Raises `Bail` if the item raises."""
        try:
            return self.one(i)
        except Exception as error:
            raise_interrupt(error)
            raise Bail(f"item {i} raises {type(error).__name__}") from None

    def pay(self, seconds: float) -> None:
        """From the budget for trials."""
        self.site.budget.tried += seconds

    def took(self, seconds: float) -> None:
        """A rung ran the whole call: what it took, with all around it."""
        costs, n, record = self.plan.costs, self.items.n, self.record
        costs.unseen += seconds
        if record is not None:
            record.took(seconds, n)
            over = seconds - costs.plain_item * n
            if over > 0.0 and costs.plain_item:
                record.lost(over)
                self.pay(over)
            else:
                record.losses = 0
