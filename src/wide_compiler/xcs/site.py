"""A site at run time: the doors by which the rewritten text comes in, and what goes back to it."""

import builtins
import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..measure.clock import now
from .decisions import Decisions
from .filling import built, fill, fillable, inert, rehearsed
from .items import Blocks, Items, items_of, made
from .pace import no
from .parallel.together import Started, Statements
from .proof.effects import Effect
from .raising import as_written, raise_here, raises, then_raises
from .surroundings import in_the_way
from .text.site_text import SiteText
from .work import Failed, Miss, Work

if TYPE_CHECKING:
    from .config import Config
    from .jit import Runtime


class Site(Decisions):
    """One site of one jitted function. `on()` is asked before every call, and costs next to nothing when
    off."""

    def __init__(self, text: SiteText, config: "Config", file: str, runtime: "Runtime"):
        super().__init__(text, config)
        self.runtime = runtime
        self.file = file
        self.on = self.pace.ready

    # The doors, called by the rewritten text.

    def run(
        self,
        source: Any,
        body: Any,
        plain: Any,
        cond: Any = None,
        expand: Any = None,
        eater: Any = None,
        *options: Any,
        before: list[Blocks] | None = None,
        after: list[Blocks] | None = None,
    ) -> Any:
        """A comprehension, or a generator that is eaten whole by `eater`, if that is the builtin. Blocks of
        what it loops over lie in `before`, those of what it makes are put into `after`, for the next site."""
        if eater is not None and eater is not getattr(builtins, self.text.eater):
            self.went_plain(f"{self.text.eater} is not the builtin here")
            return plain(made(source))
        if options and not inert(self.text.eater, options):
            self.went_plain("what is done with each item may change something before the next one")
            return plain(made(source))
        began = self._enter()
        try:
            items = self.items_in(source, expand, before)
            if items is None:
                self.pace.rest(now() - began, 0.0)
                return as_written(self.text, self.runtime.original, plain, made(source))
            error = None
            try:
                values, work = self.values(items, body, cond, after)
            except Failed as failure:
                values, error = failure.values, failure.error
            if error is not None:  # out here, so that it carries no context of ours
                if self.text.kind == "generator":
                    return then_raises(values, error)
                built(self.text, values)  # keys that cannot be hashed come first
                raise_here(error)
            if type(values) is Miss:
                return self._plainly(values, work, items, source, plain, now() - began)
            whole = built(self.text, values)
            work.took(now() - began)
            return work.plan.ledger.eaten(whole, len(whole)) if self.short_circuits else whole
        finally:
            self.on = self.pace.ready

    def mapped(self, mapper: Any, function: Any, source: Any, body: Any, *rest: Any, **to: Any) -> Any:
        """`map` of a function, eaten whole, if it is the builtin. The function was asked for once, and that
        is what the plain loop takes."""
        if mapper is not map:
            self.went_plain("map is not the builtin here")
            return mapper(function, source)
        return self.run(source, body, lambda items: map(function, items), *rest, **to)

    def loop(self, source: Any, body: Any, containers: tuple, totals: tuple, *makers: Any) -> list[Any]:
        """A loop that fills things. Gives, last to first: each new total, and what is left to do."""
        began = self._enter()
        try:
            items = None
            if fillable(self.text, containers, totals, makers):
                items = items_of(source, self.text.shape)
            if items is None:
                self.went_plain("it fills, or runs over, something that may run code of its own")
                self.pace.rest(now() - began, 0.0)
                return [made(source), *reversed(totals)]
            rest: Iterable[Any] = ()
            work = None
            try:
                values, work = self.values(items, body, None)
            except Failed as failure:
                values, rest = failure.values, raises(failure.error)
            # Where a `try` of the body would see an error of filling, what is pure can run again as written.
            again = self.text.attempted and work is not None and work.plan.effect is Effect.PURE
            if type(values) is Miss:
                looked = now() - began - (work.wasted if work else 0.0)
                self.pace.rest(looked, work.plan.ledger.plain(items.n) if work else 0.0)
                rest = items.rest(values.done) if values.done else made(source)
                if work is not None:
                    rest = work.plan.ledger.followed(rest, items.n - values.done, values.done)
                values, work = values.values, None
            if again and not rehearsed(self.text, values, containers, totals):
                self.pace.back_off()
                return [made(source), *reversed(totals)]
            running = list(totals)
            try:
                fill(self.text, values, containers, running)
            except Exception as error:
                rest = raises(error)
            if work is not None:
                work.took(now() - began)
            return [rest, *reversed(running)]
        finally:
            self.on = self.pace.ready

    def _enter(self) -> float:
        """Recursion into a site runs as written."""
        self.on = no
        self.pace.enter()
        return now()

    def start(self, *thunks: Any) -> Started | None:
        """Independent statements: begin them together, or give None to run them as written."""
        self._enter()
        try:
            reason = in_the_way()
            if reason:
                self.went_plain(reason)
                return None
            functions = {f"thunk {i}": thunk for i, thunk in enumerate(thunks)}
            plan, _ = self.plan_for(functions, self.text.bodies, ())
            if plan.declined:
                self.decline(plan)
                return None
            return plan.strategy.start(Statements(self, plan, thunks))
        finally:
            self.on = self.pace.ready

    # Putting together.

    def _plainly(
        self, miss: Miss, work: Work | None, items: Items, source: Any, plain: Any, looked: float
    ) -> Any:
        """The text as written, from where the run time stopped; its time is what rungs are held against."""
        written = self.text, self.runtime.original, plain
        ledger = None if work is None else work.plan.ledger
        watch = (now(), 0.0) if ledger is None else ledger.watch()
        try:
            rest = items.rest(miss.done) if miss.done else made(source)
            if ledger is not None and self.text.kind == "generator" and "items" not in self.text.bodies:
                rest = ledger.followed(rest, items.n - miss.done, miss.done)
            if not miss.done:
                whole = as_written(*written, rest)
            elif self.text.kind == "generator":
                whole = itertools.chain(miss.values, plain(rest))
            else:
                whole = [*miss.values, *as_written(*written, rest)]
        except BaseException:
            self.pace.back_off()  # looking at loops that raise gains nothing
            raise
        if ledger is None:
            seconds = now() - watch[0]
        elif self.text.kind == "generator" or items.n == miss.done:
            seconds = ledger.plain(items.n)  # nothing has run yet
        else:
            seconds = ledger.measured(watch, items.n - miss.done)
        self.pace.rest(looked - (work.wasted if work is not None else 0.0), seconds)
        return whole
