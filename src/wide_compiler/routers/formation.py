"""Formation: towers grouped by structure, valid until a tower changes."""

import contextlib
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import nn

from ..capture import CaptureFailed, structure
from ..config import WideConfig
from ..guards import ModuleGuard
from ..model.isolation import no_saved_tensors_hooks
from .calls import Calls
from .idle_children import sorted_by_use
from .order import in_order, others_can_see
from .router_explanation import GroupRow
from .stacked_memory import Memory
from .tower_group import GroupRoute, VMapTowerGroup


class Formation:
    """Towers by name; towers of one structure form a group."""

    def __init__(self, towers: Mapping[str, nn.Module], config: WideConfig, memory: Memory):
        self.memory, self.config = memory, config
        self.towers = dict(towers)
        self.guard = ModuleGuard(list(self.towers.values()))
        by_structure: dict[Any, list[str]] = {}
        for name, tower in self.towers.items():
            # A lazy tower has no structure before its first forward, so it forms its own group.
            by_structure.setdefault(structure(tower) or name, []).append(name)
        self.latest: TowerPlan | None = None
        self.groups: dict[tuple[str, ...], VMapTowerGroup] = {}
        self._form([(names, frozenset()) for names in by_structure.values()])
        kinds = [type(self.towers[names[0]]) for names in self.names]
        self.may_merge = len(set(kinds)) < len(kinds)  # whether groups may differ in unused children only

    def _form(self, sorts: list[tuple[list[str], frozenset[str]]]) -> None:
        """Make groups of these names, each with the children that its towers do not use."""
        self.names = [names for names, _ in sorts]
        self.groups.clear()
        for names, idle in sorts:
            if len(names) > 1:
                towers = [self.towers[name] for name in names]
                group = VMapTowerGroup(names, towers, self.config, self.guard, self.memory, idle)
                self.groups[tuple(names)] = group
        self.place = {
            name: (group, lane) for group in self.groups.values() for lane, name in enumerate(group.names)
        }

    def _merge(self, args: tuple, kwargs: dict) -> None:
        """Merge groups whose towers differ only in children that none of them uses."""
        self.may_merge = False
        sorts = list(sorted_by_use(self.towers, args, kwargs).values())
        if len(sorts) < len(self.names):
            self._form(sorts)
            if self.memory.stacked:
                self.move_together()

    def move_together(self) -> None:
        """Move each group's tensors into stacked memory, see `stacked_memory`."""
        for group in self.groups.values():
            with contextlib.suppress(CaptureFailed):  # such towers run as a loop and report why
                self.memory.take_in(group.living)

    def holds_for(self, towers: Mapping[str, nn.Module]) -> bool:
        """Return whether the formation is still valid for these towers."""
        return self.towers == towers and self.guard.holds()

    @no_saved_tensors_hooks()
    def plan(self, names: tuple[str, ...], args: tuple, kwargs: dict) -> "TowerPlan":
        """Return how the named towers run such a call."""
        if self.may_merge:
            self._merge(args, kwargs)
        calls = Calls.shared(args, kwargs)
        groups: list[tuple[GroupRoute | None, tuple[str, ...]]] = []
        routes: dict[tuple[str, ...], GroupRoute] = {}
        captured: set[str] = set()
        for group, lanes in self.split(names):
            if group is None:
                groups.append((None, tuple(lanes)))
                continue
            route = group.route(lanes, calls)
            groups.append((route, route.names))
            captured.update(route.names if route.program is not None else ())
            routes |= {graph.names: graph for graph in route.lane_graphs(calls)}

        @functools.cache
        def seen(name: str) -> bool:
            return name not in captured and others_can_see(self.towers[name], args, kwargs)

        parts = in_order(names, list(routes), seen)
        for part in parts:
            if len(part) > 1 and part not in routes:
                route = self.place[part[0]][0].route(tuple(self.place[name][1] for name in part), calls)
                if route.fused is not None:
                    routes[part] = route
        parts = in_order(names, [part for part in parts if part in routes], seen)
        steps = [TowerStep(part, routes.get(part), part[0] in captured) for part in parts]
        self.latest = TowerPlan(groups, steps)
        return self.latest

    def split(self, names: tuple[str, ...]) -> list[tuple[VMapTowerGroup | None, Any]]:
        """(group, lanes that run) pairs; a tower that runs by itself is (None, [name])."""
        lanes: dict[int, list[int]] = {}
        found: list[tuple[VMapTowerGroup | None, Any]] = []
        for name in names:
            group, lane = self.place.get(name, (None, 0))
            if group is None:
                found.append((None, [name]))
            else:
                lanes.setdefault(id(group), []).append(lane)
        for group in self.groups.values():
            own = lanes.get(id(group), [])
            if len(own) == 1:
                found.append((None, [group.names[own[0]]]))
            elif own:
                found.append((group, tuple(own)))
        return found

    def explain(self) -> list[GroupRow]:
        """Return how the towers ran in the last run."""
        if self.latest is None:
            return [GroupRow.of(group.names) for group in self.groups.values()]
        return self.latest.explain()


class TowerStep(NamedTuple):
    """Towers that run as lanes, or one that runs its own Python; `captured`: whether it has a graph."""

    names: tuple[str, ...]
    route: GroupRoute | None
    captured: bool = False


class TowerPlan(NamedTuple):
    """How the towers run one call: by group (a single tower has no route), and in order."""

    groups: list[tuple[GroupRoute | None, tuple[str, ...]]]
    steps: list[TowerStep]

    def explain(self) -> list[GroupRow]:
        rows = []
        parts = {step.names: step.route for step in self.steps if step.route is not None}
        for route, names in self.groups:
            inside = [part for part in parts if set(part) <= set(names)]
            if route is None:
                rows.append(GroupRow.of(names, "alone", "no other tower that ran has this structure"))
            elif route.fused is None or names in parts:
                rows += route.explain()
            else:
                rows += [row for part in inside for row in parts[part].explain()]  # type: ignore[union-attr]
                rest = tuple(name for name in names if not any(name in part for part in inside))
                rows += [GroupRow.of(rest, "loop", SEEN)] if rest else []
        return rows


SEEN = "a tower between them writes into the input, or changes something in Python"
