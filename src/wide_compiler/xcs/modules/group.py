"""The rung "wide model": `[m(x) for m in models]` over modules of one architecture, as lanes of one graph.

The members keep their parameters, which are stacked at each call, so that any change of values is seen. What
their Python code reads is guarded by `ModuleGuard`. Nothing here keeps a member alive.
"""

import ast
import contextlib
import operator
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ... import _tree
from ...config import WideConfig
from ...global_hooks import foreign_hooks
from ...guards import ModuleGuard
from ...guards.tensors import TableGuard
from ...model.program import Call
from ...routers.calls import Calls, SameLook
from ...routers.fused_lanes import Fused
from ...routers.tower_group import VMapTowerGroup
from ..exceptions import raise_interrupt
from ..proof.class_tables import NAMESPACES, PATCHED, PYTORCH, TENSORS, Behaviour
from ..proof.guards import bare
from ..work import Bail, Work
from . import eligible, gradients
from .torch_vmap import apart, check_alike
from .trial import examine, finite

NAME = "wide model"
PRICE = 0.04  # seconds; members are captured once the plain loop has taken a second in total
MOST = 7  # maximum number of graphs for other signatures kept beside the latest
CONTEST = 0.2  # seconds for the routers' measurement in training, since a site cannot time backward
# Calls kernels below autograd's bookkeeping of gradients, views and in-place writes, where no gradient is
# needed.
_below_autograd: Any = getattr(torch._C, "_AutoDispatchBelowADInplaceOrView", contextlib.nullcontext)


class Group:
    """The members in loop order, and the lane graphs made from them, by signature of the call."""

    def __init__(self, column: int, models: Sequence[nn.Module], gone: Callable[[Any], None]):
        if len({*map(id, models)}) != len(models):
            raise Bail("the same module occurs twice in the list")
        if not PYTORCH.holds():
            raise Bail(PATCHED)
        seen = {*map(id, models)}
        children = [c for m in models for c in vars(m)["_modules"].values() if c is not None]
        self.inner = [module for child in children for module in eligible.walk(child, seen)]
        modules = [*models, *self.inner]
        eligible.check(modules)
        self.column = column
        self.models = [weakref.ref(model, gone) for model in models]
        self.kinds, self.tables = [*map(type, modules)], [*map(vars, modules)]
        self.behaviour = Behaviour(set(self.kinds), NAMESPACES)
        self.written = TableGuard(self.tables)
        self.guard = ModuleGuard(models)
        self.fused: list[tuple[SameLook, Fused]] = []
        self.saved: dict[Fused, gradients.SavedTensors] = {}
        self.looked = threading.local()  # per thread: whether the members were unchanged at the last `look`

    def look(self, columns: Sequence[Any]) -> bool:
        """Return whether these are the members and only tensor values have changed; kept in `holds`."""
        models = columns[self.column]
        self.looked.holds = False
        with contextlib.suppress(Exception):  # a member was deleted, or has an unsupported type
            self.looked.holds = type(models) in (list, tuple) and self.are(models) and self._hold(models)
        return self.looked.holds

    @property
    def holds(self) -> bool:
        """The result of the last `look` in this thread."""
        return getattr(self.looked, "holds", False)

    def are(self, models: Sequence[Any]) -> bool:
        """Return whether these are the same modules in the same order."""
        own = self.models
        return len(models) == len(own) and all(map(operator.is_, models, map(operator.call, own)))

    def _hold(self, models: Sequence[nn.Module]) -> bool:
        modules = [*models, *self.inner]
        if [*map(type, modules)] != self.kinds or foreign_hooks() or not self.behaviour.holds():
            return False
        if not all(map(operator.is_, map(vars, modules), self.tables)):
            return False
        if not self.written.holds():
            self.written.remember()
            if not all(bare(module) for module in modules):
                self.written.versions = []
                return False
        if not self.guard.filled.holds():  # checked first, since the guard reads the tensors themselves
            held = [t for home in self.guard.homes for t in home.values()]
            if not {*map(type, held)} <= eligible.TENSORS:
                return False
        return self.guard.holds()

    def find(self, tensors: list[Tensor]) -> Fused | None:
        """Return the lane graph for a call with these tensors, or None."""
        return next((fused for look, fused in self.fused if look.holds(tuple(tensors), {})), None)

    def build(self, models: Sequence[nn.Module], calls: Calls, seconds: float) -> Fused:
        """Build the lane graph for calls like this one. Raises `Bail` if that is not possible."""
        eligible.check([*models, *self.inner])  # overrides may have been added since
        names = [str(i) for i in range(len(models))]
        group = VMapTowerGroup(names, models, WideConfig(tune_seconds=seconds), self.guard)
        group.run_calls(tuple(range(len(models))), calls)
        route, group.latest = group.latest, None
        group.routes.clear()  # routes refer to the group, which keeps the members alive
        if route is None or route.fused is None:
            raise Bail("no lane graph was built" if route is None else route.verdict.why)
        look = SameLook(tuple(calls.call.tensors), {})
        self.fused = [(look, route.fused), *self.fused[:MOST]]
        self.saved.clear()
        self.guard.holds()  # prepares the guard now, so that later calls are fast
        return route.fused


def able(work: Work) -> bool:
    """Return whether the body is `m(...)` of a loop variable over distinct modules of one class."""
    if work.cond is not None or work.events or work.site.config.exact or not TENSORS.holds():
        return False
    memory = work.plan.memory
    if "members" not in memory:
        memory["members"] = _members(work)
    members = memory["members"]
    return members is not None and isinstance(work.items.columns[members.column], (list, tuple))


class Members(NamedTuple):
    """The parts of a body `m(a, b)`."""

    column: int  # the column of items with the modules
    places: list[int]  # by argument: its column if wide, else its index among the closure cells of the body
    wide: tuple[bool, ...]  # by argument: whether it differs between members


def _members(work: Work) -> Members | None:
    body = work.site.text.bodies.get("body")
    match body:
        case ast.Lambda(body=ast.Call(ast.Name(called), [_, *_] as args, [])):
            names, free = [p.arg for p in body.args.args], work.body.__code__.co_freevars
            given = [a.id if isinstance(a, ast.Name) else "" for a in args]
            known = all(name in names or name in free for name in given)
            if known and called in names and called not in given:
                column = names.index(called)
                if isinstance(work.items.columns[column][0], nn.Module):
                    places = [names.index(name) if name in names else free.index(name) for name in given]
                    return Members(column, places, tuple(name in names for name in given))
    return None


def widened(work: Work) -> list[Any]:
    """Return the outputs of all members from one call of their lanes. Raises `Bail`."""
    members: Members = work.plan.memory["members"]
    models, wide, inputs = work.items.columns[members.column], members.wide, _inputs(work, members)
    group = work.plan.memory.get("wide")
    if group is None or not group.holds:
        group = _new_group(work, models)
    tensors = [*group.guard.real, *gradients.all_of(inputs)]
    learns = torch.is_grad_enabled() and any(map(_learns, tensors))
    examine(work, learns)

    def gather() -> list[Tensor]:
        return [torch.stack(list(x)) if w else x for x, w in zip(inputs, wide, strict=True)]

    with warnings.catch_warnings(action="ignore") if work.new else contextlib.nullcontext():
        # `examine` rejects members that warn, so only warnings of the capture are hidden here.
        try:
            tensors = gather()
            fused = group.find(tensors)
            if fused is None:
                contest = CONTEST if learns and work.site.config.measure else 0.0
                fused = group.build(models, _calls(inputs, tensors, wide, gather), contest)
            if learns:
                return gradients.run(work, group, fused, inputs, wide, gather)
            with _below_autograd():
                out = fused.stacked(tensors)
        except Exception as error:
            raise_interrupt(error)
            raise Bail(f"{type(error).__name__}: {error}") from None
    finite(out if type(out) is tuple else (out,))
    return apart(out, len(models))


def _new_group(work: Work, models: Sequence[nn.Module]) -> Group:
    memory = work.plan.memory
    memory.pop("wide", None)
    group = memory["wide"] = Group(memory["members"].column, models, _forget(work.plan))
    work.plan.costs.of(NAME).signatures.clear()  # they were compared with other members
    work.new = True
    if not group.look(work.items.columns):
        raise Bail("changes of the members cannot be detected")
    return group


def _forget(plan: Any) -> Callable[[Any], None]:
    """Return a callback for the deletion of a member, which drops the group: it can never be called again."""
    held = weakref.ref(plan)

    def gone(member: Any) -> None:
        plan = held()
        memory = {} if plan is None else plan.memory
        if "wide" in memory and member in memory["wide"].models:
            memory.pop("wide", None)

    return gone


def _calls(inputs: list[Any], tensors: list[Tensor], wide: tuple[bool, ...], gather: Any) -> Calls:
    def for_lane(lane: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return tuple(x[lane] if w else x for x, w in zip(inputs, wide, strict=True)), {}

    _, spec = _tree.flatten(for_lane(0))
    call = Call(list(tensors), spec, wide, _tree.signature((tuple(tensors), {})))
    return Calls(call, for_lane, gradients.all_of(inputs), gather)


def _inputs(work: Work, members: Members) -> list[Any]:
    """Return the arguments of the call: each a tensor, or a list or stack of one tensor per member."""
    found = []
    for place, wide in zip(members.places, members.wide, strict=True):
        x: Any = work.items.columns[place] if wide else work.body.__closure__[place].cell_contents
        if type(x) is not Tensor and not (wide and type(x) is list and {*map(type, x)} == {Tensor}):
            raise Bail("arguments other than tensors")
        check_alike(gradients.all_of([x]))
        found.append(x)
    return found


_learns = operator.attrgetter("requires_grad")
