"""What may run in parallel: read off an operator, then off the graph around it."""

import ast
import dataclasses
import inspect
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from .ir import IRGraph, IRNode
from .proof.analysis import Analyzer
from .proof.calls import call_value
from .proof.effects import Decline, Effect
from .proof.guards import Guards
from .proof.kinds import is_numpy_scalar
from .proof.values import Value


@dataclass(frozen=True)
class ParallelismInfo:
    """Ways in which an operator may run on many items. A rung runs a site only if its fact is True there.

    Attributes:
        can_vmap: pure on arrays, tensors, numbers or modules: one call on a leading axis (vectorised rungs).
        can_pmap: pure, and nothing of PyTorch: may run in another process (the rung of processes).
        can_batch: several items may be under way at once; False where one decides whether the next one runs.
        can_parallelize: items, or statements, do not depend on each other (threads).
        data_parallel_axes: parameters that differ from item to item. Fields of a module are shared by all.
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
class Proof:
    """What is proven of an operator that is called with arguments of known types.

    Attributes:
        axes: the parameters that differ from call to call and are read: "array" (numbers too), "tensor"
            (modules too) or "other".
        mapped: called once for each item; False for a statement, which runs once.
        one_by_one: why an item must not begin before the one before it has ended.
    """

    operator: Any
    effect: Effect
    axes: dict[str, str] = field(default_factory=dict)
    mapped: bool = True
    one_by_one: str = ""
    reason: str = ""


ARRAYS = (np.ndarray, float, int, bool)


def axis_kind(kind: Any) -> str:
    """What items of a type become when they get a leading axis."""
    if kind is torch.Tensor or (isinstance(kind, type) and issubclass(kind, torch.nn.Module)):
        return "tensor"
    return "array" if kind in ARRAYS or is_numpy_scalar(kind) else "other"


def item_kind(item: Any) -> str:
    """The same of an item; of a tuple or dataclass, what it holds."""
    parts: Iterable[Any] = item if isinstance(item, tuple) else ()
    if dataclasses.is_dataclass(item):
        parts = getattr(item, "__dict__", {}).values()
    kinds = {axis_kind(type(item)), *map(item_kind, parts)}
    return next(kind for kind in ("tensor", "array", "other") if kind in kinds)


class ParallelismAnalyzer:
    """Finds the parallelism of one operator."""

    def analyze_operator(self, operator: Any) -> ParallelismInfo:
        """What may be done with a function or module, called with what its annotations say; or with the
        operator of a site, of which a `Proof` says what it is called with."""
        if operator is None:  # a value
            return ParallelismInfo()
        proof = operator if isinstance(operator, Proof) else prove(operator)
        free = proof.effect <= Effect.IO
        batch = free and not proof.one_by_one
        pure = batch and proof.effect is Effect.PURE
        kinds = set(proof.axes.values())
        return ParallelismInfo(
            can_vmap=pure and not kinds <= {"other"},
            can_pmap=pure and "tensor" not in kinds,
            can_batch=batch,
            can_parallelize=free,
            data_parallel_axes=set(proof.axes) if free else set(),
            reason=proof.reason or proof.one_by_one,
        )


class GraphParallelismAnalyzer:
    """Finds the parallelism of every node of a graph."""

    def __init__(self, op_analyzer: Any = None) -> None:
        self.op_analyzer = op_analyzer or ParallelismAnalyzer()

    def analyze_graph(self, ir_graph: IRGraph) -> dict[str, ParallelismInfo]:
        """By node: what its operator allows, and what its place in the graph does."""
        return {name: self._analyzed(node, ir_graph) for name, node in ir_graph.nodes.items()}

    def _analyzed(self, node: IRNode, graph: IRGraph) -> ParallelismInfo:
        knows_proofs = isinstance(self.op_analyzer, ParallelismAnalyzer) and node.proof is not None
        info = self.op_analyzer.analyze_operator(node.proof if knows_proofs else node.operator)
        children = sorted(graph.edges.get(node.id, ()))
        if any(graph.independent(a, b) for i, a in enumerate(children) for b in children[i + 1 :]):
            return dataclasses.replace(info, can_parallelize=True)
        # A statement runs once: beside another one, or beside nothing.
        beside = (graph.independent(node.id, other) for other in graph.nodes if other != node.id)
        if knows_proofs and not node.proof.mapped and info.can_parallelize and not any(beside):
            reason = "one of the statements depends on another"
            return dataclasses.replace(info, can_parallelize=False, reason=reason)
        return info


FACTS = ("can_vmap", "can_pmap", "can_batch", "can_parallelize")


def in_common(infos: Iterable[Any]) -> ParallelismInfo:
    """What all of them allow, over the parameters of any."""
    infos = list(infos)
    facts = (all(getattr(info, fact) for info in infos) for fact in FACTS)
    axes = {axis for info in infos for axis in info.data_parallel_axes}
    reasons = [info.reason for info in infos if getattr(info, "reason", "")]
    return ParallelismInfo(*facts, axes, reasons[0] if reasons else "")


def given_infos(analyzer: Any, graph: IRGraph) -> Mapping[str, Any]:
    """What a user's analyser says: of graphs (`analyze_graph`), or of operators (`analyze_operator`)."""
    if not hasattr(analyzer, "analyze_graph"):
        analyzer = GraphParallelismAnalyzer(analyzer)
    infos = analyzer.analyze_graph(graph)
    return {name: infos.get(name, ParallelismInfo()) for name in graph.nodes}


# An operator by itself.

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_CALL = ast.parse("operator()", mode="eval").body


def prove(operator: Any) -> Proof:
    """An operator by itself, called with parameters of the types they are annotated with."""
    if not callable(operator):
        return Proof(operator, Effect.UNKNOWN, reason=f"a {type(operator).__name__} is not called")
    named, others = _parameters(operator)
    analyzer = Analyzer(Guards())
    callee = analyzer.look(operator, analyzer.guards.note("const", operator, None))
    try:
        keywords = {name: value_of(hint) for name, hint in others.items()}
        call_value(analyzer, callee, [value_of(hint) for hint in named.values()], keywords, _CALL)
    except Decline as reason:
        return Proof(operator, reason.effect, reason=reason.reason)
    kinds = {name: axis_kind(hint) for name, hint in {**named, **others}.items()}
    return Proof(operator, analyzer.effect, kinds)


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
    try:
        hints = typing.get_type_hints(function if inspect.isroutine(function) else type(function).__call__)
    except (NameError, TypeError, AttributeError):
        hints = {}
    positional: dict[str, Any] = {}
    keywords: dict[str, Any] = {}
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty:
            keywords[name] = hints.get(name, usual)
        elif parameter.kind in POSITIONAL and (parameter.default is parameter.empty or name in hints):
            positional[name] = hints.get(name, usual)
    return positional or dict.fromkeys(list(signature.parameters)[:1], usual), keywords


def value_of(hint: Any) -> Value:
    """What is known of an argument by its annotation: `list[float]` tells what it holds, a union nothing."""
    kind = typing.get_origin(hint) or hint
    if not isinstance(kind, type):
        return Value(object)
    value, inner = Value(kind), typing.get_args(hint)
    if inner and kind in (list, set, frozenset, tuple):
        value.elem = value_of(inner[0])
    return value
