"""Plan: what is proven about a site for certain types, and the strategy chosen for it."""

import ast
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ..errors import WrongTypeError
from .costs import Costs
from .ir import IRGraph, IRNode
from .module import get_tree_functions
from .parallelism import GraphParallelismAnalyzer, ParallelismInfo, Proof, in_common, infos_by, stacks
from .proof.analysis import Analyzer
from .proof.effects import Decline, Effect
from .proof.guards import Guards, lookup_global
from .proof.kinds import Events
from .proof.objects import column_value
from .proof.values import Value
from .strategies import STRATEGIES, ExecutionStrategy, SequentialStrategy, StrategySelector
from .text.names import reads
from .text.trees import walk

if TYPE_CHECKING:
    from .site import Site

BRANCHES = (
    ast.While,
    ast.For,
    ast.Try,
    ast.If,
    ast.IfExp,
    ast.BoolOp,
    ast.Match,
    ast.Assert,
    ast.comprehension,
)
RTOL = 1e-9  # for float64; `comparison` has its own tolerances for float32 and float16


@dataclass
class Plan:
    """A proof and its costs, valid while its guards hold. It keeps no object of the call it was made in.

    `memory` holds the state of rungs: wide models, concurrency levels.
    """

    bodies: frozenset[str]
    guards: Guards
    effect: Effect = Effect.UNKNOWN
    reason: str = ""
    line: int | None = None
    branches: bool = False  # whether control flow in the bodies and what they call may depend on values
    tries: bool = False  # whether there is a `try`
    info: ParallelismInfo = field(default_factory=ParallelismInfo)
    strategy: ExecutionStrategy = field(default_factory=SequentialStrategy)
    costs: Costs = field(default_factory=Costs)
    lane_code: dict[Any, Any] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)
    last: str = "plain"
    rtol: float | None = RTOL

    def holds(self, functions: dict[str, Any], columns: Any) -> list[Any] | None:
        """Return the objects that the guards looked up if the proof applies to these objects; else None."""
        if self.bodies != functions.keys():
            return None
        kept = self.memory.get("wide")
        # The wide model checks its members more strictly than the guards would.
        seen = kept.column if kept is not None and kept.look(columns) else None
        return self.guards.hold(functions, columns, seen)

    @property
    def declined(self) -> bool:
        return self.effect > Effect.IO

    @property
    def own_strategy(self) -> bool:
        """True if the strategy is user-defined."""
        return type(self.strategy) not in STRATEGIES

    def declines(self, reason: str) -> "Plan":
        """Mark the plan as declined for `reason`."""
        self.effect, self.reason = Effect.UNKNOWN, reason
        return self


def make_plan(site: "Site", functions: dict[str, Any], nodes: dict[str, Any], columns: Any) -> Plan:
    """Analyse the site's bodies with the objects of this call, and choose a strategy.

    The terms (graph, analyser, selector, strategy) are those of the specification.
    """
    analyzer = Analyzer(Guards())
    plan = Plan(frozenset(functions), analyzer.guards)
    try:
        plan.effect = _proven(site, analyzer, functions, nodes, columns)
    except Decline as declined:
        plan.effect, plan.reason, plan.line = declined.effect, declined.reason, declined.line
        return plan
    bodies = [nodes[which] for which in functions]
    kinds = {type(node) for node in walk(*bodies, *analyzer.functions.values())}
    plan.branches, plan.tries = not kinds.isdisjoint(BRANCHES), ast.Try in kinds
    if "items" in functions:  # lists the iterations of nested loops; the site itself is analysed next
        waits = plan.effect is Effect.IO
        return plan.declines("listing the items of nested loops waits for I/O") if waits else plan
    graph, statements = IRGraph(), site.text.kind == "statements"
    if statements:
        for which, thunk in functions.items():
            graph.add(IRNode(which, thunk, proof=Proof(thunk, plan.effect, mapped=False)))
    else:
        operator = operator_of(functions["body"], nodes["body"])
        ends = analyzer.ends and site.text.kind == "loop"
        why = "the body may raise an exception that ends the loop, such as StopIteration" if ends else ""
        proof = Proof(operator, plan.effect, _axes(bodies, columns), reason=why)
        graph.add(IRNode("body", operator, proof=proof))
    infos: Mapping[str, Any] = GraphParallelismAnalyzer().analyze_graph(graph)
    plan.info = in_common(infos.values())
    if site.config.analyzer is not None:  # may forbid what is proven to be safe, but cannot allow more
        infos = infos_by(site.config.analyzer, graph)
        plan.info = in_common([plan.info, *infos.values()])
    needed = "can_parallelize" if statements else "can_batch"
    if not getattr(plan.info, needed):
        return plan.declines(plan.info.reason or f"Config.analyzer gives {needed}=False")
    selector = site.config.selector or StrategySelector()
    plan.strategy = selector.select_strategy(infos, graph)
    if not isinstance(plan.strategy, ExecutionStrategy):
        raise WrongTypeError(f"select_strategy must return an ExecutionStrategy, got {plan.strategy!r}")
    return plan


def _proven(
    site: "Site", analyzer: Analyzer, functions: dict[str, Any], nodes: dict[str, Any], columns: Any
) -> Effect:
    """Return the effect of all bodies. Raises `Decline`."""
    values = [column_value(analyzer, column, j) for j, column in enumerate(columns)]
    for which in sorted(functions, reverse=True):  # the condition before the body
        given = list(values)
        if which == "body" and site.text.kind == "loop" and not site.text.single:
            given.insert(0, Value(Events, fresh=True))
        if which == "items":
            given = [Value(type(columns[0]), elem=values[0])]  # the column as a whole
        analyzer.site_body(which, nodes[which], functions[which], given)
    if analyzer.guards.hold(functions, columns) is None:
        raise Decline(Effect.UNKNOWN, "the items are not all of one type")
    return analyzer.effect


def _axes(bodies: list[Any], columns: Any) -> dict[str, bool]:
    """Return the loop variables that are read, and whether their items can be stacked."""
    names = [argument.arg for argument in bodies[0].args.args][-len(columns) :]
    return {
        name: stacks(column[0])
        for name, column in zip(names, columns, strict=True)
        if any(reads(body, name) for body in bodies)
    }


def operator_of(function: Any, tree: Any) -> Any:
    """Return the function or module that a body calls, if it is just that call; else the body."""
    value = tree.body
    if isinstance(value, list):
        value = value[0].value if len(value) == 1 and isinstance(value[0], ast.Return) else None
    match value:
        case ast.Call(ast.Name(name), args, []) if all(isinstance(a, ast.Name) for a in args):
            code, cells = function.__code__, function.__closure__ or ()
            if name in code.co_freevars:
                found = cells[code.co_freevars.index(name)].cell_contents
            else:
                found = None if name in code.co_varnames else lookup_global(function.__globals__, name)
            kind = type(found)
            known = issubclass(kind, (types.FunctionType, torch.nn.Module))
            if known or (type(kind) is type and get_tree_functions(kind)):
                return found
    return function
