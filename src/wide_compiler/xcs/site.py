"""A site at run time: what the rewritten text asks, and what goes back to it.

Whatever goes wrong in here that is not an error of the user's code means that the text runs as written, once:
nothing has run by then but what is pure.
"""

import builtins
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..errors import WideError
from . import timing
from .call import Call, Timed, counted
from .decisions import Decisions
from .filling import carried_on, fill, fillable, inert, rehearsed
from .interrupts import raise_interrupt
from .items import Blocks, Items, items_of
from .lanes.lane import Diverge
from .ledger import Ledger
from .parallel.together import Started, Statements
from .proof.effects import Effect
from .raising import raise_here, raises
from .surroundings import in_the_way
from .text.site_text import SiteText
from .work import Bail, Failed, Miss, Work

if TYPE_CHECKING:
    from .config import Config
    from .jit import Runtime

OURS = (Exception, Bail, Diverge)  # no interrupts, and no exits
WORTH_A_SWITCH = 1e-2  # seconds that the rest of a loop must take before a rung is asked to take it over


class Site(Decisions):
    """One site of one jitted function. `on()` is asked before every call, and costs next to nothing when
    off."""

    def __init__(self, text: SiteText, config: "Config", file: str, runtime: "Runtime"):
        super().__init__(text, config)
        self.runtime = runtime
        self.file = file
        self.accounted = 0  # calls that were not looked at, and whose time was added up
        self.on = self.pace.ready

    # Called by the rewritten text.

    def run(
        self,
        source: Any,
        body: Any,
        cond: Any = None,
        expand: Any = None,
        consumer: Any = None,
        *options: Any,
        before: list[Blocks] | None = None,
        after: list[Blocks] | None = None,
    ) -> Call:
        """A comprehension, or a generator that a builtin consumes whole, if `consumer` is that builtin.
        Blocks of what it loops over lie in `before`, those of what it makes are put into `after`."""
        call = Call(self, source)
        try:
            if not self._enter():
                return call
            call.looked = timing.now()
            reason = self._unusual(consumer, options) or in_the_way()
            if reason:
                self.went_plain(reason)
            else:
                self._decide(call, source, body, cond, expand, before, after)
        except Failed as failure:
            call.done, call.values, call.error = True, failure.values, failure.error
        except WideError:
            raise
        except OURS as error:
            raise_interrupt(error)
            call.forget()
            self.broke(error)
        finally:
            if call.items is None:
                self._leave()
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
        call = Call(self, source)
        running, rest = list(totals), None
        try:
            if not self._enter():
                return [call.rest(), *reversed(totals)]
            call.looked = timing.now()
            rest = self._decide_loop(call, source, body, containers, running, makers)
        except WideError:
            raise
        except OURS as error:
            raise_interrupt(error)
            call.forget()
            self.broke(error)
            running = list(totals)
        finally:
            if call.items is None:
                self._leave()
        return [call.rest() if rest is None else rest, *reversed(running)]

    def start(self, *thunks: Any) -> Started | Timed | None:
        """Independent statements: begin them together, or give None to run them as written."""
        try:
            if not self._enter():
                return None
            reason = in_the_way()
            if reason:
                self.went_plain(reason)
                return None
            functions = {f"thunk {i}": thunk for i, thunk in enumerate(thunks)}
            plan, _ = self.plan_for(functions, self.text.bodies, ())
            if plan is None:
                self.went_plain("there is too little to gain so far")
                return Timed(self)
            if plan.declined:
                self.decline(plan)
                return None
            return plan.strategy.start(Statements(self, plan, thunks))
        except WideError:
            raise
        except OURS as error:
            raise_interrupt(error)
            self.broke(error)
            return None
        finally:
            self._leave()

    # Deciding.

    def _enter(self) -> bool:
        """Is this call looked at?"""
        looked = self.pace.enter()
        self.on = self.pace.ready
        if looked:
            skipped = self.pace.skipped
            self._spent(
                self.latest * (skipped - self.accounted), self.plans[0].ledger if self.plans else None
            )
            self.accounted = skipped
        return looked

    def _leave(self) -> None:
        self.pace.leave()
        self.on = self.pace.ready

    def _spent(self, seconds: float, ledger: Ledger | None) -> None:
        self.spent += seconds
        if ledger is not None:
            ledger.went_plain(seconds)

    def _unusual(self, consumer: Any, options: tuple[Any, ...]) -> str:
        if consumer is not None and consumer is not getattr(builtins, self.text.eater):
            return f"{self.text.eater} is not the builtin here"
        if options and not inert(self.text.eater, options):
            return "what is done with each item may change something before the next one"
        return ""

    def _decide(
        self, call: Call, source: Any, body: Any, cond: Any, expand: Any, before: Any, after: Any
    ) -> None:
        if expand is not None and not self.may_analyse():
            items = items_of(source, self.text.shape)
            if items is not None:
                self.went_plain("there is too little to gain so far")
                call.watch(items, self.first)
            return
        items = self.items_in(source, expand, before)
        if items is None:
            self.pace.rest(timing.now() - call.looked, 0.0)
            return
        if items.n < 2:
            self.went_plain("there is nothing to run beside another")
            return
        values, work = self.values(items, body, cond, after)
        seconds = timing.now() - call.looked
        if type(values) is not Miss:
            assert work is not None
            work.took(seconds)
            call.done = True
            call.values = counted(values, work.plan.ledger) if self.short_circuits else values
            return
        call.looked = seconds - (work.wasted if work is not None else 0.0)
        if self.pace.measure:
            call.watch(items, self.first if work is None else work.plan.ledger)
            if not self.plans and expand is None and not self.short_circuits:
                call.may_switch(body, cond)

    def _decide_loop(
        self, call: Call, source: Any, body: Any, containers: tuple, running: list[Any], makers: tuple
    ) -> Iterable[Any] | None:
        """What is left to do, or None for all of it; new totals are in `running`."""
        reason = in_the_way()
        if reason:
            self.went_plain(reason)
            return None
        items = None
        if fillable(self.text, containers, tuple(running), makers):
            items = items_of(source, self.text.shape)
        if items is None:
            self.went_plain("it fills, or runs over, something that may run code of its own")
            self.pace.rest(timing.now() - call.looked, 0.0)
            return None
        if items.n < 2:
            self.went_plain("there is nothing to run beside another")
            return None
        rest: Iterable[Any] = ()
        work: Work | None = None
        try:
            values, work = self.values(items, body, None)
        except Failed as failure:
            values, rest = failure.values, raises(failure.error)
        seconds = timing.now() - call.looked
        if type(values) is Miss:
            call.looked = seconds - (work.wasted if work is not None else 0.0)
            if self.pace.measure:
                call.watch(items, self.first if work is None else work.plan.ledger)
                if not self.plans and not running:
                    call.may_switch(body, None)
                    call.containers = containers
            return None
        # Where a `try` of the body would see an error of filling, what is pure can run again as written.
        again = self.text.attempted and work is not None and work.plan.effect is Effect.PURE
        if again and not rehearsed(self.text, values, containers, tuple(running)):
            self.pace.back_off()
            return None
        if self.text.sinks[0].kind == "carried":
            after = carried_on(values, running, makers[-1])
            if after is None:
                self.pace.back_off()
                return None
            running[:], values = after, []
        if work is not None:
            work.took(seconds)  # before anything is filled: a fault of ours must not fill it twice
        try:
            fill(self.text, values, containers, running)
        except Exception as error:
            return raises(error)
        return rest

    # While the text runs as written.

    def take_over(self, call: Call, items: Items, done: int, seconds: float, idle: float) -> bool:
        """A loop that is not analysed yet has come to so many items: does a rung take the rest?"""
        if seconds / done * (items.n - done) < WORTH_A_SWITCH:
            return False
        values: Any
        error: BaseException | None = None
        before, self.spent = self.spent, self.spent + seconds
        try:
            self.first.measured(seconds, idle, done)
            values = self._rest_by_rung(call, items, done) if self.may_analyse() else Miss()
        except Failed as failure:
            values, error = failure.values, failure.error
        except OURS as fault:
            raise_interrupt(fault)
            self.broke(fault)
            values = Miss()
        self.spent = before
        if type(values) is Miss:
            return False
        call.ledger = None  # this was no plain loop
        if call.containers is not None:
            fill(self.text, values, call.containers, [])
        else:
            call.late = values
        if error is not None:
            raise_here(error)
        return True

    def _rest_by_rung(self, call: Call, items: Items, done: int) -> Any:
        body, cond, call.body = call.body, call.cond, None
        self.counts["plain"] -= 1  # as which this call was counted
        if not self.counts["plain"]:
            del self.counts["plain"]
        remaining = Items([column[done:] for column in items.columns], items.n - done)
        return self.values(remaining, body, cond)[0]

    def ran_plainly(self, call: Call, n: int, done: int, seconds: float, idle: float, ended: bool) -> None:
        """The loop ran as written, to its end or as far as somebody wanted it."""
        ledger, call.ledger = call.ledger, None
        try:
            if ledger is not None:
                if self.short_circuits:
                    ledger.stops_at(max(done, 1) / n)
                    ledger.measured(seconds, idle, max(done, 1))
                elif ended:
                    ledger.measured(seconds, idle, n)
                else:
                    self.pace.back_off()  # it raised: looking at such loops gains nothing
                self.latest = seconds
                self._spent(seconds, ledger)
                self.pace.rest(call.looked, seconds)
        except OURS as error:
            self.broke(error)
        self._leave()
