"""Finding branches: modules of one structure, called alike, that do not wait for each other."""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from .. import _tree
from ..capture import OPAQUE, Captured, clone_member, structure
from .dependencies import Dependencies, Joining
from .explain import Declined, GroupRow
from .programs import unfusable
from .wide_router import WideRouter


class Rehearsal:
    """One forward of a copy of the model: which modules are called, and with what."""

    def __init__(self, model: nn.Module, args: tuple, kwargs: dict):
        self.model = model
        self.structures = {path: structure(module) for path, module in model.named_modules() if path}
        self.calls: list[tuple[str, Any]] = []
        double = clone_member(model)
        for path, module in double.named_modules():
            module.register_forward_pre_hook(self._noting(path), with_kwargs=True)
        with torch.no_grad(), torch.random.fork_rng():
            double(*_tree.tree_map(_own, args), **_tree.tree_map(_own, kwargs))

    def _noting(self, path: str) -> Any:
        def note(module: nn.Module, args: tuple, kwargs: dict) -> None:
            tensors = [leaf for leaf in _tree.flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
            self.calls.append((path, tuple((t.shape, t.dtype, t.device) for t in tensors)))

        return note

    def candidates(self, banned: set[str]) -> dict[str, str]:
        """The outermost modules that are called like another one (or twice), without those in `banned`."""
        sorts = Counter((self.structures.get(path), look) for path, look in self.calls if path not in banned)
        alike = {
            path
            for path, look in self.calls
            if path and path not in banned and sorts[self.structures[path], look] > 1 and self._eligible(path)
        }
        return {path: "a branch" for path in alike if not any(_inside(path, other) for other in alike)}

    def _eligible(self, path: str) -> bool:
        module = self.model.get_submodule(path)
        # A router only calls its towers: these are what goes together.
        learns = next(module.parameters(), None) is not None and not isinstance(module, WideRouter)
        return learns and self.structures[path] is not None and not unfusable([module])

    def joined(self, captured: Captured, kept: Collection[str]) -> tuple[set[str], list[Declined]]:
        """The modules of `kept` that find no other to be joined with, by a capture that looks into them.

        The nodes that one call of a kept module has made count as one.
        """
        looks = {(path, i): look for path, i, look in _numbered(self.calls)}
        unit_of = {node: _unit(node, kept) for node in captured.graph.nodes if node.op != "output"}
        dependencies = Dependencies(captured.graph)
        before: dict[Any, set[Any]] = {}
        for node in dependencies.nodes:
            unit = unit_of[node]
            before.setdefault(unit, set()).update(unit_of[b] for b in dependencies.before[node])
            before[unit].discard(unit)
        paths = {unit: unit[0] for unit in before if isinstance(unit, tuple)}
        keys = {unit: (self.structures[path], looks.get(unit)) for unit, path in paths.items()}
        joining = Joining(list(before), before, keys)
        by_key: dict[Any, list[Any]] = {}
        for unit in joining.loose:
            by_key.setdefault(keys[unit], []).append(unit)
        declined = [
            Declined.of(
                tuple(paths[unit] for unit in units),
                "loop",
                joining.why_not(units),
                op=type(self.model.get_submodule(paths[units[0]])).__name__,
            )
            for units in by_key.values()
        ]
        return {paths[unit] for unit in joining.loose}, declined


def _unit(node: fx.Node, kept: Collection[str]) -> Any:
    """(path, number of the call) of the kept module whose call has made this node, else the node itself."""
    for key, (path, _) in (node.meta.get("nn_module_stack") or {}).items():
        own = path.partition("member.")[2]
        if own in kept:
            return own, int(key.rpartition("@")[2]) if "@" in key else 0
    return node


def _numbered(calls: list[tuple[str, Any]]) -> Iterator[tuple[str, int, Any]]:
    count: Counter[str] = Counter()
    for path, look in calls:
        yield path, count[path], look
        count[path] += 1


def _own(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, Tensor) else leaf


def _inside(path: str, other: str) -> bool:
    return path.startswith(f"{other}.")


@dataclass
class Branch:
    """One call of a kept module in a captured graph."""

    node: fx.Node
    path: str
    level: int
    key: Any  # equal for calls that may become lanes of one graph

    @property
    def tensors(self) -> list[fx.Node]:
        return list(self.node.args[0])  # type: ignore[arg-type]


class Branches:
    """The kept calls of a captured graph, in groups."""

    def __init__(self, captured: Captured, model: nn.Module):
        self.captured, self.model = captured, model
        graph = captured.graph
        nodes = [node for node in graph.nodes if node.target is OPAQUE and self._call(node).path]
        self.dependencies = Dependencies(graph)
        for path in {self._call(node).path for node in nodes}:
            same = [node for node in nodes if self._call(node).path == path]
            if len(same) > 1 and _remembers(model.get_submodule(path)):
                self.dependencies.in_turn(same)
        keys = {node: self._key(node) for node in nodes}
        self.joining = Joining(self.dependencies.nodes, self.dependencies.before, keys)
        branch = {n: Branch(n, self._call(n).path, self.joining.stage[n], keys[n]) for n in nodes}
        self.all = list(branch.values())
        self.groups = [[branch[node] for node in group] for group in self.joining.groups]
        self.loose = [branch[node] for node in self.joining.loose]

    def _call(self, node: fx.Node) -> Any:
        return self.captured.calls[node.args[2]]  # type: ignore[index]

    def _key(self, node: fx.Node) -> Any:
        call = self._call(node)
        looks = [_look(argument.meta.get("val")) for argument in node.args[0]]  # type: ignore[union-attr]
        kind = structure(self.model.get_submodule(call.path))
        return (kind, repr(call.spec), repr(call.statics), tuple(looks), tuple(map(str, node.args[1])))  # type: ignore[arg-type]

    def planned(self) -> list[GroupRow]:
        plans = []
        for group in sorted(self.groups, key=lambda g: g[0].level):
            modules = {branch.path: self.model.get_submodule(branch.path) for branch in group}
            count = sum(p.numel() for module in modules.values() for p in module.parameters())
            paths = tuple(branch.path for branch in group)
            kind = type(modules[paths[0]]).__name__
            plans.append(GroupRow.of(paths, op=kind, stage=group[0].level, parameters=count))
        return plans

    def declined(self) -> list[Declined]:
        """Calls that have found no other; alike ones in one entry."""
        by_kind: dict[Any, list[Branch]] = {}
        for branch in self.loose:
            by_kind.setdefault(branch.key, []).append(branch)
        found = []
        for branches in by_kind.values():
            paths = tuple(branch.path for branch in branches)
            why = self.joining.why_not([branch.node for branch in branches])
            kind = type(self.model.get_submodule(paths[0])).__name__
            found.append(Declined.of(paths, "loop", why, op=kind))
        return found


def _look(value: Any) -> str:
    return f"{tuple(value.shape)} {value.dtype} {value.device}" if isinstance(value, Tensor) else str(value)


def _remembers(module: nn.Module) -> bool:
    """May a call leave something for the next one?"""
    return any(part.training and any(True for _ in part.buffers(recurse=False)) for part in module.modules())
