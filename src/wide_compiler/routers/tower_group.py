"""VMapTowerGroup: towers of one structure that run as lanes of one graph."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from ..capture import CaptureFailed
from ..config import WideConfig
from ..guards import ModuleGuard
from ..guards.modes import ambient_modes, no_inference_mode, plain_world
from ..model.isolation import no_saved_tensors_hooks
from ..model.program import Call, WideProgram
from ..model.routes import Routes
from .cache_output import CACHE_READ, CacheAsOutput
from .calls import Calls
from .fused_lanes import Fused
from .idle_children import without_children
from .label import labels_told_apart, watch_labels
from .module_lanes import ModuleLanes
from .programs import InSequence, ModulePrograms, some_lanes
from .router_explanation import GroupRow
from .stacked_memory import Memory
from .verdict import Verdict, judge

Lanes = tuple[int, ...]


class VMapTowerGroup:
    """Towers of one structure. They keep their parameters, which are read again at every call.

    A group is valid for the current state of the towers. Its owner guards them with a `ModuleGuard` and makes
    a new group when training flags, attributes, or dtypes and devices of tensors change.
    """

    def __init__(
        self,
        names: Sequence[str],
        towers: Sequence[nn.Module],
        config: WideConfig | None = None,
        guard: ModuleGuard | None = None,
        memory: Memory | None = None,
        idle: frozenset[str] = frozenset(),
    ):
        """`idle`: children that the towers' forward does not use, in which they may differ."""
        self.idle = idle
        self.names, self.towers = tuple(names), tuple(towers)
        self.config = config or WideConfig()
        self.guard, self.memory = guard, memory
        self.programs = ModulePrograms(self.config, {})
        self.routes = Routes()  # a `GroupRoute` by lanes and cache key of a call
        # Smaller groups with their lanes, if the towers' Python leads to different computations.
        self.parts: list[tuple[VMapTowerGroup, Lanes]] = []
        self.latest: GroupRoute | None = None
        self._living: ModuleLanes | None = None
        self._originals: dict[int, Any] = {}
        self.names_count = False  # whether the towers' forward reads their names
        self.fills_caches = False  # whether the towers fill router caches

    def __len__(self) -> int:
        return len(self.towers)

    def __call__(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Run all towers on the same arguments; return a list of their outputs."""
        if self.guard is not None and not self.guard.holds():
            return [tower(*args, **kwargs) for tower in self.towers]  # the towers have changed
        return self.run_calls(tuple(range(len(self))), Calls.shared(args, kwargs))

    @property
    def living(self) -> ModuleLanes:
        if self._living is None:
            self._living = ModuleLanes(self._captured_as())
        return self._living

    def _captured_as(self) -> list[nn.Module]:
        towers = [without_children(tower, self.idle) if self.idle else tower for tower in self.towers]
        if self.idle:  # reads of the copies are attributed to the towers
            pairs = list(zip(towers, self.towers, strict=True))
            self._originals = {id(a): b for a, b in pairs} | {id(vars(a)): vars(b) for a, b in pairs}
        return [CacheAsOutput(tower) if self.fills_caches else tower for tower in towers]

    def run_calls(self, lanes: Lanes, calls: Calls) -> list[Any]:
        """Run some towers, each on its own arguments."""
        if not plain_world():
            return [
                self.towers[lane](*a, **k) for i, lane in enumerate(lanes) for a, k in [calls.for_lane(i)]
            ]
        route = self.route(lanes, calls)
        if route.fused is not None:
            return route.fused(calls.call.tensors)
        return route.in_sequence(calls)

    def route(self, lanes: Lanes, calls: Calls) -> "GroupRoute":
        """Return how these lanes run such a call: found, or built and measured."""
        key = (lanes, *self._key(calls.call))
        route = self.routes.get(key)
        if route is None:
            route = self.routes[key] = self._route(lanes, calls)
        self.latest = route
        return route

    # Building.

    def _key(self, call: Call) -> tuple[Any, ...]:
        return (self._mode(call), tuple(call.member_shapes), call.wide, torch.is_grad_enabled())

    def _mode(self, call: Call) -> tuple[Any, ...]:
        """Return what a capture is specialised on besides shapes. Training flags are covered by the guard."""
        tensors = tuple((t.dtype, t.device, t.requires_grad) for t in call.tensors)
        return (call.signature, tensors, ambient_modes())

    def program(self, call: Call) -> Any:
        key = (self._mode(call), tuple(call.member_shapes), call.wide)
        found: Any = self.programs.find(key)
        return found or self.build(key, call)

    @no_inference_mode()
    def build(self, key: Any, call: Call) -> Any:
        program: Any
        try:
            self._living = None  # read the towers' current state
            living = self.living
        except CaptureFailed as failure:
            return self.programs.keep(key, InSequence(str(failure)))  # type: ignore[arg-type]
        with watch_labels() as reads:
            program = self.programs.build(key, call, living)
        if reads and not self.names_count:
            # A forward reads its tower's name, so towers with other names may compute something else.
            self.names_count = True
            with labels_told_apart():
                self._living = ModuleLanes(self._captured_as())
            self.programs.clear()
            self.routes.clear()
            program = self.programs.build(key, call, self.living)
        if isinstance(program, InSequence) and CACHE_READ in program.why and not self.fills_caches:
            self.fills_caches = True
            self.programs.clear()
            self.programs.effects.clear()
            return self.build(key, call)
        if isinstance(program, InSequence) and program.by_variant and not self.parts:
            self._part()
        if isinstance(program, WideProgram):
            rests_on = program.captured.rests_on
            if self.fills_caches:
                # Caches are filled again by every call and read only inside the graph, so they need no guard.
                rests_on = rests_on.only(lambda read: not read.path.startswith(CACHE_READ))
            if self.idle:
                elsewhere = rests_on.without(self._originals.keys())
                rests_on = elsewhere.joined([rests_on.moved(self._originals)])
            program.captured.rests_on, program.holds = rests_on, rests_on.holds
            if self.guard is not None:
                self.guard.rest_on(rests_on)
        return program

    def _part(self) -> None:
        variants = self.living.skeletons.variant_of_lane
        for variant in sorted(set(variants)):
            members = tuple(i for i, v in enumerate(variants) if v == variant)
            if 1 < len(members) < len(self):
                names, towers = [self.names[i] for i in members], [self.towers[i] for i in members]
                own = (self.config, self.guard, self.memory, self.idle)
                self.parts.append((VMapTowerGroup(names, towers, *own), members))

    @no_saved_tensors_hooks()
    def _route(self, lanes: Lanes, calls: Calls) -> "GroupRoute":
        route = GroupRoute(self, lanes)
        program = self.program(calls.call)
        if isinstance(program, WideProgram):
            fused = Fused(some_lanes(program, lanes, len(self)), self.living, lanes, self.guard, self.memory)
            fused.fills = route.towers if self.fills_caches else None
            fused.wide_inputs = calls.call.wide
            route.program = program
            calls = calls.alone() if calls.alone is not None else calls
            each = [(tower, *calls.for_lane(i)) for i, tower in enumerate(route.towers)]
            sequence = lambda: [tower(*args, **kwargs) for tower, args, kwargs in each]  # noqa: E731
            route.verdict = judge(fused, sequence, calls, self.config)
            route.fused = fused if route.verdict.together else None
        else:
            route.verdict = Verdict(False, program.why)
        return route

    def note(self, lanes: Lanes, program: WideProgram | None, why: str) -> None:
        """Record how these lanes run in a trace, for `explain`."""
        route = self.latest = GroupRoute(self, lanes)
        route.verdict = Verdict(program is not None, why)
        if program is not None:
            route.fused = Fused(program, self.living, lanes)
            route.fused.fills = route.towers if self.fills_caches else None

    def explain(self) -> list[GroupRow]:
        """Return how the towers ran in the last call."""
        if self.latest is None:
            return [GroupRow.of(self.names)]
        return self.latest.explain()


class GroupRoute:
    """How some lanes of a group run calls with one cache key."""

    def __init__(self, group: VMapTowerGroup, lanes: Lanes):
        self.group, self.lanes = group, lanes
        self.towers = [group.towers[lane] for lane in lanes]
        self.fused: Fused | None = None
        self.verdict = Verdict(False, "")
        self.program: WideProgram | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.group.names[lane] for lane in self.lanes)

    def in_sequence(self, calls: Calls) -> list[Any]:
        parts = {positions[0]: (part, inner, positions) for part, inner, positions in self._parts()}
        outputs: dict[int, Any] = {}  # by position among the lanes that run
        for position, tower in enumerate(self.towers):
            if position in parts:
                part, inner, positions = parts[position]
                outputs.update(zip(positions, part.run_calls(inner, calls.some(positions)), strict=True))
            elif position not in outputs:
                args, kwargs = calls.for_lane(position)
                outputs[position] = tower(*args, **kwargs)
        return [outputs[position] for position in range(len(self.lanes))]

    def lane_graphs(self, calls: Calls) -> "Iterator[GroupRoute]":
        """Return the routes by which its lanes run together; the others run by themselves."""
        if self.fused is not None:
            yield self
            return
        for part, inner, positions in self._parts():
            yield from part.route(inner, calls.some(positions)).lane_graphs(calls)

    def _parts(self) -> list[tuple[VMapTowerGroup, Lanes, list[int]]]:
        """Smaller groups with at least two running towers: (group, its lanes, positions here)."""
        found = []
        for part, members in self.group.parts:
            inner = tuple(i for i, lane in enumerate(members) if lane in self.lanes)
            if len(inner) > 1:
                found.append((part, inner, [self.lanes.index(members[i]) for i in inner]))
        return found

    def explain(self) -> list[GroupRow]:
        names, verdict, program = self.names, self.verdict, self.program
        if self.fused is not None:
            own = {"rows": self.fused.rows, "plan": str(self.fused.plan)}
            return [GroupRow.of(names, "together", verdict.why, verdict.ms, **own)]
        inner = [row for part, *_ in self._parts() for row in part.explain()]
        gone = {name for row in inner for name in row.towers}
        rest = tuple(name for name in names if name not in gone)
        rows = list(program.rows) if program else []
        return inner + ([GroupRow.of(rest, "loop", verdict.why, verdict.ms, rows=rows)] if rest else [])
