"""The bodies of sites as functions of their loop variables."""

import ast
from typing import Any

from . import sites
from .site_text import EVENTS, ITEMS, name
from .sites import Sink, flat_target
from .trees import clone


def lambda_of(parameters: list[str], value: ast.expr) -> ast.Lambda:
    arguments = ast.arguments(
        posonlyargs=[], args=[ast.arg(p) for p in parameters], kwonlyargs=[], kw_defaults=[], defaults=[]
    )
    return ast.fix_missing_locations(ast.copy_location(ast.Lambda(arguments, value), value))


def items_of(node: Any, targets: list[str]) -> ast.expr:
    """All rounds of a comprehension of several loops, as tuples of the loop variables."""
    generators = [clone(g) for g in node.generators]
    generators[0].iter = name(ITEMS)
    value = ast.Tuple([name(t) for t in targets], ast.Load())
    return ast.copy_location(ast.GeneratorExp(value, generators), node)


def loop_body(
    node: ast.For, sinks: list[Sink], function: str, carried: sites.Carrying | None
) -> tuple[ast.FunctionDef, bool]:
    """The loop's body as a function of the loop variables.

    It notes what it would fill in a list of events, `(sink, value)`; where the one sink comes last and
    always,
    the value is simply returned.
    """
    body = [clone(part) for part in node.body]
    targets = flat_target(node.target) or []
    if carried is not None:
        given = ast.Return(ast.Tuple([name(n) for n in carried.reads], ast.Load()))
        return function_of(
            function, targets, [*body[: carried.start], ast.copy_location(given, body[-1])], node
        ), True
    tail = body
    while isinstance(tail[-1], ast.With):  # what it fills last may stand within a context
        tail = tail[-1].body
    ends = sites.sink_of(tail[-1])
    count = sum(sites.sink_of(p) in sinks for t in body for p in ast.walk(t) if isinstance(p, ast.stmt))
    leaves = any(isinstance(p, ast.Continue) for t in body for p in ast.walk(t))
    single = ends in sinks and count == 1 and not leaves
    if single:
        parameters = targets
        tail[-1] = ast.copy_location(ast.Return(_sink_value(tail[-1])), tail[-1])
    else:
        parameters = [EVENTS, *targets]
        body = [_Events(sinks).visit(s) for s in body]
    return function_of(function, parameters, body, node), single


def step_of(node: ast.For, carried: sites.Carrying, function: str) -> ast.FunctionDef:
    """The last statements of a round as a function of what is carried and of what the round has made."""
    given = ast.copy_location(
        ast.Return(ast.Tuple([name(n) for n in carried.names], ast.Load())), node.body[-1]
    )
    last = [clone(part) for part in node.body[carried.start :]]
    return function_of(function, [*carried.names, *carried.reads], [*last, given], node)


def function_of(function: str, parameters: list[str], body: list[Any], node: ast.AST) -> ast.FunctionDef:
    arguments = ast.arguments(
        posonlyargs=[], args=[ast.arg(p) for p in parameters], kwonlyargs=[], kw_defaults=[], defaults=[]
    )
    made = ast.FunctionDef(name=function, args=arguments, body=body, decorator_list=[])
    if "type_params" in ast.FunctionDef._fields:
        made.type_params = []  # type: ignore[attr-defined]
    return ast.fix_missing_locations(ast.copy_location(made, node))


def _sink_value(statement: ast.stmt) -> ast.expr:
    match statement:
        case ast.Expr(ast.Call(_, [value], _)):
            return value
        case ast.Assign([ast.Subscript(_, key)], value):
            return ast.Tuple([value, key], ast.Load())
        case ast.AugAssign(ast.Subscript(_, key), _, value):
            return ast.Tuple([value, key], ast.Load())
        case ast.AugAssign(_, _, value):
            return value
    raise AssertionError(ast.dump(statement))


class _Events(ast.NodeTransformer):
    """In a loop's body: sinks note an event, `continue` returns."""

    def __init__(self, sinks: list[Sink]):
        self.sinks = sinks
        self.inner = 0

    def visit(self, node: ast.AST) -> Any:
        sink = sites.sink_of(node) if isinstance(node, ast.stmt) else None
        if sink is not None and sink in self.sinks:
            event = ast.Tuple([ast.Constant(self.sinks.index(sink)), _sink_value(node)], ast.Load())  # type: ignore[arg-type]
            note = ast.Call(ast.Attribute(name(EVENTS), "append", ast.Load()), [event], [])
            return ast.copy_location(ast.Expr(note), node)
        return super().visit(node)

    def visit_Continue(self, node: ast.Continue) -> ast.stmt:
        return node if self.inner else ast.copy_location(ast.Return(None), node)

    def _inner_loop(self, node: Any) -> Any:
        self.inner += 1
        node.body = [self.visit(s) for s in node.body]
        self.inner -= 1
        node.orelse = [self.visit(s) for s in node.orelse]
        return node

    visit_For = visit_While = _inner_loop
