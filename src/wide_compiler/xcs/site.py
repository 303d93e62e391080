"""A site at run time: is it worth looking at this call, who takes it, and putting together what comes
back."""

import builtins
import itertools
import operator
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from .items import Blocks, Items, items_of, made
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
        self.declined = 0
        self.analysed = 0
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
        self.on = no  # recursion runs as written
        try:
            items = self._items(source, expand, plain)
            if items is None:
                return plain(made(source))
            error = None
            try:
                values = self._values(items, body, cond)
            except Failed as failure:
                error = self._as_raised_here(failure.error)
            if error is not None:
                raise error  # out here, so that it carries no context of ours
            if type(values) is Miss:
                return self._finish_plainly(values, items, source, plain, expand)
            return self._built(values)
        finally:
            self.on = self.ready

    def loop(self, source: Any, body: Any, containers: tuple, totals: tuple, *makers: Any) -> list[Any]:
        """A loop that fills things. Gives, last to first: each new total, and what is left to iterate
        over."""
        self.on = no
        try:
            unhandled = [made, *reversed(totals)]
            wrong = not all(type(t) in IMMUTABLE_TOTALS for t in totals)
            wrong = wrong or not all(any(m is kind for kind in (list, set, dict)) for m in makers)
            items = None if wrong else items_of(source, self.text.shape)
            kinds = {"append": list, "add": set, "setitem": dict}
            filled = [s for s in self.text.sinks if s.kind != "accumulate"]
            if items is None or any(
                type(c) is not kinds[s.kind] for c, s in zip(containers, filled, strict=True)
            ):
                unhandled[0] = made(source)
                return unhandled
            rest: Iterable[Any] = ()
            try:
                values = self._values(items, body, None)
            except Failed as failure:
                values, rest = failure.values, _raises(failure.error)
            if type(values) is Miss:
                rest = items.rest(values.done) if values.done else made(source)
                values = values.values
            running = list(totals)
            try:
                self._fill(values, containers, running)
            except Exception as error:
                rest = _raises(error)
            return [rest, *reversed(running)]
        finally:
            self.on = self.ready

    def start(self, *thunks: Any) -> Started | None:
        """Independent statements: begin them together, or give None to run them as written."""
        self.on = no
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

    def _items(self, source: Any, expand: Any, plain: Any) -> Items | None:
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

    def _values(self, items: Items, body: Any, cond: Any) -> Any:
        if items.n < 2:
            return Miss()
        functions = {"body": body} if cond is None else {"body": body, "cond": cond}
        plan = self._plan(functions, self.text.bodies, items.columns)
        if plan.declined:
            self._decline(plan)
            return Miss()
        events = self.text.kind == "loop" and not self.text.single
        work = Work(self, plan, items, body, cond, events)
        values = plan.strategy.run(work)
        if isinstance(values, Miss):
            self._note("plain")
        elif self.config.checking:
            self._check(work, values)
        return values

    def _plan(self, functions: dict[str, Any], nodes: dict[str, Any], columns: Any) -> Plan:
        for plan in self.plans:
            if plan.bodies == functions.keys() and plan.guards.hold(functions, columns):
                return plan
        self.analysed += 1
        if (
            self.analysed > PLANS and self.config.measure
        ):  # ever other objects: looking costs more than it gives
            self.ready = after(min(50 * 2 ** (self.analysed - PLANS), 1_000_000))
        plan = make_plan(self, functions, nodes, columns)
        self.plans = [plan, *self.plans[: PLANS - 1]]
        return plan

    def _decline(self, plan: Plan) -> None:
        """Not proven: the text runs as written, and is looked at again ever more rarely."""
        self._note("plain")
        self.why = plan.reason
        self.declined += 1
        if self.config.measure:
            self.ready = after(min(100 * 2**self.declined, 1_000_000))

    def _note(self, rung: str) -> None:
        self.counts[rung] = self.counts.get(rung, 0) + 1

    def took(self, rung: str) -> None:
        """A rung has run a whole call."""
        self._note(rung)
        self.why = ""

    # Putting together.

    def _finish_plainly(self, miss: Miss, items: Items, source: Any, plain: Any, expand: Any) -> Any:
        if not miss.done or expand is not None:
            return plain(made(source))
        rest = plain(items.rest(miss.done))
        if self.text.kind == "generator":
            return itertools.chain(miss.values, rest)
        return [*miss.values, *rest]

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
