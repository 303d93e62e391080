"""May the value that a name has now still be read? Asked of every path that statements can take.

Backwards over the text: a statement that reads the name makes it live, one that certainly stores it ends
that. Paths leave a statement at its end, by `break`, `continue` or `return`, and by an exception, which any
statement may raise before it has stored anything. A path through `finally` passes all of that first.
"""

import ast
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .names import reads, stored


@dataclass(frozen=True)
class Exits:
    """Is the name live where a path leaves by this exit?"""

    breaks: bool = False
    continues: bool = False
    returns: bool = False
    raises: bool = False
    swallowing: bool = True  # may a `with` swallow an exception? Not where contexts are known

    def through(self, final: list[ast.stmt], name: str) -> "Exits":
        """The same exits, each by way of a `finally`."""
        ways = {
            e: live(final, name, getattr(self, e), self) for e in ("breaks", "continues", "returns", "raises")
        }
        return replace(self, **ways)


def live(statements: Sequence[ast.stmt], name: str, after: bool, exits: Exits) -> bool:
    """Is the name live before these statements, if it is so `after` them?"""
    for statement in reversed(statements):
        after = exits.raises or _before(statement, name, after, exits)
    return after


def read_before_stored(body: Sequence[ast.stmt], name: str) -> bool:
    """On some path through a loop's body: then it may be carried from one round to the next.

    A body that enters contexts which could swallow an exception is never taken out of its loop.
    """
    return live(body, name, False, Exits(swallowing=False))


def _before(node: ast.stmt, name: str, after: bool, exits: Exits) -> bool:
    match node:
        case ast.Assign(targets=targets):
            return reads(node, name) or (after and name not in stored(targets))
        case ast.AugAssign(target=target):
            return reads(node, name) or name in stored([target]) or after
        case ast.AnnAssign(value=value):
            return reads(node, name) or (after and (value is None or name not in stored([node.target])))
        case ast.Return():
            return reads(node, name) or exits.returns
        case ast.Raise():
            return reads(node, name) or exits.raises
        case ast.Break():
            return exits.breaks
        case ast.Continue():
            return exits.continues
        case ast.Pass() | ast.Global() | ast.Nonlocal():
            return after
        case ast.Expr() | ast.Assert() | ast.Delete():  # what a := stores in there is not certain
            return reads(node, name) or after
        case ast.If(test=test, body=body, orelse=orelse):
            return reads(test, name) or any(live(branch, name, after, exits) for branch in (body, orelse))
        case ast.While():
            return before_loop(node, name, after, exits)
        case ast.For(iter=source):
            return reads(source, name) or before_loop(node, name, after, exits)
        case ast.With(items=items, body=body):
            return _before_with(items, body, name, after, exits)
        case ast.Try() | ast.TryStar():
            inner, following = inside_try(node, name, after, exits)
            return live(node.body, name, following, inner)
        case ast.Match(subject=subject, cases=cases):
            guards = [part for case in cases for part in (case.pattern, case.guard) if part is not None]
            taken = any(live(case.body, name, after, exits) for case in cases)
            return after or taken or reads(subject, name) or any(reads(part, name) for part in guards)
    # Functions, classes and imports: what they store is not counted on.
    return after or any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(node))


def before_loop(node: ast.For | ast.While, name: str, after: bool, exits: Exits) -> bool:
    """Live where the next round begins, or the loop ends."""
    top = False
    for _ in range(2):  # it can only become true
        top = top or _round(node, name, after, top, exits)
    return top


def _round(node: ast.For | ast.While, name: str, after: bool, top: bool, exits: Exits) -> bool:
    inside = live(node.body, name, top, inside_loop(after, top, exits))
    if isinstance(node, ast.For):
        leaves, asked = True, reads(node.target, name) or exits.raises
        inside = inside and name not in stored([node.target])
    else:
        leaves, asked = not (isinstance(node.test, ast.Constant) and node.test.value), reads(node.test, name)
    return asked or inside or (leaves and live(node.orelse, name, after, exits))


def inside_loop(after: bool, top: bool, exits: Exits) -> Exits:
    return replace(exits, breaks=after, continues=top)


def inside_with(after: bool, exits: Exits) -> Exits:
    return replace(exits, raises=exits.raises or (after and exits.swallowing))


def inside_try(node: "ast.Try | ast.TryStar", name: str, after: bool, exits: Exits) -> tuple[Exits, bool]:
    """The exits of the body of a `try`, and whether the name is live at its end."""
    outer = exits.through(node.finalbody, name)
    end = live(node.finalbody, name, after, exits)
    caught = outer.raises
    for handler in node.handlers:
        asked = handler.type is not None and reads(handler.type, name)
        caught = caught or asked or (live(handler.body, name, end, outer) and handler.name != name)
    return replace(outer, raises=caught), live(node.orelse, name, end, outer)


def _before_with(
    items: list[ast.withitem], body: list[ast.stmt], name: str, after: bool, exits: Exits
) -> bool:
    inner = inside_with(after, exits)
    found = live(body, name, after, inner)
    for item in reversed(items):
        target = item.optional_vars
        if target is not None:
            found = inner.raises or reads(target, name) or (found and name not in stored([target]))
        found = found or reads(item.context_expr, name)
    return found
