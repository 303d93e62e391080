"""Where a statement stands, and which names are still needed from there on."""

import ast
from dataclasses import dataclass

from .liveness import Exits, before_loop, inside_loop, inside_try, inside_with, live

Body = list[ast.stmt]


@dataclass
class Block:
    """Where a statement stands: its list of statements, its place there, and the blocks around."""

    statements: Body
    index: int
    owner: ast.AST
    outer: "Block | None" = None

    @property
    def after(self) -> Body:
        return self.statements[self.index + 1 :]


def live_after(node: ast.For, block: Block, name: str) -> bool:
    """May what the loop leaves in the name be read: after it, in a next round of a loop around it, or by
    whoever catches what it raises?"""
    after, exits = _around(block, name)
    return exits.raises or live(node.orelse, name, after, exits)


def _around(block: Block, name: str) -> tuple[bool, Exits]:
    """Is the name live after the statement at this place, and at the exits from there?"""
    if block.outer is None:
        after, exits = False, Exits()
    else:
        after, exits = _within(block, *_around(block.outer, name), name)
    return live(block.after, name, after, exits), exits


def _within(block: Block, after: bool, exits: Exits, name: str) -> tuple[bool, Exits]:
    """The same at the end of a list of statements that belongs to another statement."""
    owner, statements = block.owner, block.statements
    match owner:
        case ast.For() | ast.While() if statements is owner.body:
            top = before_loop(owner, name, after, exits)
            return top, inside_loop(after, top, exits)
        case ast.With():
            return after, inside_with(after, exits)
        case ast.Try() | ast.TryStar() if statements is owner.finalbody:
            # Whoever came here goes on there: to the end, to a handler, or out of the function.
            ways = (after, exits.breaks, exits.continues, exits.returns, exits.raises)
            return any(ways), exits
        case ast.Try() | ast.TryStar():
            inner, end = inside_try(owner, name, after, exits)
            if statements is owner.body:
                return end, inner
            return live(owner.finalbody, name, after, exits), exits.through(owner.finalbody, name)
    return after, exits
