"""Liveness analysis: whether the current value of a name may still be read, on any path through statements.

Any statement may raise before it has stored anything; the path then continues in the enclosing handlers.
"""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .names import mentioned, reads, stored
from .trees import walk

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


def live_after(node: ast.For, block: Block, name: str) -> bool:
    """Return whether the value that the loop leaves in `name` may be read later.

    That is after the loop, in the next iteration of an enclosing loop, or by an exception handler.
    """
    guarded = any(isinstance(b.owner, (ast.With, ast.AsyncWith, *TRIES)) for b in block.around())
    rest = [*node.orelse, *block.after]
    for here in block.around():
        owner, read, leaves = here.owner, None, guarded
        for statement in rest:
            read = _read_in(statement, name, True)
            leaves = leaves or any(isinstance(part, (ast.Break, ast.Continue)) for part in walk(statement))
            if read is not None:
                break
        if read or here.outer is None or (read is False and not leaves):
            return bool(read)
        if isinstance(owner, TRIES):
            if name in mentioned(*owner.handlers, *owner.orelse) or read_first(owner.finalbody, name):
                return True
        elif isinstance(owner, LOOPS) and read_first([owner], name):
            return True
        rest = here.outer.after
    return False


def read_first(statements: Iterable[ast.stmt], name: str, swallowing: bool = True) -> bool | None:
    """Return whether the value of `name` may be read; None if it is not, but may still be there at the end.

    The end is not reached by `return`, `raise`, `break` and `continue`.

    Args:
        swallowing: a `with` may suppress an exception. Bodies that enter such contexts are never sites.
    """
    for statement in statements:
        read = _read_in(statement, name, swallowing)
        if read is not None:
            return read
    return None


def _read_in(node: ast.stmt, name: str, swallowing: bool) -> bool | None:
    heads: list[ast.AST]
    ways, last = [], []  # type: tuple[list[Body], Body]
    match node:
        case ast.Assign() | ast.AnnAssign() | ast.AugAssign() if node.value is not None:
            kept = name not in stored([node])
            return reads(node, name) or (None if kept else isinstance(node, ast.AugAssign))
        case ast.Return() | ast.Raise() | ast.Break() | ast.Continue():
            return reads(node, name)
        case ast.If():
            heads, ways = [node.test], [node.body, node.orelse]
        case ast.While():
            heads, ways = [node.test], [node.body, node.orelse, []]
        case ast.For():
            body = [] if name in stored([node.target]) else node.body
            heads, ways = [node.iter, node.target], [body, node.orelse, []]
        case ast.With():
            if name in stored(item.optional_vars for item in node.items if item.optional_vars is not None):
                return any(reads(item, name) for item in node.items)
            heads, ways = [*node.items], [node.body, *([[]] if swallowing else [])]
        case ast.Try() | ast.TryStar():
            heads = [handler.type for handler in node.handlers if handler.type is not None]
            handled = [handler.body for handler in node.handlers if handler.name != name]
            ways = [[*node.body, *node.orelse], *handled]
            last = node.finalbody
        case ast.Expr() | ast.Assert() | ast.Delete():
            return reads(node, name) or None
        case _:  # nested functions and classes may read the name at any time; nothing else stores it
            return name in mentioned(node) or None
    found = [read_first(way, name, swallowing) for way in ways]
    ending = read_first(last, name, swallowing)
    if any(reads(head, name) for head in heads) or any(found) or ending:
        return True
    return ending if None in found else False
