"""`[m(x) for m in models]` over modules of one architecture: lanes of one graph, as the routers run them.

The members keep their parameters, which are stacked at each call, so that a number changed by whichever road
is seen; what their Python reads is guarded by the routers' `ModuleGuard`. Nothing here keeps a member alive.
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
from ..proof.class_tables import NAMESPACES, PYTORCH, TENSORS, Behaviour
from ..proof.guards import bare
from ..work import Bail, Work
from . import eligible, gradients
from .torch_vmap import apart, check_rows
from .trial import examine, finite

NAME = "wide model"
PRICE = 0.05  # seconds: members are captured once the plain loop has taken a second
MOST = 7  # graphs for other looks of a call that are kept beside the latest
CONTEST = 0.2  # seconds for the routers' contest, in training: a site does not see what backward takes
# Operators go straight to their kernels, past what notes gradients (nobody wants them), views and writes.
_below_autograd: Any = getattr(torch._C, "_AutoDispatchBelowADInplaceOrView", contextlib.nullcontext)


class Group:
    """Members in the order of the loop, and the lane graphs made of them so far, by the look of a call."""

    def __init__(self, column: int, models: Sequence[nn.Module], gone: Callable[[Any], None]):
        if len({*map(id, models)}) != len(models):
            raise Bail("one module stands in the list twice")
        if not PYTORCH.holds():
            raise Bail("a class or function of PyTorch was replaced")
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
        self.fused: list[tuple[tuple[bool, ...], SameLook, Fused]] = []
        self.saved: dict[Fused, gradients.Saved] = {}
        self.looked = threading.local()  # whether the members are as they were, in this call of a site

    def look(self, columns: Sequence[Any]) -> bool:
        """Are these the members, and has nothing but numbers changed in them?"""
        models = columns[self.column]
        self.looked.holds = False
        with contextlib.suppress(Exception):  # something is gone, or of a kind that nobody has thought of
            self.looked.holds = type(models) in (list, tuple) and self.are(models) and self._hold(models)
        return self.looked.holds

    @property
    def holds(self) -> bool:
        """What the look at the members in this call of a site has found."""
        return getattr(self.looked, "holds", False)

    def are(self, models: Sequence[Any]) -> bool:
        """The very same modules, in the same order?"""
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
        if (
            not self.guard.filled.holds()
        ):  # asked before the guard does, which looks at the tensors themselves
            held = [t for home in self.guard.homes for t in home.values()]
            if not {*map(type, held)} <= eligible.TENSORS:
                return False
        return self.guard.holds()

    def learns(self, inputs: list[Any]) -> bool:
        """Are gradients wanted?"""
        if not torch.is_grad_enabled():
            return False
        return any(map(_learns, self.guard.real)) or any(map(_learns, gradients.all_of(inputs)))

    def find(self, wide: tuple[bool, ...], tensors: list[Tensor]) -> Fused | None:
        """The lane graph for a call that looks like this, if there is one."""
        for known, look, fused in self.fused:
            if wide == known and look.holds(tuple(tensors), {}):
                return fused
        return None

    def build(self, models: Sequence[nn.Module], calls: Calls, seconds: float) -> Fused:
        """The lane graph for calls of this look. Raises `Bail` if there is none."""
        eligible.check([*models, *self.inner])  # there may be overrides by now
        names = [str(i) for i in range(len(models))]
        group = VMapTowerGroup(names, models, WideConfig(tune_seconds=seconds), self.guard)
        group.run_calls(tuple(range(len(models))), calls)
        route, group.latest = group.latest, None
        group.routes.clear()  # they hold the group, and that holds the members
        if route is None or route.fused is None:
            raise Bail("no lanes" if route is None else route.verdict.why)
        look = SameLook(tuple(calls.call.tensors), {})
        self.fused = [(calls.call.wide, look, route.fused), *self.fused[:MOST]]
        self.saved.clear()
        self.guard.holds()  # once, so that no later call pays for what it prepares
        return route.fused


def able(work: Work) -> bool:
    """The body is `m(...)` of a loop variable that runs over distinct modules of one class."""
    if work.cond is not None or work.events or work.site.config.exact or not TENSORS.holds():
        return False
    memory = work.plan.memory
    if "members" not in memory:
        memory["members"] = _members(work)
    return memory["members"] is not None and isinstance(
        work.items.columns[memory["members"].column], (list, tuple)
    )


class Members(NamedTuple):
    """Of a body `m(a, b)`: which column of items the modules are, and where each argument comes from: its
    place among the columns, or (not wide) among the cells of the body, which all members share."""

    column: int
    places: list[int]
    wide: tuple[bool, ...]


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
    """All members' outputs by one call of their lanes. Raises `Bail`."""
    members: Members = work.plan.memory["members"]
    models, wide, inputs = work.items.columns[members.column], members.wide, _inputs(work, members)
    group = work.plan.memory.get("wide")
    if group is None or not group.holds:
        group = _new_group(work, models)
    learns = group.learns(inputs)
    examine(work, learns)

    def gather() -> list[Tensor]:
        return [torch.stack(list(x)) if w else x for x, w in zip(inputs, wide, strict=True)]

    with warnings.catch_warnings(action="ignore") if work.new else contextlib.nullcontext():
        # Members that warn stay plain, as the trial of one tells; warnings of capturing are nobody's concern.
        try:
            tensors = gather()
            fused = group.find(wide, tensors)
            if fused is None:
                contest = CONTEST if learns and work.site.config.measure else 0.0
                fused = group.build(models, _calls(inputs, tensors, wide, gather), contest)
            if learns:
                return gradients.run(work, group.guard.real, fused, group.saved, inputs, wide, gather)
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
    work.plan.costs.of(NAME).signatures.clear()  # what was seen of other members says nothing of these
    work.new = True
    if not group.look(work.items.columns):
        raise Bail("members that cannot be watched")
    return group


def _forget(plan: Any) -> Callable[[Any], None]:
    """For when a member is gone: nobody can call them all again, so what is kept for them goes too."""
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
    """The arguments of the call: each a tensor, or a list or stack with one for each member."""
    found = []
    for place, wide in zip(members.places, members.wide, strict=True):
        x: Any = work.items.columns[place] if wide else work.body.__closure__[place].cell_contents
        if type(x) is not Tensor and not (wide and type(x) is list and {*map(type, x)} == {Tensor}):
            raise Bail("arguments other than tensors")
        _check_alike(gradients.all_of([x]))
        found.append(x)
    return found


def _check_alike(tensors: list[Tensor]) -> None:
    """Stacked, tensors of several types would become one type, in which no member alone would compute."""
    first = tensors[0]
    if len(tensors) > 1 and len(set(map(_look, tensors))) > 1:  # devices and shapes are seen by stacking
        raise Bail("tensors of different types or layouts")
    if first.layout is not torch.strided or first.is_nested:
        raise Bail("tensors that are sparse or nested")
    check_rows(tensors)


_look = operator.attrgetter("dtype", "layout", "requires_grad")
_learns = operator.attrgetter("requires_grad")
