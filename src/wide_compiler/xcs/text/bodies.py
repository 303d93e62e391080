"""Build the bodies of sites as functions of their loop variables."""

import ast
from typing import Any

from .site_text import EVENTS, ITEM, ITEMS
from .sites import Carrying, Sink, flat_target, sink_of, sinks_in
from .trees import clone, expression, function_of, name, walk


def items_of(node: Any, targets: list[str]) -> ast.expr:
    """Return a generator of all iterations of nested loops, as tuples of the loop variables."""
    generators = [clone(g) for g in node.generators]
    generators[0].iter = name(ITEMS)
    value = ast.Tuple([name(t) for t in targets], ast.Load())
    return ast.copy_location(ast.GeneratorExp(value, generators), node)


def as_generator(mapped: ast.Call) -> ast.GeneratorExp:
    """Return the generator `(f(x) for x in xs)` equivalent to `map(f, xs)`."""
    function, source = map(clone, mapped.args)
    made = expression("(F(X) for X in S)", F=function, S=source, X=ITEM)
    return ast.fix_missing_locations(ast.copy_location(made, mapped))


def loop_body(
    node: ast.For, sinks: list[Sink], function: str, carried: Carrying | None
) -> tuple[ast.FunctionDef, bool]:
    """Return the loop's body as a function of the loop variables, and whether it returns a single value.

    If the only sink is the last statement and always runs, the function returns the value. Otherwise it
    appends an event `(sink index, value)` to a list for each value.
    """
    body = [clone(part) for part in node.body]
    targets = flat_target(node.target) or []
    if carried is not None:
        return function_of(function, targets, [*body[: carried.start], _given(carried.reads)], node), True
    tail = body
    while isinstance(tail[-1], ast.With):  # the last sink may be inside a `with`
        tail = tail[-1].body
    count = sum(sink in sinks for sink in sinks_in(*body))
    leaves = any(isinstance(part, ast.Continue) for part in walk(*body))
    single = sink_of(tail[-1]) in sinks and count == 1 and not leaves
    if single:
        tail[-1] = ast.copy_location(ast.Return(_sink_value(tail[-1])), tail[-1])
    else:
        targets = [EVENTS, *targets]
        body = [_Events(sinks).visit(s) for s in body]
    return function_of(function, targets, body, node), single


def step_of(node: ast.For, carried: Carrying, function: str) -> ast.FunctionDef:
    """Return the last statements of an iteration as a function of the carried and the newly stored names."""
    last = [clone(part) for part in node.body[carried.start :]]
    return function_of(function, [*carried.names, *carried.reads], [*last, _given(carried.names)], node)


def _given(names: list[str]) -> ast.stmt:
    return ast.Return(ast.Tuple([name(n) for n in names], ast.Load()))


def _sink_value(statement: ast.stmt) -> ast.expr:
    match statement:
        case ast.Assign([ast.Subscript(_, key)], value) | ast.AugAssign(ast.Subscript(_, key), _, value):
            return ast.Tuple([value, key], ast.Load())
        case ast.Expr(ast.Call(_, [value], _)) | ast.AugAssign(_, _, value):
            return value
    raise AssertionError(ast.dump(statement))


class _Events(ast.NodeTransformer):
    """Replaces sinks by appending an event, and `continue` by `return`."""

    def __init__(self, sinks: list[Sink]):
        self.sinks = sinks
        self.inner = 0

    def visit(self, node: ast.AST) -> Any:
        sink = sink_of(node)
        if sink is not None and sink in self.sinks:
            which, value = ast.Constant(self.sinks.index(sink)), _sink_value(node)  # type: ignore[arg-type]
            note = expression("E.append((W, V))", E=EVENTS, W=which, V=value)
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
