"""A site at run time: what the rewritten text asks, what is decided, and what goes back to it.

Whatever goes wrong in here that is not an error of the user's code means that the text runs as written, once:
nothing has run by then but what is pure.
"""

import builtins
import contextlib
import itertools
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import WideError
from . import timing
from .call import Call
from .checking import check, run_own
from .costs import Budget, Costs
from .exceptions import raise_here, raise_interrupt
from .items import Blocks, Items, items_of, kept_blocks
from .lanes.lane import Diverge
from .outputs import carried_on, fill, fillable, inert, rooms
from .plan import Plan, make_plan
from .proof.effects import Effect
from .rungs import shortest
from .schedule import Schedule
from .surroundings import in_the_way
from .text.site_text import SiteText
from .text.sites import SHORT_CIRCUIT
from .work import Bail, Failed, Miss, Work

if TYPE_CHECKING:
    from .config import Config
    from .jit import Runtime

OURS = (Exception, Bail, Diverge)  # no interrupts, and no exits
WORTH_A_SWITCH = 1e-2  # seconds that the rest of a loop must take before a rung is asked to take it over
PLANS = 4
ANALYSIS_SECONDS = 5e-4  # about what an analysis takes
MOST_ROUNDS = 2**20  # of several loops in one comprehension: they are listed, a sum of them would not be
WATCHED = 2e-8  # seconds that timing the plain loop takes for each item
TOO_LITTLE = "there is too little to gain so far"
STOPS_EARLY = "it stops early, and the items after that would run for nothing"


class Site:
    """One site of one jitted function. `on()` is asked before every call, and costs next to nothing when off.

    Attributes:
        plans: what is proven, for objects of several types; the latest first.
        first: times of the plain loop before anything is proven.
        latest: seconds of the latest plain call; accounted: calls that were not looked at and are in `spent`.
        why: why the latest call ran as written; faults: how often that was an error of ours.
    """

    def __init__(self, text: SiteText, config: "Config", file: str, runtime: "Runtime"):
        self.text, self.config, self.file, self.runtime = text, config, file, runtime
        self.checking = config.checking
        self.why = text.reason
        self.schedule = Schedule(config.measure, bool(self.why))
        if text.eater in SHORT_CIRCUIT:
            self.why = STOPS_EARLY
            self.schedule.pause(10**12)
        self.on = self.schedule.ready
        self.nested = "items" in text.bodies  # several loops in one comprehension
        self.plans: list[Plan] = []
        self.first, self.budget = Costs(), Budget()
        self.latest = 0.0
        self.accounted = self.faults = 0
        self.counts: dict[str, int] = {}

    # Called by the rewritten text.

    def run(
        self, source: Any, body: Any, cond: Any = None, expand: Any = None, consumer: Any = None,
        *options: Any, before: list[Blocks] | None = None, after: list[Blocks] | None = None,
    ) -> Call:  # fmt: skip
        """A comprehension, or a generator that a builtin consumes whole, if `consumer` is that builtin.
        Blocks of what it loops over lie in `before`, those of what it makes are put into `after`."""
        call = Call(self, source)

        def decide() -> None:
            eater = self.text.eater
            functions = {"body": body} if cond is None else {"body": body, "cond": cond}
            if consumer is not None and consumer is not getattr(builtins, eater):
                self.went_plain(f"{eater} is not the builtin here")
            elif options and not inert(eater, options):
                self.went_plain("what is done with each item may change something before the next one")
            else:
                items = self._items(source, before) if expand is None else self._expanded(call, expand)
                self._decide(call, items, functions, after, switchable=expand is None)
                if call.done and self.text.kind in ("set", "dict"):
                    values, call.values = call.values, set() if self.text.kind == "set" else {}
                    self._put(call, call.values.update, values)

        self._guarded(call, decide)
        return call

    def mapped(self, mapper: Any, function: Any, source: Any, body: Any, *rest: Any, **to: Any) -> Call:
        """`map` of a function, consumed whole, if it is the builtin."""
        if mapper is map:
            call = self.run(source, body, *rest, **to)
        else:
            self.went_plain("map is not the builtin here")
            call = Call(self, source)
        call.mapping = mapper, function
        return call

    def loop(self, source: Any, body: Any, containers: tuple, totals: tuple, *makers: Any) -> list[Any]:
        """A loop that fills things. Gives, last to first: each new total, and what is left to do."""
        call, running = Call(self, source, containers), list(totals)

        def decide() -> None:
            items = None
            if fillable(self.text, containers, totals, makers):
                items = items_of(source, self.text.shape)
            if items is None:
                self.went_plain("it fills, or runs over, something that may run code of its own")
            self._decide(call, items, {"body": body}, None, switchable=not totals)
            if call.done and self.text.sinks[0].kind == "carried":
                values, call.values = call.values, ()
                self._put(call, carried_on, values, running, makers[-1])
            elif call.done:
                self._fill(call, running)

        self._guarded(call, decide)
        if not call.done:
            return [call.rest(), *reversed(totals)]
        return [call.filled(), *reversed(running)]

    def start(self, *thunks: Any) -> Call:
        """Independent statements: each is an item, which is called."""
        call = Call(self, None)

        def decide() -> None:
            functions = {f"thunk {i}": thunk for i, thunk in enumerate(thunks)}
            self._decide(call, Items([thunks], len(thunks)), functions, None, switchable=False)

        self._guarded(call, decide)
        return call

    def _guarded(self, call: Call, decide: Callable[[], None]) -> None:
        """Decide about a call. An error of ours is noted, and the text runs as written."""
        try:
            self.schedule.enter()
            self.on = self.schedule.ready
            call.looked = timing.now()
            skipped = self.schedule.skipped
            self.budget.spent += self.latest * (skipped - self.accounted)
            self.accounted = skipped
            reason = in_the_way()
            if reason:
                self.went_plain(reason)
            else:
                decide()
        except WideError:
            raise
        except OURS as error:
            raise_interrupt(error)
            call.done, call.error, call.items = False, None, None
            self.broke(error)
        finally:
            if call.items is None:
                self._leave()

    def _leave(self) -> None:
        with contextlib.suppress(*OURS):
            self.schedule.leave()
            self.on = self.schedule.ready

    def _put(self, call: Call, put: Callable[..., None], *given: Any) -> None:
        """Put values where the text puts them, into new containers. An error of that is the call's, or, where
        all is pure, left to the text as written: so a `try` in there sees it."""
        try:
            put(*given)
        except Exception as refused:
            if call.pure:
                raise Bail(f"putting its values away raises {type(refused).__name__}: {refused}") from None
            call.error = refused

    def _fill(self, call: Call, totals: list[Any]) -> None:
        assert call.containers is not None
        values, call.values = call.values, rooms(call.containers)
        self._put(call, fill, self.text, values, call.values, totals)

    # Deciding.

    def _items(self, source: Any, before: list[Blocks] | None) -> Items | None:
        """The items of a loop. Or None, and a reason is noted."""
        items, kept = items_of(source, self.text.shape), kept_blocks(source, before)
        if items is None:
            self.went_plain("what it loops over is not a list, tuple, range, dict view, array or tensor")
        elif kept is not None:
            items.columns = [kept]
        return items

    def _expanded(self, call: Call, expand: Any) -> Items | None:
        """All rounds of several loops in one comprehension, if finding them changes nothing."""
        outer = items_of(call.source, "item")  # whole items, whatever they are unpacked into
        plan, rows = None, []
        if outer is not None and outer.n:
            plan, _ = self.plan_for({"items": expand}, {"items": self.text.bodies["items"]}, outer.columns)
            if plan is None:  # not proven yet: it is timed
                self.went_plain(TOO_LITTLE)
                call.looked = timing.now() - call.looked
                call.watch(outer, self.first)
                return None
            if not plan.declined:
                try:
                    rows = list(itertools.islice(expand(outer.columns[0]), MOST_ROUNDS + 1))
                except Exception as error:  # the plain loop will say so
                    raise_interrupt(error)
        if not 0 < len(rows) <= MOST_ROUNDS:
            self.went_plain(plan.reason if plan is not None else "what it loops over is not known")
            return None
        return Items([list(map(operator.itemgetter(k), rows)) for k in range(len(rows[0]))], len(rows))

    def _decide(
        self, call: Call, items: Items | None, functions: dict[str, Any], after: Any, switchable: bool
    ) -> None:
        """Let a rung run the items. Else the plain loop is timed; where it is switchable, a rung may take it
        over later."""
        if items is None:
            if call.items is None:
                self.schedule.rest(timing.now() - call.looked, 0.0)
            return
        if items.n < 2:
            return self.went_plain("there is nothing to run beside another")
        paid = self.budget.analysed + self.budget.tried
        try:
            values, work = self.values(items, functions, after)
        except Failed as failure:
            call.done, call.values, call.error = True, failure.values, failure.error
            return
        paid = self.budget.analysed + self.budget.tried - paid
        seconds = timing.now() - call.looked - paid
        if type(values) is not Miss:
            assert work is not None
            work.took(seconds)
            call.done, call.values, call.pure = True, values, work.plan.effect is Effect.PURE
            return
        call.looked = seconds
        if self.schedule.measure:
            costs = self.first if work is None else work.plan.costs
            call.watch(items, costs, functions if switchable else None)

    def values(self, items: Items, functions: dict[str, Any], after: Any = None) -> tuple[Any, Work | None]:
        """The values of all items, or a `Miss`; and the work, if it came so far that a rung was asked."""
        statements = self.text.kind == "statements"
        plan, seen = self.plan_for(functions, self.text.bodies, () if statements else items.columns)
        if plan is None:
            self.went_plain(TOO_LITTLE)
        elif plan.declined:
            self.decline(plan.reason)
        elif statements and plan.effect is Effect.PURE:
            self.decline("nothing in it waits")
        elif self.text.caught and plan.effect is Effect.IO:
            self.went_plain("it fills something within a try, which must see it if that raises")
        else:
            work = Work(self, plan, items, functions)
            work.seen, work.after = seen, after
            if plan.own_strategy:
                values = Miss() if statements else run_own(work)
            else:
                values = plan.strategy.run(work)
            if isinstance(values, Miss):
                self.went_plain()
            elif self.checking:
                check(work, values)
            return values, work
        return Miss(), None

    def may_analyse(self, functions: dict[str, Any], columns: Any) -> bool:
        """Has the plain loop taken so long that an analysis costs little beside it, and each of its items so
        long that a rung could be faster?"""
        if not self.config.measure:
            return True
        short = self.first.recent and self.first.plain_item < shortest(columns, functions)
        # Of several loops in one comprehension, the body is analysed with what they loop over.
        together = self.nested and len(self.plans) == 1 and not self.plans[0].declined
        return not (short and columns) and (together or self.budget.affords_analysis(ANALYSIS_SECONDS))

    def plan_for(
        self, functions: dict[str, Any], nodes: dict[str, Any], columns: Any
    ) -> tuple[Plan | None, list[Any] | None]:
        """An old plan, with what its guards' paths lead to; or a new one, if an analysis is paid for."""
        for plan in self.plans:
            seen = plan.holds(functions, columns)
            if seen is not None:
                return plan, seen
        if not self.may_analyse(functions, columns):
            return None, None
        began = timing.now()
        plan = make_plan(self, functions, nodes, columns)
        if not self.nested:
            plan.costs.recent = self.first.recent
        elif "items" not in functions and self.latest:  # what was timed are rounds of its first loop
            plan.costs.recent = [self.latest / len(columns[0])]
        self.plans = [plan, *self.plans[: PLANS - 1]]
        self.budget.analysed += timing.now() - began
        return plan, None

    # While the text runs as written.

    def take_over(self, call: Call, items: Items, done: int, seconds: float) -> bool:
        """A loop that runs as written has come to so many items: does a rung take the rest?"""
        declined = bool(self.plans) and self.plans[0].declined
        if declined or seconds / done * (items.n - done) < WORTH_A_SWITCH:
            return False
        rest = Call(self, None, call.containers)
        rest.looked = timing.now()
        before, costs = self.budget.spent, call.costs
        self.budget.spent += seconds
        try:
            assert costs is not None
            recent = costs.recent
            costs.measured(seconds, done)
            remaining = Items([column[done:] for column in items.columns], items.n - done)
            self._decide(rest, remaining, call.functions, None, switchable=False)
            if rest.done and call.containers is not None:
                self._fill(rest, [])
            if not rest.done:
                costs.recent = recent
        except OURS as fault:
            raise_interrupt(fault)
            self.broke(fault)
            rest.done = False
        self.budget.spent = before
        self._count("plain", -1)  # as which this call was counted, or is counted again
        if not rest.done:
            return False
        call.costs = None  # this was no plain loop
        error = rest.error
        if call.containers is None:
            call.late = rest.values
        else:
            rest.error = None
            rest.filled()
        if error is not None:
            raise_here(error)
        return True

    def ran_plainly(self, call: Call, n: int, done: int, seconds: float, ended: bool) -> None:
        """The loop ran as written, to its end or as far as somebody wanted it."""
        costs, call.costs = call.costs, None
        try:
            if costs is not None:
                if ended:
                    costs.measured(seconds, n)
                else:
                    self.schedule.back_off()  # it raised: looking at such loops gains nothing
                self.latest = seconds
                self.budget.spent += seconds
                self.schedule.rest(call.looked + WATCHED * done, seconds)
        except OURS as error:
            self.broke(error)
        self._leave()

    # Notes.

    def decline(self, why: str) -> None:
        """Not proven: the text runs as written, and is looked at again ever more rarely."""
        self.went_plain(why)
        self.schedule.back_off()

    def broke(self, error: BaseException) -> None:
        """Something of ours has failed: the text runs as written, and `explain` says so."""
        self.faults += 1
        what = f"an error in the analysis or in a rung: {type(error).__name__}: {error}"
        self.went_plain(str(error) if type(error) is Bail else what)
        with contextlib.suppress(Exception, Bail):
            self.schedule.back_off()

    def went_plain(self, why: str = "") -> None:
        """A call ran as written; why, unless what was measured says that."""
        self._count("plain", 1)
        self.why = why

    def took(self, rung: str) -> None:
        """A rung has run a whole call."""
        self.schedule.gained()
        self._count(rung, 1)
        self.why = ""

    def _count(self, how: str, number: int) -> None:
        self.counts[how] = self.counts.get(how, 0) + number
        if not self.counts[how]:
            del self.counts[how]

    @property
    def calls(self) -> dict[str, int]:
        """How many calls each rung has run, and how many the plain loop, looked at or not."""
        plain = self.counts.get("plain", 0) + self.schedule.skipped
        return {**self.counts, "plain": plain} if plain else dict(self.counts)
