"""Liveness analysis: whether the current value of a name may still be read, on any path through statements.

A path leaves a statement at its end, by `break` or `continue`, or by `return` or `raise`. Any statement may
raise before it has stored anything; the path then continues in the enclosing handlers.
"""

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from .names import mentioned, reads, stored

Body = list[ast.stmt]
TRIES = (ast.Try, ast.TryStar)
LOOPS = (ast.For, ast.While, ast.AsyncFor)


@dataclass
class Block:
    """The position of a statement: its statement list, its index, and the enclosing blocks."""

    statements: Body
    index: int
    owner: ast.AST
    outer: "Block | None" = None

    @property
    def after(self) -> Body:
        return self.statements[self.index + 1 :]

    def around(self) -> "Iterator[Block]":
        block: Block | None = self
        while block is not None:
            yield block
            block = block.outer


@dataclass
class Paths:
    """What may happen to a value on the paths through some statements.

    Attributes:
        read: it may be read.
        ends: it may reach the end of the statements.
        leaves: it may leave by `break` or `continue`.
    """

    read: bool = False
    ends: bool = True
    leaves: bool = False


def live_after(node: ast.For, block: Block, name: str) -> bool:
    """Return whether the value that the loop leaves in `name` may be read later.

    That is after the loop, in the next iteration of an enclosing loop, or by an exception handler.
    """
    guarded = any(isinstance(b.owner, (ast.With, ast.AsyncWith, *TRIES)) for b in block.around())
    rest = [*node.orelse, *block.after]
    for here in block.around():
        found, owner = _through(rest, name, True), here.owner
        if found.read:
            return True
        if here.outer is None or not (found.ends or found.leaves or guarded):
            return False
        if isinstance(owner, TRIES):
            later = any(reads(part, name) for part in (*owner.handlers, *owner.orelse))
            if later or _through(owner.finalbody, name, True).read:
                return True
        if isinstance(owner, LOOPS) and _before(owner, name, True).read:
            return True
        rest = here.outer.after
    return False


def read_before_stored(body: Sequence[ast.stmt], name: str) -> bool:
    """Return whether `name` may be read before it is stored, with the previous iteration's value.

    Contexts that swallow exceptions are not considered: bodies that enter such contexts are never sites.
    """
    return _through(body, name, False).read


def _through(statements: Iterable[ast.stmt], name: str, swallowing: bool) -> Paths:
    """Follow statements in order.

    Args:
        swallowing: a `with` may suppress an exception.
    """
    leaves = False
    for statement in statements:
        found = _before(statement, name, swallowing)
        leaves = leaves or found.leaves
        if found.read or not found.ends:
            return Paths(found.read, found.ends, leaves)
    return Paths(leaves=leaves)


def _either(*ways: Paths) -> Paths:
    return Paths(any(w.read for w in ways), any(w.ends for w in ways), any(w.leaves for w in ways))


def _before(node: ast.stmt, name: str, swallowing: bool) -> Paths:
    def through(*statements: ast.stmt) -> Paths:
        return _through(statements, name, swallowing)

    match node:
        case ast.AugAssign(target=target):
            return Paths(reads(node, name) or name in stored([target]))
        case ast.Assign(targets=targets):
            return Paths(reads(node, name), name not in stored(targets))
        case ast.AnnAssign(target=target, value=value):
            return Paths(reads(node, name), value is None or name not in stored([target]))
        case ast.Return() | ast.Raise():
            return Paths(reads(node, name), False)
        case ast.Break() | ast.Continue():
            return Paths(ends=False, leaves=True)
        case ast.If(test=test, body=body, orelse=orelse):
            found = _either(through(*body), through(*orelse))
            return Paths(reads(test, name) or found.read, found.ends, found.leaves)
        case ast.For(target=target, iter=source, body=body, orelse=orelse):
            read = name not in stored([target]) and through(*body).read
            read, last = read or any(reads(n, name) for n in (source, target)), through(*orelse)
            return Paths(read or last.read, leaves=last.leaves)
        case ast.While(test=test, body=body, orelse=orelse):
            read, last = reads(test, name) or through(*body).read, through(*orelse)
            return Paths(read or last.read, leaves=last.leaves)
        case ast.With(items=items, body=body):
            found = through(*body)
            entered = any(reads(item, name) for item in items)
            return Paths(entered or found.read, found.ends or swallowing, found.leaves)
        case ast.Try() | ast.TryStar():
            asked = any(reads(h.type, name) for h in node.handlers if h.type is not None)
            found = _either(through(*node.body, *node.orelse), *(through(*h.body) for h in node.handlers))
            last = through(*node.finalbody)
            read = asked or found.read or last.read
            return Paths(read, found.ends and last.ends, found.leaves or last.leaves)
    # Other statements are assumed to store nothing. Nested functions and classes may read the name at any
    # time.
    simple = isinstance(node, (ast.Expr, ast.Assert, ast.Delete))
    return Paths(reads(node, name) if simple else name in mentioned(node), leaves=isinstance(node, ast.Match))
