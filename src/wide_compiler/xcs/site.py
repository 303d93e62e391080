"""A site at run time: decides for each execution whether a rung or the original code runs.

If anything fails here that is not an exception of the user's code, the original code runs. At that point only
pure code has run, so nothing is executed twice with side effects.
"""

import builtins
import contextlib
import itertools
import operator
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import WideError
from ..guards.modes import capturing, plain_world
from ..measure import clock
from .call import SiteCall
from .choice import run
from .costs import TOO_LITTLE, Budget, Costs, Schedule
from .exceptions import raise_interrupt
from .items import Items, head_of, items_of
from .lanes.lane import Diverge
from .outputs import carried_on, fill, fillable, inert, rooms
from .plan import Plan, make_plan
from .proof.effects import Effect
from .strategies import least_price, shortest
from .text.site_text import SiteText
from .text.sites import SHORT_CIRCUIT
from .work import Bail, Failed, Miss, Work

if TYPE_CHECKING:
    from .config import Config
    from .jit import Runtime

OURS = (Exception, Bail, Diverge)  # not KeyboardInterrupt and SystemExit
PLANS = 4
# Maximum number of iterations of nested loops in a comprehension, since all of them are listed first.
MOST_ROUNDS = 2**20
TYPICAL = 1e-4  # seconds of a loop that is worth a look: how often empty lists are looked at
WATCHED = 1e-8  # overhead of timing the plain loop, in seconds per item
# Expected by `items_of`.
NO_ITEMS = (
    "its iterable is not an exact list, tuple, range, dict view, array or tensor, or its items do not fit "
    "the loop variables"
)
TRACED = "a debugger, profiler or coverage tool is active"
_monitoring = getattr(sys, "monitoring", None)  # Python 3.12
STOPS_EARLY = "any() and all() stop early, so running all items would waste time"


def in_the_way() -> str:
    """Return why only the original code may run here; '' if there is no reason."""
    monitored = _monitoring is not None and any(map(_monitoring.get_tool, range(6)))
    if sys.gettrace() is not None or sys.getprofile() is not None or monitored:
        return TRACED
    if not plain_world():
        return "a mode or transform of PyTorch is active, such as torch.func.grad or a TorchFunctionMode"
    # Comparing and timing would synchronise with the GPU.
    return "a CUDA graph is being recorded" if capturing() else ""


class Site:
    """One site of a jitted function.

    The rewritten code calls it where `schedule` says so, and is the original code otherwise.
    """

    def __init__(self, text: SiteText, config: "Config", file: str, runtime: "Runtime"):
        self.text, self.config, self.file, self.runtime = text, config, file, runtime
        self.checking: bool | None = None  # read from the environment at the first execution
        self.why = text.reason
        self.schedule = Schedule(config.measure, bool(self.why))
        if text.consumer in SHORT_CIRCUIT:
            self.why = STOPS_EARLY
            self.schedule.pause(10**12)
        self.nested = "items" in text.bodies  # a comprehension with several loops
        self.plans: list[Plan] = []  # proofs for different argument types, the latest first
        self.first = Costs()  # timings of the plain loop before anything is proven
        self.budget = Budget()
        # Seconds of the latest plain execution, and the skipped ones that `budget.spent` includes already.
        self.latest, self.accounted = 0.0, 0
        self.counts: dict[str, int] = {}

    # Called by the rewritten code.

    def run(
        self,
        source: Any,
        body: Any,
        cond: Any = None,
        expand: Any = None,
        consumer: Any = None,
        *options: Any,
    ) -> SiteCall:
        """Run a comprehension, or a generator consumed by a builtin.

        Args:
            source: what it loops over.
            body, cond: functions of the loop variables.
            expand: a function that lists the iterations of nested loops.
            consumer: the object that the builtin's name refers to; `options` are its other arguments.
        """
        call, name, kind = SiteCall(self, source), self.text.consumer, self.text.kind

        def decide() -> None:
            functions = {"body": body} if cond is None else {"body": body, "cond": cond}
            if consumer is not None and consumer is not getattr(builtins, name):
                return self.went_plain(f"the name {name} is not the builtin here")
            if options and not inert(name, options):
                return self.went_plain(f"{name} with these options may run user code between items")
            if expand is not None:
                items = self._expanded(call, expand)
            else:
                items = self._items(call, functions, NO_ITEMS)
            self._decide(call, items, functions)
            if call.done and kind in ("set", "dict"):
                values, call.values = call.values, set() if kind == "set" else {}
                self._put(call, call.values.update, values)

        return self._guarded(call, decide)

    def loop(self, source: Any, body: Any, containers: tuple, totals: tuple, *makers: Any) -> list[Any]:
        """Run a loop that fills containers or totals.

        Returns:
            A list to pop from: the new totals in order, then the items left for the original loop.
        """
        call, running = SiteCall(self, source), list(totals)

        def decide() -> None:
            functions = {"body": body}
            why = "its iterable, or a container that it fills, is not an exact builtin type"
            able = fillable(self.text, containers, totals, makers)
            items = self._items(call, functions, why) if able else self._found(None, why)
            self._decide(call, items, functions)
            if not call.done:
                return
            values = call.values
            if self.text.sinks[0].kind == "carried":
                call.values = ()
                self._put(call, carried_on, values, running, makers[-1])
            else:
                call.values = rooms(containers)
                self._put(call, fill, self.text, values, call.values, running)

        self._guarded(call, decide)
        if not call.done:
            return [call.rest(), *reversed(totals)]
        return [call.fill(containers), *reversed(running)]

    def start(self, *thunks: Any) -> SiteCall:
        """Run independent statements; each is a function without arguments."""
        call, functions = SiteCall(self, None), {f"thunk {i}": thunk for i, thunk in enumerate(thunks)}
        return self._guarded(call, lambda: self._decide(call, Items([thunks], len(thunks)), functions))

    def _guarded(self, call: SiteCall, decide: Callable[[], None]) -> SiteCall:
        """Run `decide`. After an internal error the original code runs, and the error is recorded."""
        try:
            if self.checking is None:
                self.checking = self.config.checking
            self.schedule.enter()
            call.looked, self.budget.missing = clock.now(), 0.0
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
            call.done, call.error, call.costs = False, None, None
            self.broke(error)
        finally:
            if call.costs is None:
                self._leave()
        return call

    def _leave(self) -> None:
        with contextlib.suppress(*OURS):
            self.schedule.leave()

    def _put(self, call: SiteCall, put: Callable[..., None], *given: Any) -> None:
        """Store values in new containers with `put(*given)`.

        If that raises, the exception is stored as the call's error. If the call is pure, the original code
        runs instead and raises the exception itself, so that a `try` in it can handle it.

        Raises:
            Bail: storing failed and the call is pure.
        """
        try:
            put(*given)
        except Exception as refused:
            if call.pure:
                raise Bail(f"storing the results raises {type(refused).__name__}: {refused}") from None
            call.error = refused

    # Decisions.

    def _found(self, items: Items | None, why: str) -> Items | None:
        """Return the items, after recording `why` if there are none."""
        if items is None:
            self.went_plain(why)
        return items

    def _items(self, call: SiteCall, functions: dict[str, Any], why: str) -> Items | None:
        """Return the items, or None; not all of them are looked at before an analysis is worth it."""
        shape, head = self.text.shape, None if self.plans else head_of(call.source)
        first = None if head is None or head[1] < 2 else items_of(head[0], shape)
        if head is not None and first is not None and not self.may_analyse(functions, first.columns):
            self._too_early(call, head[1])
            return None
        return self._found(items_of(call.source, shape), why)

    def _too_early(self, call: SiteCall, n: int) -> None:
        """Time the plain loop of n items, since nothing is proven yet."""
        self.went_plain(TOO_LITTLE)
        call.looked = clock.now() - call.looked
        call.watch(n, self.first)

    def _expanded(self, call: SiteCall, expand: Any) -> Items | None:
        """Return all iterations of nested loops, or None if listing them may have side effects."""
        outer = items_of(call.source, "item")  # whole items, not unpacked
        plan, rows = None, []
        if outer is not None and outer.n:
            plan, _ = self.plan_for({"items": expand}, {"items": self.text.bodies["items"]}, outer.columns)
            if plan is None:  # not proven yet, so the plain loop is timed
                self._too_early(call, outer.n)
                return None
            if not plan.declined:
                try:
                    rows = list(itertools.islice(expand(outer.columns[0]), MOST_ROUNDS + 1))
                except Exception as error:  # the plain loop will raise it
                    raise_interrupt(error)
        if not 0 < len(rows) <= MOST_ROUNDS:
            return self._found(None, plan.reason if plan is not None else NO_ITEMS)
        return Items([list(map(operator.itemgetter(k), rows)) for k in range(len(rows[0]))], len(rows))

    def _decide(self, call: SiteCall, items: Items | None, functions: dict[str, Any]) -> None:
        """Run the items with a rung if one is chosen; otherwise time the plain loop."""
        if items is None:
            if call.costs is None:
                self.schedule.rest(clock.now() - call.looked, 0.0)
            return
        if items.n < 2:
            if not self.plans:  # larger calls of a site that gains are not to be missed
                self.schedule.rest(clock.now() - call.looked, TYPICAL)
            return self.went_plain("it has fewer than two items")
        paid, statements = self.budget.used, self.text.kind == "statements"
        plan, seen = self.plan_for(functions, self.text.bodies, () if statements else items.columns)
        values: list[Any] | Miss = Miss()
        if plan is None:
            self.went_plain(TOO_LITTLE)
        elif plan.declined:
            self.decline(plan.reason)
        elif statements and plan.effect is Effect.PURE:
            self.decline("none of the statements waits for I/O")
        elif self.text.caught and plan.effect is Effect.IO:
            self.went_plain("it fills a container inside a try, which may catch an error of filling it")
        else:
            work = Work(self, plan, items, functions, seen)
            try:
                values = run(work)
            except Failed as failure:
                call.done, call.values, call.error = True, failure.values, failure.error
                return
            if not isinstance(values, Miss):
                work.took(clock.now() - call.looked - (self.budget.used - paid))
                call.done, call.values, call.pure = True, values, plan.effect is Effect.PURE
                return
            self.went_plain()
        call.looked = clock.now() - call.looked - (self.budget.used - paid)
        if self.schedule.measure:
            call.watch(items.n, self.first if plan is None or plan.declined else plan.costs)

    def may_analyse(self, functions: dict[str, Any], columns: Any) -> bool:
        """Return whether an analysis is affordable and the items are long enough for a rung to be faster."""
        if not self.config.measure:
            return True
        short = self.first.recent and self.first.plain_item < shortest(columns, functions)
        # For nested loops, the body is analysed right after the listing of iterations.
        together = self.nested and len(self.plans) == 1 and not self.plans[0].declined
        return not (short and columns) and (together or self.budget.affords(least_price(columns)))

    def plan_for(
        self, functions: dict[str, Any], nodes: dict[str, Any], columns: Any
    ) -> tuple[Plan | None, list[Any] | None]:
        """Return a plan whose guards hold, with the objects they looked up; or a new plan, if affordable."""
        for plan in self.plans:
            seen = plan.holds(functions, columns)
            if seen is not None:
                return plan, seen
        if not self.may_analyse(functions, columns):
            return None, None
        began = clock.now()
        plan = make_plan(self, functions, nodes, columns)
        if not self.nested:
            plan.costs.recent = self.first.recent
        elif "items" not in functions and self.latest:  # the timings are per iteration of the outermost loop
            plan.costs.recent = [self.latest / len(columns[0])]
        self.plans = [plan, *self.plans[: PLANS - 1]]
        self.budget.used += clock.now() - began
        return plan, None

    # Records.

    def ran_plainly(self, costs: Costs, n: int, seconds: float, looked: float) -> None:
        """Record that the original code ran n items in `seconds`, after examining the call for `looked`."""
        try:
            costs.measured(seconds, n)
            self.latest = seconds
            self.budget.spent += seconds
            self.schedule.rest(looked + WATCHED * n, seconds, self.budget.missing)
        except OURS as error:
            self.broke(error)
        self._leave()

    def decline(self, why: str) -> None:
        """Record that the proof failed; the site is examined ever more rarely."""
        self.went_plain(why)
        self.schedule.back_off()

    def broke(self, error: BaseException) -> None:
        """Record an internal error; the original code runs, and `explain` reports the error."""
        what = f"internal error: {type(error).__name__}: {error}"
        self.went_plain(str(error) if type(error) is Bail else what)
        with contextlib.suppress(Exception, Bail):
            self.schedule.back_off()

    def went_plain(self, why: str = "") -> None:
        """Record that the original code ran; `why` is '' if the measurements give the reason."""
        self.counts["plain"] = self.counts.get("plain", 0) + 1
        self.why = why

    def took(self, rung: str) -> None:
        """Record that a rung ran a whole call."""
        self.schedule.gained()
        self.counts[rung] = self.counts.get(rung, 0) + 1
        self.why = ""

    @property
    def calls(self) -> dict[str, int]:
        """Number of calls by rung. 'plain' includes calls that were not examined."""
        plain = self.counts.get("plain", 0) + self.schedule.skipped
        return {**self.counts, "plain": plain} if plain else dict(self.counts)
