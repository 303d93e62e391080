"""What may run in parallel: read off an operator, then off the graph around it."""

import ast
import inspect
import typing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from .config import cores
from .ir import IRGraph, IRNode
from .proof.analysis import Analyzer
from .proof.calls import call_value
from .proof.effects import Decline, Effect
from .proof.guards import Guards
from .proof.values import Value


@dataclass(frozen=True)
class ParallelismInfo:
    """Ways in which an operator may run on many items at once.

    Attributes:
        can_vmap: pure on arrays, tensors or numbers: one call on a leading axis instead of many.
        can_pmap: pure, and there is more than one core to compute it on.
        can_batch: takes a batch of items in one call.
        can_parallelize: items, or branches, do not depend on each other.
        data_parallel_axes: parameters that are mapped over. Fields of a module are shared, not mapped.
    """

    can_vmap: bool = False
    can_pmap: bool = False
    can_batch: bool = False
    can_parallelize: bool = False
    data_parallel_axes: set[str] = field(default_factory=set)
    reason: str = field(default="", compare=False)  # why not more, where that is known

    def __post_init__(self) -> None:
        if self.data_parallel_axes is None:
            object.__setattr__(self, "data_parallel_axes", set())


@dataclass
class Operator:
    """An analysed body of a site: its effect, and the types of what it is mapped over."""

    effect: Effect
    parameters: dict[str, Any]
    vectorizable: bool = False
    reason: str = ""


POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
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
            can_pmap=pure and cores() > 1,
            can_batch=vmap,
            can_parallelize=operator.effect <= Effect.IO,
            data_parallel_axes=set(operator.parameters) if operator.effect <= Effect.IO else set(),
            reason=operator.reason,
        )

    def _analyzed(self, operator: Any) -> Operator:
        """An operator by itself, called with parameters of the types they are annotated with."""
        if not callable(operator):
            return Operator(Effect.UNKNOWN, {}, reason=f"a {type(operator).__name__} is not called")
        named, others = _parameters(operator)
        analyzer = Analyzer(Guards())
        callee = analyzer.look(operator, analyzer.guards.note("const", operator, None))
        try:
            keywords = {name: value_of(hint) for name, hint in others.items()}
            call_value(analyzer, callee, [value_of(hint) for hint in named.values()], keywords, _CALL)
        except Decline as reason:
            return Operator(reason.effect, {}, reason=reason.reason)
        hints = {**named, **others}
        return Operator(analyzer.effect, hints, bool(hints) and all(h in ARRAYS for h in hints.values()))


def _parameters(operator: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Positional and keyword-only parameters that a call must give, with the types they are said to have: an
    array, or a tensor for what is PyTorch's, where nothing is said."""
    module = isinstance(operator, torch.nn.Module)
    function = operator.forward if module else operator
    torchs = module or str(getattr(function, "__module__", "")).startswith("torch")
    usual = torch.Tensor if torchs else np.ndarray
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of C functions few tell
        return {f"x{i}": usual for i in range(getattr(function, "nin", 1))}, {}
    hints = _hints(function if inspect.isroutine(function) else type(function).__call__)
    positional: dict[str, Any] = {}
    keywords: dict[str, Any] = {}
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty:
            keywords[name] = hints.get(name, usual)
        elif parameter.kind in POSITIONAL and (parameter.default is parameter.empty or name in hints):
            positional[name] = hints.get(name, usual)
    return positional or dict.fromkeys(list(signature.parameters)[:1], usual), keywords


def _hints(function: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except (NameError, TypeError, AttributeError):
        return {}


def value_of(hint: Any) -> Value:
    """What is known of an argument by its annotation: `list[float]` tells what it holds, a union nothing."""
    kind = typing.get_origin(hint) or hint
    if not isinstance(kind, type):
        return Value(object)
    value, inner = Value(kind), typing.get_args(hint)
    if inner and kind in (list, set, frozenset, tuple):
        value.elem = value_of(inner[0])
    return value


_CALL = ast.parse("operator()", mode="eval").body


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
            info.reason,
        )
