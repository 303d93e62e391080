"""Find branches: modules of one structure, called alike, that do not depend on each other."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx, nn

from ..capture import OPAQUE, Captured, structure
from .dependencies import Dependencies, Joining
from .router_explanation import Declined, GroupRow


@dataclass
class Branch:
    """One call of a kept module in a captured graph."""

    node: fx.Node
    path: str
    level: int
    key: Any  # equal for calls that can become lanes of one graph

    @property
    def tensors(self) -> list[fx.Node]:
        return list(self.node.args[0])  # type: ignore[arg-type]


class Branches:
    """The calls of kept modules in a captured graph, in groups."""

    def __init__(self, captured: Captured, model: nn.Module, python: Collection[str] = ()):
        """`python`: paths of modules that cannot be captured; their side effects are unknown."""
        self.captured, self.model = captured, model
        graph = captured.graph
        nodes = [node for node in graph.nodes if node.target is OPAQUE and self._call(node).path]
        self.dependencies = Dependencies(graph)
        for path in {self._call(node).path for node in nodes}:
            same = [node for node in nodes if self._call(node).path == path]
            if len(same) > 1 and _remembers(model.get_submodule(path)):
                self.dependencies.in_turn(same)
        for node in nodes:
            if self._call(node).path in python:
                self.dependencies.barrier(node)
        keys = {node: self._key(node) if self._call(node).path not in python else node for node in nodes}
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
            paths = [branch.path for branch in group]
            modules = [self.model.get_submodule(path) for path in dict.fromkeys(paths)]
            plans.append(GroupRow.of_modules(paths, modules, stage=group[0].level))
        return plans

    def declined(self) -> list[Declined]:
        """Calls without a partner, one entry per key."""
        # A key that is the node itself runs as Python and never joins.
        calls = [(b.key, b.path, b.node) for b in self.loose if b.key is not b.node]
        return Declined.by_key(self.model, calls, lambda key, nodes: self.joining.why_not(nodes))


def _look(value: Any) -> str:
    return f"{tuple(value.shape)} {value.dtype} {value.device}" if isinstance(value, Tensor) else str(value)


def _remembers(module: nn.Module) -> bool:
    """Return whether a call may change the next one: in training mode with buffers."""
    return any(part.training and any(True for _ in part.buffers(recurse=False)) for part in module.modules())
