"""Sinks within a `try`: they are filled after the bodies have run, yet the `try` must see any error."""

import ast
import builtins

from .blocks import Body
from .sites import Sink, sink_of

FILLING: dict[str, tuple[type[Exception], ...]] = {
    "add": (TypeError,),
    "setitem": (TypeError,),
    "update": (TypeError, LookupError, ArithmeticError, ValueError, MemoryError),
    "carried": (Exception,),
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
    return any(_related(kind, FILLING[sink.kind]) for h in node.handlers for kind in handled(h))


def _related(kind: type | None, errors: tuple[type[Exception], ...]) -> bool:
    """May an `except` of this catch one of these errors? Only builtin classes say no."""
    return kind is None or any(issubclass(kind, e) or issubclass(e, kind) for e in errors)


def handled(handler: ast.ExceptHandler) -> list[type | None]:
    """The builtin classes that an `except` names; None for whatever else it may catch."""
    named = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    found = [getattr(builtins, n.id, None) if isinstance(n, ast.Name) else None for n in named]
    return [kind if isinstance(kind, type) else None for kind in found]
