"""Sinks within a `try`: they are filled after the bodies have run, yet the `try` must see any error."""

import ast
import builtins

from .blocks import Body
from .sites import Sink, sink_of

FILLING: dict[str, tuple[type[Exception], ...]] = {
    "add": (TypeError,),
    "setitem": (TypeError,),
    "accumulate": (TypeError, ArithmeticError, ValueError, MemoryError),
}  # what filling a sink may raise


def attempted(body: Body, sinks: list[Sink]) -> tuple[bool, bool]:
    """Does a body fill something within a `try` where that could raise, and could somebody there notice?"""
    tries = [t for top in body for t in ast.walk(top) if isinstance(t, (ast.Try, ast.TryStar))]
    inside = [s for t in tries for s in _raising(t, sinks)]
    return bool(inside), any(_catches(t, sink) for t in tries for sink in _raising(t, sinks))


def _raising(node: ast.AST, sinks: list[Sink]) -> list[Sink]:
    """What is filled inside that may refuse a value: a list takes anything."""
    found = [sink_of(part) for part in ast.walk(node) if isinstance(part, ast.stmt)]
    return [sink for sink in found if sink in sinks and sink is not None and sink.kind != "append"]


def _catches(node: "ast.Try | ast.TryStar", sink: Sink) -> bool:
    """Would a handler or `finally` of this `try` see the error of filling this sink?"""
    if node.finalbody:
        return True
    if not any(sink in _raising(part, [sink]) for part in node.body):
        return False
    types = [part for handler in node.handlers for part in _listed(handler.type)]
    return any(_related(kind, FILLING[sink.kind]) for kind in types)


def _listed(node: ast.expr | None) -> list[ast.expr | None]:
    return list(node.elts) if isinstance(node, ast.Tuple) else [node]


def _related(node: ast.expr | None, errors: tuple[type[Exception], ...]) -> bool:
    """May an `except` of this catch one of these errors? Only names of builtin exceptions say no."""
    kind = getattr(builtins, node.id, None) if isinstance(node, ast.Name) else None
    if not isinstance(kind, type):
        return True
    return any(issubclass(kind, e) or issubclass(e, kind) for e in errors)
