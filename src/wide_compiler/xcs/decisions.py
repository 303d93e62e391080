"""Decisions of a site: what it loops over, what is proven about that, and who takes a call."""

import itertools
import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

from .checking import check, took_own
from .interrupts import raise_interrupt
from .items import Blocks, Items, items_of, kept_blocks
from .pace import Pace
from .plan import Plan, make_plan
from .proof.effects import Effect
from .surroundings import in_the_way
from .text.site_text import SiteText
from .text.sites import SHORT_CIRCUIT
from .work import Miss, Work

if TYPE_CHECKING:
    from .config import Config
    from .site import Site

PLANS = 4
MOST_ROUNDS = 2**20  # of several loops in one comprehension: they are listed, a sum of them would not be


class Decisions:
    """What one site has found out so far, and how often it looks."""

    def __init__(self, text: SiteText, config: "Config"):
        self.text = text
        self.config = config
        self.checking = config.checking
        self.pace = Pace(config.measure, bool(text.reason))
        self.plans: list[Plan] = []
        self.why = text.reason
        self.short_circuits = text.eater in SHORT_CIRCUIT
        self.counts: dict[str, int] = {}

    def items_in(self, source: Any, expand: Any, before: list[Blocks] | None) -> Items | None:
        if expand is None:
            items = items_of(source, self.text.shape)
            kept = kept_blocks(source, before)
            if items is not None and kept is not None:
                items.columns = [kept]
        else:
            items = self._expanded(source, expand)
        if items is None:
            self.went_plain(self._why_no_items(expand))
        return items

    def _why_no_items(self, expand: Any) -> str:
        if expand is not None and self.plans and self.plans[0].declined:
            return self.plans[0].reason
        return "what it loops over is not a list, tuple, range, dict view, array or tensor"

    def _expanded(self, source: Any, expand: Any) -> Items | None:
        """Several loops in one comprehension: all rounds as tuples, if finding them changes nothing."""
        outer = items_of(source, "item")  # whole items, whatever they are unpacked into
        if outer is None or outer.n == 0:
            return None
        node = self.text.bodies["items"]
        plan, _ = self.plan_for({"items": expand}, {"items": node}, outer.columns)
        if plan.declined:
            return None
        try:
            rows = list(itertools.islice(expand(outer.columns[0]), MOST_ROUNDS + 1))
        except Exception as error:
            raise_interrupt(error)
            return None  # the plain loop will say so
        if not 0 < len(rows) <= MOST_ROUNDS:
            return None
        columns: list[Any] = [list(map(operator.itemgetter(k), rows)) for k in range(len(rows[0]))]

        def rest(k: int) -> Iterable[Any]:
            raise AssertionError("not asked for")

        return Items(columns, len(rows), rest)

    def values(
        self, items: Items, body: Any, cond: Any, after: list[Blocks] | None = None
    ) -> tuple[Any, Any]:
        """The values of all items, or a `Miss`; and the work, if it came so far that a rung was asked."""
        reason = in_the_way() if items.n > 1 else "there is nothing to run beside another"
        if reason:
            self.went_plain(reason)
            return Miss(), None
        functions = {"body": body} if cond is None else {"body": body, "cond": cond}
        plan, seen = self.plan_for(functions, self.text.bodies, items.columns)
        if plan.declined:
            self.decline(plan)
            return Miss(), None
        if self.text.caught and plan.effect is Effect.IO:
            self.went_plain("it fills something within a try, which must see it if that raises")
            return Miss(), None
        events = self.text.kind == "loop" and not self.text.single
        work = Work(cast("Site", self), plan, items, body, cond, events)
        work.seen, work.after = seen, after
        plan.ledger.enter(items.n, self.pace.entered())
        values = plan.strategy.run(work)
        if plan.own_strategy:
            took_own(work, values)
        if isinstance(values, Miss):
            self.went_plain()
            if values.raised:
                self.pace.back_off()
        elif self.checking:
            check(work, values)
        return values, work

    def plan_for(
        self, functions: dict[str, Any], nodes: dict[str, Any], columns: Any
    ) -> tuple[Plan, list[Any] | None]:
        """An old plan, with what its guards' paths lead to; or a new one."""
        for plan in self.plans:
            seen = plan.holds(functions, columns)
            if seen is not None:
                return plan, seen
        if self.pace.analysed() > PLANS:
            self.pace.back_off()  # ever other objects: looking costs more than it gives
        plan = make_plan(self, functions, nodes, columns)
        self.plans = [plan, *self.plans[: PLANS - 1]]
        return plan, None

    def decline(self, plan: Plan) -> None:
        """Not proven: the text runs as written, and is looked at again ever more rarely."""
        self.went_plain(plan.reason)
        self.pace.back_off()

    def went_plain(self, why: str = "") -> None:
        """A call ran as written; why, unless what was measured says that."""
        self.counts["plain"] = self.counts.get("plain", 0) + 1
        self.why = why

    @property
    def calls(self) -> dict[str, int]:
        """How many calls each rung has run, and how many the plain loop, looked at or not."""
        plain = self.counts.get("plain", 0) + self.pace.skipped
        return {**self.counts, "plain": plain} if plain else dict(self.counts)

    def took(self, rung: str) -> None:
        """A rung has run a whole call."""
        self.counts[rung] = self.counts.get(rung, 0) + 1
        self.why = ""
