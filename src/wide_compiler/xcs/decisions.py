"""Decisions of a site: what it loops over, what is proven about that, and who takes a call."""

import contextlib
import itertools
import operator
from typing import TYPE_CHECKING, Any, cast

from . import timing
from .checking import check, run_own
from .interrupts import raise_interrupt
from .items import Blocks, Items, items_of, kept_blocks
from .ledger import Ledger
from .pace import SHARE, Pace
from .plan import Plan, make_plan
from .proof.effects import Effect
from .text.site_text import SiteText
from .text.sites import SHORT_CIRCUIT
from .work import Bail, Miss, Work

if TYPE_CHECKING:
    from .config import Config
    from .site import Site

PLANS = 4
ANALYSIS_SECONDS = 5e-4  # about what an analysis takes
MOST_ROUNDS = 2**20  # of several loops in one comprehension: they are listed, a sum of them would not be


class Decisions:
    """What one site has found out so far, and how often it looks."""

    def __init__(self, text: SiteText, config: "Config"):
        self.text = text
        self.config = config
        self.checking = config.checking
        self.pace = Pace(config.measure, bool(text.reason))
        self.plans: list[Plan] = []
        self.first = Ledger()  # the plain loop before anything is proven
        self.spent = 0.0  # by the plain loop, of any plan
        self.analysed = 0.0  # seconds that analyses took
        self.latest = 0.0  # seconds of the latest plain call
        self.why = text.reason
        self.short_circuits = text.eater in SHORT_CIRCUIT
        self.counts: dict[str, int] = {}
        self.faults = 0

    def may_analyse(self) -> bool:
        """Has the plain loop taken so long that an analysis costs little beside it?"""
        return not self.config.measure or SHARE * self.spent >= self.analysed + ANALYSIS_SECONDS

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
        if plan is None or plan.declined:
            return None
        try:
            rows = list(itertools.islice(expand(outer.columns[0]), MOST_ROUNDS + 1))
        except Exception as error:
            raise_interrupt(error)
            return None  # the plain loop will say so
        if not 0 < len(rows) <= MOST_ROUNDS:
            return None
        columns: list[Any] = [list(map(operator.itemgetter(k), rows)) for k in range(len(rows[0]))]
        return Items(columns, len(rows))

    def values(
        self, items: Items, body: Any, cond: Any, after: list[Blocks] | None = None
    ) -> tuple[Any, Work | None]:
        """The values of all items, or a `Miss`; and the work, if it came so far that a rung was asked."""
        functions = {"body": body} if cond is None else {"body": body, "cond": cond}
        plan, seen = self.plan_for(functions, self.text.bodies, items.columns)
        if plan is None:
            self.went_plain("there is too little to gain so far")
            return Miss(), None
        if plan.declined:
            self.decline(plan)
            return Miss(), None
        if self.text.caught and plan.effect is Effect.IO:
            self.went_plain("it fills something within a try, which must see it if that raises")
            return Miss(), None
        events = self.text.kind == "loop" and not self.text.single
        work = Work(cast("Site", self), plan, items, body, cond, events)
        work.seen, work.after = seen, after
        values = run_own(work) if plan.own_strategy else plan.strategy.run(work)
        if isinstance(values, Miss):
            self.went_plain()
        elif self.checking:
            check(work, values)
        return values, work

    def plan_for(
        self, functions: dict[str, Any], nodes: dict[str, Any], columns: Any
    ) -> tuple[Plan | None, list[Any] | None]:
        """An old plan, with what its guards' paths lead to; or a new one, if an analysis is paid for."""
        for plan in self.plans:
            seen = plan.holds(functions, columns)
            if seen is not None:
                return plan, seen
        if not self.may_analyse():
            return None, None
        began = timing.now()
        plan = make_plan(self, functions, nodes, columns)
        if "items" not in nodes:  # else what was timed are rounds of its first loop
            plan.ledger.recent, plan.ledger.idle_item = self.first.recent, self.first.idle_item
        plan.ledger.share, plan.ledger.spent = self.first.share, self.spent
        self.plans = [plan, *self.plans[: PLANS - 1]]
        self.analysed += timing.now() - began
        return plan, None

    def decline(self, plan: Plan) -> None:
        """Not proven: the text runs as written, and is looked at again ever more rarely."""
        self.went_plain(plan.reason)
        self.pace.back_off()

    def broke(self, error: BaseException) -> None:
        """Something of ours has failed: the text runs as written, and `explain` says so."""
        self.faults += 1
        self.went_plain(f"an error in the analysis or in a rung: {type(error).__name__}: {error}")
        with contextlib.suppress(Exception, Bail):
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
