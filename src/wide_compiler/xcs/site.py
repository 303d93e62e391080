"""A site at run time: is it worth looking at this call, who takes it, and putting together what comes
back."""

import builtins
import itertools
import operator
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from .items import Blocks, Items, items_of, made
from .ledger import clock
from .oracle import same
from .plan import Plan, make_plan
from .rewrite import SiteText
from .sites import SHORT_CIRCUIT
from .together import Started, start
from .work import Failed, Miss, Work

if TYPE_CHECKING:
    from .config import Config
    from .jit import Runtime

PLANS = 4
INLINED = sys.version_info >= (3, 12)
IMMUTABLE_TOTALS = (int, float, complex, str, bool)
OPERATORS = {
    "Add": operator.iadd, "Sub": operator.isub, "Mult": operator.imul, "Div": operator.itruediv,
    "FloorDiv": operator.ifloordiv, "Mod": operator.imod, "Pow": operator.ipow, "BitAnd": operator.iand,
    "BitOr": operator.ior, "BitXor": operator.ixor, "LShift": operator.ilshift, "RShift": operator.irshift,
    "MatMult": operator.imatmul,
}  # fmt: skip
yes = itertools.repeat(True).__next__
no = itertools.repeat(False).__next__


def after(calls: int) -> Callable[[], bool]:
    """False for so many calls, then True."""
    return itertools.chain(itertools.repeat(False, calls), itertools.repeat(True)).__next__


class Mismatch(AssertionError):
    """With `check`: a site gave something other than plain Python."""


class Site:
    """One site of one jitted function. `on()` is asked before every call, and costs next to nothing when
    off."""

    def __init__(self, text: SiteText, config: "Config", file: str, runtime: "Runtime"):
        self.text = text
        self.runtime = runtime
        self.config = config
        self.file = file
        self.ready = no if text.reason else yes
        self.on = self.ready
        self.plans: list[Plan] = []
        self.pauses = 0
        self.rested = 0
        self.analysed = 0
        self.looked_over = 0
        self.why = text.reason
        self.counts: dict[str, int] = {}
        self.together: dict[str, Any] = {}

    # The four doors, called by the rewritten text.

    def run(
        self, source: Any, body: Any, plain: Any, cond: Any = None, expand: Any = None, eater: Any = None
    ) -> Any:
        """A comprehension, or a generator that is eaten whole by `eater`, if that is the builtin."""
        if eater is not None and eater is not getattr(builtins, self.text.eater):
            return plain(made(source))
        began = self._enter()
        try:
            items = self._items(source, expand)
            if items is None:
                self._rest(clock() - began, 0.0)
                return self._as_written(plain, made(source))
            error = None
            try:
                values, work = self._values(items, body, cond)
            except Failed as failure:
                error = self._as_raised_here(failure.error)
            if error is not None:
                raise error  # out here, so that it carries no context of ours
            if type(values) is Miss:
                return self._plainly(values, work, items, source, plain, clock() - began)
            built = self._built(values)
            work.took(clock() - began)
            return built
        finally:
            self.on = self.ready

    def loop(self, source: Any, body: Any, containers: tuple, totals: tuple, *makers: Any) -> list[Any]:
        """A loop that fills things. Gives, last to first: each new total, and what is left to do."""
        began = self._enter()
        try:
            items = None
            if self._fillable(containers, totals, makers):
                items = items_of(source, self.text.shape)
            if items is None:
                self._rest(clock() - began, 0.0)
                return [made(source), *reversed(totals)]
            rest: Iterable[Any] = ()
            work = None
            try:
                values, work = self._values(items, body, None)
            except Failed as failure:
                values, rest = failure.values, _raises(failure.error)
            if type(values) is Miss:
                self._rest(clock() - began, work.plan.ledger.plain(items.n) if work else 0.0)
                rest = items.rest(values.done) if values.done else made(source)
                values, work = values.values, None
            running = list(totals)
            try:
                self._fill(values, containers, running)
            except Exception as error:
                rest = _raises(error)
            if work is not None:
                work.took(clock() - began)
            return [rest, *reversed(running)]
        finally:
            self.on = self.ready

    def _fillable(self, containers: tuple, totals: tuple, makers: tuple) -> bool:
        """Exact lists, sets and dicts made by the builtins, and totals that cannot be changed in place."""
        kinds = {"append": list, "add": set, "setitem": dict}
        filled = [s for s in self.text.sinks if s.kind != "accumulate"]
        return (
            all(type(t) in IMMUTABLE_TOTALS for t in totals)
            and all(any(m is kind for kind in (list, set, dict)) for m in makers)
            and all(type(c) is kinds[s.kind] for c, s in zip(containers, filled, strict=True))
        )

    def _enter(self) -> float:
        """Recursion into a site runs as written."""
        self.on = no
        self.ready = yes
        return clock()

    def _rest(self, looked: float, plain: float) -> None:
        """Looking took so long beside the plain loop: next time after so many calls that it costs 2%."""
        self.rested = 0
        if self.config.measure and self.ready is yes:
            new, self.looked_over = self.analysed != self.looked_over, self.analysed
            most = 4 if new else 20_000  # an analysis is done once, and says nothing of later looks
            self.rested = min(int(50 * looked / max(plain, 3e-7)), most)
            self.ready = after(self.rested)

    def start(self, *thunks: Any) -> Started | None:
        """Independent statements: begin them together, or give None to run them as written."""
        self._enter()
        try:
            return start(self, thunks)
        finally:
            self.on = self.ready

    # Lanes handed from one site to the next.

    def keep_blocks(self, rows: list[Any], blocks: list[Any]) -> None:
        """The rows just made are those of a few blocks: the next site need not gather them."""
        if self.text.feeds and self.text.kind == "list":
            self.runtime.blocks.kept = Blocks(rows, blocks)

    def _kept_blocks(self, source: Any) -> Any:
        """The blocks of a list made by the statement before, which nothing can have changed since."""
        kept = getattr(self.runtime.blocks, "kept", None) if self.text.fed else None
        if kept is None or kept.rows is not source:
            return None
        self.runtime.blocks.kept = None
        return kept if len(kept) == kept.bounds[-1][1] else None

    # Deciding.

    def _items(self, source: Any, expand: Any) -> Items | None:
        if expand is None:
            items = items_of(source, self.text.shape)
            kept = self._kept_blocks(source)
            if items is not None and kept is not None:
                items.columns = [kept]
        else:
            items = self._expanded(source, expand)
        if items is None:
            self._note("plain")
            self.why = (
                self.why or "what it loops over is not a list, tuple, range, dict view, array or tensor"
            )
        return items

    def _expanded(self, source: Any, expand: Any) -> Items | None:
        """Several loops in one comprehension: all rounds as tuples, if finding them changes nothing."""
        first = items_of(source, self.text.shape)
        if first is None or first.n == 0:
            return None
        node = self.text.bodies["items"]
        plan = self._plan({"items": expand}, {"items": node}, [source])
        if plan.declined:
            return None
        try:
            rows = expand(made(source))
        except Exception:
            return None  # the plain loop will say so
        if not rows:
            return None
        columns: list[Any] = list(zip(*rows, strict=True))

        def rest(k: int) -> Iterable[Any]:
            raise AssertionError("not asked for")

        return Items(columns, len(rows), rest)

    def _values(self, items: Items, body: Any, cond: Any) -> tuple[Any, Any]:
        """The values of all items, or a `Miss`; and the work, if it came so far that a rung was asked."""
        if items.n < 2:
            return Miss(), None
        functions = {"body": body} if cond is None else {"body": body, "cond": cond}
        plan = self._plan(functions, self.text.bodies, items.columns)
        if plan.declined:
            self._decline(plan)
            return Miss(), None
        events = self.text.kind == "loop" and not self.text.single
        work = Work(self, plan, items, body, cond, events)
        plan.ledger.rested(items.n, self.rested)
        values = plan.strategy.run(work)
        if isinstance(values, Miss):
            self._note("plain")
            if values.raised:
                self._back_off()
        elif self.config.checking:
            self._check(work, values)
        return values, work

    def _plan(self, functions: dict[str, Any], nodes: dict[str, Any], columns: Any) -> Plan:
        for plan in self.plans:
            if plan.holds(functions, columns):
                return plan
        self.analysed += 1
        if self.analysed > PLANS:
            self._back_off()  # ever other objects: looking costs more than it gives
        plan = make_plan(self, functions, nodes, columns)
        self.plans = [plan, *self.plans[: PLANS - 1]]
        return plan

    def _decline(self, plan: Plan) -> None:
        """Not proven: the text runs as written, and is looked at again ever more rarely."""
        self._note("plain")
        self.why = plan.reason
        self._back_off()

    def _back_off(self) -> None:
        """Ever longer pauses: not proven, or an item raised."""
        self.pauses += 1
        if self.config.measure:
            self.ready = after(min(100 * 2**self.pauses, 1_000_000))

    def _note(self, rung: str) -> None:
        self.counts[rung] = self.counts.get(rung, 0) + 1

    def took(self, rung: str) -> None:
        """A rung has run a whole call."""
        self._note(rung)
        self.why = ""

    # Putting together.

    def _plainly(
        self, miss: Miss, work: Work | None, items: Items, source: Any, plain: Any, looked: float
    ) -> Any:
        """The text as written, from where the run time stopped; its time is what rungs are held against."""
        began = clock()
        try:
            if not miss.done:
                built = self._as_written(plain, made(source))
            elif self.text.kind == "generator":
                built = itertools.chain(miss.values, plain(items.rest(miss.done)))
            else:
                built = [*miss.values, *self._as_written(plain, items.rest(miss.done))]
        except BaseException:
            self._back_off()  # looking at loops that raise gains nothing
            raise
        seconds = clock() - began
        if work is not None:
            ledger = work.plan.ledger
            if self.text.kind == "generator":
                seconds = ledger.plain(items.n)  # nothing has run yet
            elif items.n > miss.done:
                ledger.measured(seconds / (items.n - miss.done))
        self._rest(looked, seconds)
        return built

    def _as_written(self, plain: Any, source: Any) -> Any:
        """Run the text. Where Python inlines comprehensions, an unset name is a local one for it."""
        error = None
        try:
            return plain(source)
        except NameError as raised:
            error = self._unset_local(raised, plain) if INLINED else None
            if error is None:
                raise
        raise error

    def _unset_local(self, error: NameError, plain: Any) -> UnboundLocalError | None:
        last = error.__traceback__
        while last is not None and last.tb_next is not None:
            last = last.tb_next
        here = last is not None and last.tb_frame.f_code is plain.__code__
        outer = self.runtime.original.__code__.co_freevars
        own = error.name in plain.__code__.co_freevars and error.name not in outer
        if self.text.kind == "generator" or type(error) is not NameError or not (here and own):
            return None
        return UnboundLocalError(
            f"cannot access local variable {error.name!r} where it is not associated with a value"
        )

    def _built(self, values: list[Any]) -> Any:
        if self.text.kind == "set":
            return set(values)
        return dict(values) if self.text.kind == "dict" else values

    def _fill(self, values: list[Any], containers: tuple, running: list[Any]) -> None:
        """Do what the loop's body would have done with each value, in order; totals are kept in `running`."""
        sinks = self.text.sinks
        filled = iter(containers)
        target = {i: next(filled) for i, s in enumerate(sinks) if s.kind != "accumulate"}
        total = {i: k for k, i in enumerate(i for i, s in enumerate(sinks) if s.kind == "accumulate")}
        if self.text.single and sinks[0].kind == "append":
            target[0].extend(values)
            return
        for value in values:
            index, value = (0, value) if self.text.single else value
            kind = sinks[index].kind
            if kind == "append":
                target[index].append(value)
            elif kind == "add":
                target[index].add(value)
            elif kind == "setitem":
                target[index][value[1]] = value[0]
            else:
                step = OPERATORS[sinks[index].operator.__name__]  # type: ignore[union-attr]
                running[total[index]] = step(running[total[index]], value)

    def _as_raised_here(self, error: BaseException) -> BaseException:
        if self.text.kind == "generator" and isinstance(error, StopIteration):
            stopped = RuntimeError("generator raised StopIteration")
            stopped.__cause__ = error
            return stopped
        return error

    def _check(self, work: Work, values: list[Any]) -> None:
        plain = [v for i in range(work.items.n) for v in work.one(i)]
        if not same(plain, values, rtol=work.plan.rtol):
            raise Mismatch(
                f"{self.file}:{self.text.line}: {self.text.text}: plain Python gives {plain!r:.200}, "
                f"{work.plan.last} gives {values!r:.200}"
            )

    @property
    def short_circuits(self) -> bool:
        return self.text.eater in SHORT_CIRCUIT


def _raises(error: BaseException) -> Iterable[Any]:
    """An iterable that raises at once: after the totals of the items before are stored."""
    raise error
    yield
