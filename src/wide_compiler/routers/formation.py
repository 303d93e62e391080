"""Formation: towers grouped by structure, valid until a tower changes."""

import contextlib
from collections.abc import Mapping
from typing import Any

from torch import nn

from ..capture import CaptureFailed, structure
from ..config import WideConfig
from ..guards import ModuleGuard
from ..guards.modes import plain_world
from .calls import Calls
from .explain import GroupRow
from .idle_children import sorted_by_use
from .stacked_memory import Memory
from .tower_group import Route, VMapTowerGroup

# A group and its route, or None for a tower that runs by itself; the names of the towers.
Step = tuple[VMapTowerGroup | None, Route | None, list[str]]


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
        self.latest: tuple[str, ...] = ()
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

    def run(self, names: tuple[str, ...], args: tuple, kwargs: dict) -> dict[str, Any]:
        """Run the named towers; return their outputs by name."""
        if self.may_merge and plain_world():
            self._merge(args, kwargs)
        self.latest = names
        outputs: dict[str, Any] = dict.fromkeys(names)
        for group, lanes in self.split(names):
            if group is None:
                outputs[lanes[0]] = self.towers[lanes[0]](*args, **kwargs)  # type: ignore[index]
            else:
                results = group.run_calls(lanes, Calls.shared(args, kwargs))
                outputs.update(zip([group.names[lane] for lane in lanes], results, strict=True))
        return outputs

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

    def steps(self, names: tuple[str, ...]) -> list[Step]:
        """How these towers ran last."""
        return [
            (None, None, lanes)
            if group is None
            else (group, group.latest, [group.names[lane] for lane in lanes])
            for group, lanes in self.split(names)
        ]

    def explain(self) -> list[GroupRow]:
        """How the towers ran in the last run."""
        return explain_steps(self.steps(self.latest))


def explain_steps(steps: list[Step]) -> list[GroupRow]:
    rows = []
    for group, route, names in steps:
        if group is None:
            rows.append(GroupRow.of(tuple(names), "alone", "no other tower that ran has this structure"))
        else:
            rows += [GroupRow.of(group.names)] if route is None else route.explain()
    return rows
