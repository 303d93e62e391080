"""A plan: what is proven about a site for objects of certain types, and the strategy chosen for it."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..errors import WrongTypeError
from .ir import IRGraph, IRNode
from .ledger import Ledger
from .parallelism import ARRAYS, GraphParallelismAnalyzer, Operator, ParallelismInfo
from .proof.analysis import Analyzer
from .proof.columns import column_value, whole_value
from .proof.effects import Decline, Effect
from .proof.endings import Texts, may_run_long
from .proof.guards import Guards
from .proof.kinds import is_numpy_scalar
from .proof.values import Value
from .strategies import STRATEGIES, ExecutionStrategy, SequentialStrategy, StrategySelector

if TYPE_CHECKING:
    from .decisions import Decisions

RTOL = 1e-9  # of float64; float32 and float16 have their own, see oracle


@dataclass
class Plan:
    """Valid while its guards hold. It keeps no object of the call it was made in."""

    bodies: frozenset[str]
    guards: Guards
    effect: Effect = Effect.UNKNOWN
    reason: str = ""
    line: int | None = None
    texts: Texts = field(default_factory=Texts)
    info: ParallelismInfo = field(default_factory=ParallelismInfo)
    strategy: ExecutionStrategy = field(default_factory=SequentialStrategy)
    ledger: Ledger = field(default_factory=Ledger)
    lane_code: dict[Any, Any] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)  # of rungs: wide models, levels of concurrency
    last: str = "plain"
    taken: Any = None  # the rung that ran the last call
    rtol: float | None = RTOL
    own_strategy: bool = False  # one that is somebody's own

    def holds(self, functions: dict[str, Any], columns: Any) -> list[Any] | None:
        """Is what was proven still true of these objects? If so, what the guards' paths lead to."""
        if self.bodies != functions.keys():
            return None
        kept = self.memory.get("wide")
        # What the guards ask of the members of a wide model was looked at already, and more closely.
        seen = kept.column if kept is not None and kept.look(columns) else None
        return self.guards.hold(functions, columns, seen)

    @property
    def declined(self) -> bool:
        return self.effect > Effect.IO


def make_plan(site: "Decisions", functions: dict[str, Any], nodes: dict[str, Any], columns: Any) -> Plan:
    """Analyse the site's bodies with the objects of this call, and choose a strategy."""
    analyzer = Analyzer(Guards())
    plan = Plan(frozenset(functions), analyzer.guards)
    try:
        values = [column_value(analyzer, column, j) for j, column in enumerate(columns)]
        effects: dict[str, Effect] = {}
        for which in sorted(functions, reverse=True):  # the test before the body
            analyzer.effect = Effect.PURE
            given = list(values)
            if which == "body" and site.text.kind == "loop" and not site.text.single:
                given.insert(0, Value(list, fresh=True))
            if which == "items":
                given = [whole_value(columns[0], values[0])]
            analyzer.site_body(which, nodes[which], functions[which], given)
            effects[which] = analyzer.effect
        if analyzer.guards.hold(functions, columns) is None:
            raise Decline(Effect.UNKNOWN, "its items are not all of one kind")
        plan.effect = max(effects.values())
        plan.ledger.waits = plan.effect is Effect.IO
        bodies = [nodes[which] for which in functions]
        plan.texts = Texts((*bodies, *analyzer.functions.values()), bool(analyzer.recursive))
    except Decline as declined:
        plan.effect, plan.reason, plan.line = declined.effect, declined.reason, declined.line
        return plan
    if plan.effect is Effect.IO and site.short_circuits:
        plan.effect, plan.reason = Effect.UNKNOWN, "it stops early, and later items must not be read then"
        return plan
    if site.short_circuits and may_run_long(plan.texts):
        plan.effect, plan.reason = Effect.UNKNOWN, "it stops early, and a later item might never end"
        return plan
    if analyzer.ends and (site.text.kind == "loop" or site.text.maps):
        plan.effect, plan.reason = Effect.UNKNOWN, "what it raises would end the loop"
        return plan
    if plan.effect is Effect.IO and "items" in functions:
        plan.effect, plan.reason = Effect.UNKNOWN, "finding its items waits for something"
        return plan
    if site.text.kind == "statements":
        graph, root = statements_graph(effects), "start"
    else:
        names = [a.arg for a in nodes[next(iter(functions))].args.args]
        graph, root = site_graph(plan, names, columns), "body"
    infos = GraphParallelismAnalyzer().analyze_graph(graph)
    plan.info = infos[root]
    if root == "start" and not plan.info.can_parallelize:
        plan.effect, plan.reason = Effect.UNKNOWN, "one of the statements depends on another"
        return plan
    selector = site.config.selector or StrategySelector()
    plan.strategy = selector.select_strategy(infos, graph)
    if not isinstance(plan.strategy, ExecutionStrategy):
        raise WrongTypeError(f"select_strategy must give an ExecutionStrategy, got {plan.strategy!r}")
    plan.own_strategy = type(plan.strategy) not in STRATEGIES
    return plan


def statements_graph(effects: dict[str, Effect]) -> IRGraph:
    """Statements that read none of each other's names, as branches of one place; effects keep their order."""
    graph = IRGraph()
    start = graph.add(IRNode("start", None, [], Effect.PURE))
    last = ""
    for name in sorted(effects):
        graph.add(IRNode(name, Operator(effects[name], {}), [start.id], effects[name]))
        if effects[name] > Effect.IO:
            if last:
                graph.order(last, name)
            last = name
    return graph


def site_graph(plan: Plan, names: list[str], columns: Any) -> IRGraph:
    """A site as a graph: its items, and the body that is mapped over them."""
    graph = IRGraph()
    kinds = [_kind(column) for column in columns]
    vectorizable = any(k in ARRAYS or is_numpy_scalar(k) or _modules(k) for k in kinds)
    source = graph.add(IRNode("items", None, [], Effect.PURE))
    parameters = dict(zip(names[-len(kinds) :], kinds, strict=False))
    operator = Operator(plan.effect, parameters, vectorizable)
    graph.add(IRNode("body", operator, [source.id], plan.effect))
    return graph


def _kind(column: Any) -> Any:
    if type(column) is np.ndarray:
        return np.ndarray
    return torch.Tensor if type(column) is torch.Tensor else type(column[0])


def _modules(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, torch.nn.Module)
