"""Determine what may run in parallel, from an operator and from the graph around it."""

import ast
import contextlib
import dataclasses
import inspect
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from .config import cores
from .ir import IRGraph, IRNode
from .proof.analysis import Analyzer
from .proof.effects import Decline, Effect
from .proof.guards import Guards
from .proof.kinds import CONTAINERS, is_numpy_scalar
from .proof.known_calls import CallArguments, call_value
from .proof.values import Value


@dataclass(frozen=True)
class ParallelismInfo:
    """How an operator may run on many items. A rung is used at a site only if its flag is True.

    Attributes:
        can_vmap: pure on arrays, tensors, numbers or modules, so one call on a leading axis is possible.
        can_pmap: pure, and several cores are available.
        can_batch: several items may run at once; False if one item decides whether the next one runs.
        can_parallelize: items or statements do not depend on each other, so waiting may overlap in threads.
        data_parallel_axes: parameters that differ between items. Fields of a module are shared.
        reason: why not more is possible, if known.
    """

    can_vmap: bool = False
    can_pmap: bool = False
    can_batch: bool = False
    can_parallelize: bool = False
    data_parallel_axes: set[str] = field(default_factory=set)
    reason: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if self.data_parallel_axes is None:
            object.__setattr__(self, "data_parallel_axes", set())


@dataclass
class Proof:
    """What is proven about an operator for arguments of known types.

    Attributes:
        axes: the parameters that differ between calls and are read; True if their values can be stacked along
            a leading axis.
        mapped: True if called once per item; False for a statement, which runs once.
        reason: why it is not pure, or why an item must not start before the previous one has ended.
    """

    operator: Any
    effect: Effect
    axes: dict[str, bool] = field(default_factory=dict)
    mapped: bool = True
    reason: str = ""


def stackable(kind: Any) -> bool:
    """Return whether values of this type can be stacked along a leading axis."""
    plain = kind in (np.ndarray, torch.Tensor, float, int, bool) or is_numpy_scalar(kind)
    return plain or (isinstance(kind, type) and issubclass(kind, torch.nn.Module))


def stacks(item: Any, depth: int = 2) -> bool:
    """Return whether items like this one, or their fields, can be stacked. Runs no code of their classes."""
    kind: Any = type(item)
    parts: Iterable[Any] = ()
    if issubclass(kind, tuple):
        parts = tuple.__iter__(item)
    elif not stackable(kind) and kind.__module__ != "builtins":
        with contextlib.suppress(AttributeError):
            slots = [object.__getattribute__(item, name) for name in getattr(kind, "__slots__", ())]
            parts = slots or object.__getattribute__(item, "__dict__").values()
    return stackable(kind) or (depth > 0 and any(stacks(part, depth - 1) for part in parts))


class ParallelismAnalyzer:
    """Finds the parallelism of one operator."""

    def analyze_operator(self, operator: Any) -> ParallelismInfo:
        """Return the parallelism of a function or module, called with arguments of the annotated types.

        A `Proof` has the actual types.
        """
        if operator is None:
            return ParallelismInfo()
        proof = operator if isinstance(operator, Proof) else prove(operator)
        free = proof.effect <= Effect.IO
        batch = free and not proof.reason
        pure = batch and proof.effect is Effect.PURE
        return ParallelismInfo(
            can_vmap=pure and any(proof.axes.values()),
            can_pmap=pure and cores() > 1,
            can_batch=batch,
            can_parallelize=free,
            data_parallel_axes=set(proof.axes) if free else set(),
            reason=proof.reason,
        )


class GraphParallelismAnalyzer:
    """Finds the parallelism of each node of a graph."""

    def __init__(self, op_analyzer: Any = None) -> None:
        self.op_analyzer = op_analyzer or ParallelismAnalyzer()

    def analyze_graph(self, ir_graph: IRGraph) -> dict[str, ParallelismInfo]:
        """Return the parallelism by node id, from its operator and its position in the graph."""
        return {name: self._analyzed(node, ir_graph) for name, node in ir_graph.nodes.items()}

    def _analyzed(self, node: IRNode, graph: IRGraph) -> ParallelismInfo:
        proof = node.proof if isinstance(self.op_analyzer, ParallelismAnalyzer) else None
        info = self.op_analyzer.analyze_operator(proof or node.operator)
        children = sorted(graph.edges.get(node.id, ()))
        if any(graph.independent(a, b) for i, a in enumerate(children) for b in children[i + 1 :]):
            return dataclasses.replace(info, can_parallelize=True)
        others = [other for other in graph.nodes if other != node.id]
        if proof is None or proof.mapped or any(graph.independent(node.id, other) for other in others):
            return info
        reason = "one of the statements depends on another"
        return dataclasses.replace(info, can_parallelize=False, reason=reason)


def in_common(infos: Iterable[Any]) -> ParallelismInfo:
    """Return what all of them allow, with the axes of the first and the first reason given."""
    infos, facts = list(infos), ("can_vmap", "can_pmap", "can_batch", "can_parallelize")
    reason = next((info.reason for info in infos if getattr(info, "reason", "")), "")
    allowed = {fact: all(getattr(info, fact) for info in infos) for fact in facts}
    return ParallelismInfo(**allowed, data_parallel_axes=infos[0].data_parallel_axes, reason=reason)


def infos_by(analyzer: Any, graph: IRGraph) -> Mapping[str, Any]:
    """Return an analyser's results by node id; it may analyse graphs or single operators."""
    if not hasattr(analyzer, "analyze_graph"):
        analyzer = GraphParallelismAnalyzer(analyzer)
    infos = analyzer.analyze_graph(graph)
    return {name: infos.get(name, ParallelismInfo()) for name in graph.nodes}


# Analysis of an operator outside of a site.

_CALL = ast.parse("operator()", mode="eval").body


def prove(operator: Any) -> Proof:
    """Analyse an operator called with arguments of the annotated types."""
    if not callable(operator):
        return Proof(operator, Effect.UNKNOWN, reason=f"a {type(operator).__name__} is not callable")
    hints, keywords = _parameters(operator)
    analyzer = Analyzer(Guards())
    callee = analyzer.look(operator, analyzer.guards.note("const", operator))
    values = {name: value_of(hint) for name, hint in hints.items()}
    named = {name: values.pop(name) for name in keywords}
    try:
        arguments = CallArguments([*values.values()], named, _CALL)
        analyzer.settled(lambda: call_value(analyzer, callee, arguments))
    except Decline as reason:
        return Proof(operator, reason.effect, reason=reason.reason)
    return Proof(operator, analyzer.effect, {name: stackable(hint) for name, hint in hints.items()})


def _parameters(operator: Any) -> tuple[dict[str, Any], list[str]]:
    """Return the types of the required parameters (arrays if not annotated), and the keyword-only names."""
    function = operator.forward if isinstance(operator, torch.nn.Module) else operator
    try:
        given = list(inspect.signature(function).parameters.values())
        hints = typing.get_type_hints(function if inspect.isroutine(function) else type(function).__call__)
    except (TypeError, ValueError, NameError, AttributeError):  # few C functions have a signature
        kind = inspect.Parameter.POSITIONAL_ONLY
        given, hints = [inspect.Parameter(f"x{i}", kind) for i in range(getattr(function, "nin", 1))], {}
    needed = [p for p in given if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p.default is p.empty]
    needed = needed or given[:1]
    keywords = [p.name for p in needed if p.kind is p.KEYWORD_ONLY]
    return {p.name: hints.get(p.name, np.ndarray) for p in needed}, keywords


def value_of(hint: Any) -> Value:
    """Return the abstract value of an argument with this annotation. A union counts as unknown."""
    kind, inner = typing.get_origin(hint) or hint, typing.get_args(hint)
    if kind not in CONTAINERS:
        return Value(kind if isinstance(kind, type) else object)
    elem = value_of(inner[0]) if inner and kind is not dict else None
    return Value(kind, elem=elem)
