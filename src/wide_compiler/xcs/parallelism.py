"""What may run in parallel: read off an operator, then off the graph around it."""

import types
import typing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from .config import cores
from .ir import IRGraph, IRNode
from .module import get_tree_functions
from .parallel import ray_workers
from .proof.analysis import Analyzer, Frame
from .proof.effects import Decline, Effect
from .proof.guards import Guards
from .proof.values import Value
from .text.source import NoSource, tree_of


@dataclass(frozen=True)
class ParallelismInfo:
    """Ways in which an operator may run on many items at once.

    Attributes:
        can_vmap: pure on arrays, tensors or numbers: one call on a leading axis instead of many.
        can_pmap: pure, and there are workers to send it to: idle cores, or a connected Ray.
        can_batch: takes a batch of items in one call.
        can_parallelize: items, or branches, do not depend on each other.
        data_parallel_axes: parameters that are mapped over. Fields of a module are shared, not mapped.
    """

    can_vmap: bool = False
    can_pmap: bool = False
    can_batch: bool = False
    can_parallelize: bool = False
    data_parallel_axes: set[str] = field(default_factory=set)


@dataclass
class Operator:
    """An analysed body of a site: its effect, and the types of what it is mapped over."""

    effect: Effect
    parameters: dict[str, Any]
    vectorizable: bool = False
    reason: str = ""


ARRAYS = (np.ndarray, torch.Tensor, float, int, bool)


class ParallelismAnalyzer:
    """Finds the parallelism of one operator."""

    def analyze_operator(self, operator: Any) -> ParallelismInfo:
        """What may be done with an operator: an analysed body, a module, a function, or None (a value)."""
        if operator is None:
            return ParallelismInfo()
        if not isinstance(operator, Operator):
            operator = self._analyzed(operator)
        pure = operator.effect is Effect.PURE
        vmap = pure and operator.vectorizable
        return ParallelismInfo(
            can_vmap=vmap,
            can_pmap=pure and (cores() > 1 or ray_workers.connected()),
            can_batch=vmap,
            can_parallelize=operator.effect <= Effect.IO,
            data_parallel_axes=set(operator.parameters) if operator.effect <= Effect.IO else set(),
        )

    def _analyzed(self, operator: Any) -> Operator:
        """An operator by itself: parameters have the types they are annotated with."""
        module = get_tree_functions(type(operator)) is not None or isinstance(operator, torch.nn.Module)
        function = getattr(
            type(operator), "forward" if isinstance(operator, torch.nn.Module) else "__call__", None
        )
        if isinstance(operator, types.FunctionType):
            function, module = operator, False
        if not isinstance(function, types.FunctionType):
            return Operator(Effect.UNKNOWN, {}, reason="it has no text")
        try:
            tree = tree_of(function)
            names = [p.arg for p in tree.args.args][1 if module or function is not operator else 0 :]
            hints = _hints(function)
            kinds = {name: hints.get(name, np.ndarray) for name in names}
            analyzer = Analyzer(Guards())
            given = {name: Value(kind) for name, kind in kinds.items()}
            if function is not operator:
                own = analyzer.look(operator, analyzer.guards.note("const", operator, None))
                given = {tree.args.args[0].arg: own, **given}
            slot = analyzer.guards.note("const", function, None)
            analyzer.run(Frame(tree, function, slot), given)
        except NoSource as reason:
            return Operator(Effect.UNKNOWN, {}, reason=str(reason))
        except Decline as reason:
            return Operator(reason.effect, {}, reason=reason.reason)
        return Operator(analyzer.effect, kinds, all(k in ARRAYS for k in kinds.values()) and bool(kinds))


def _hints(function: Any) -> dict[str, Any]:
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError, AttributeError):
        return {}
    return {name: hint for name, hint in hints.items() if isinstance(hint, type)}


class GraphParallelismAnalyzer:
    """Finds the parallelism of every node of a graph."""

    def __init__(self) -> None:
        self.op_analyzer = ParallelismAnalyzer()

    def analyze_graph(self, ir_graph: IRGraph) -> dict[str, ParallelismInfo]:
        """By node: what its operator allows, and whether what depends on it falls into independent
        branches."""
        return {
            name: self._combined(self.op_analyzer.analyze_operator(node.operator), node, ir_graph)
            for name, node in ir_graph.nodes.items()
        }

    def _combined(self, info: ParallelismInfo, node: IRNode, graph: IRGraph) -> ParallelismInfo:
        children = sorted(graph.edges.get(node.id, ()))
        branches = any(graph.independent(a, b) for i, a in enumerate(children) for b in children[i + 1 :])
        return ParallelismInfo(
            info.can_vmap,
            info.can_pmap,
            info.can_batch,
            info.can_parallelize or branches,
            info.data_parallel_axes,
        )
