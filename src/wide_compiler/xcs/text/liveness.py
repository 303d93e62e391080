"""May the value that a name has now still be read? Asked of every path that statements can take.

Backwards over the text: a statement that reads the name makes it live, one that certainly stores it ends
that. Paths leave a statement at its end, by `break`, `continue` or `return`, and by an exception, which any
statement may raise before it has stored anything. A path through `finally` passes all of that first.
"""

import ast
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .names import reads, stored

Body = list[ast.stmt]
LEAVING = {ast.Return: "returns", ast.Raise: "raises", ast.Break: "breaks", ast.Continue: "continues"}


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


@dataclass(frozen=True)
class Exits:
    """Is the name live where a path leaves by this exit?"""

    breaks: bool = False
    continues: bool = False
    returns: bool = False
    raises: bool = False
    swallowing: bool = True  # may a `with` swallow an exception? Not where contexts are known

    def around(self, after: bool) -> "Exits":
        """Inside of a `with` after which the name is live, or is not."""
        return replace(self, raises=self.raises or (after and self.swallowing))


def live_after(node: ast.For, block: Block, name: str) -> bool:
    """May what the loop leaves in the name be read: after it, in a next round of a loop around it, or by
    whoever catches what it raises?"""
    after, exits = _Name(name).around(block)
    return exits.raises or _Name(name).live(node.orelse, after, exits)


def read_before_stored(body: Sequence[ast.stmt], name: str) -> bool:
    """On some path through a loop's body: then it may be carried from one round to the next. A body that
    enters contexts which could swallow an exception is never taken out of its loop."""
    return _Name(name).live(body, False, Exits(swallowing=False))


class _Name:
    """Questions about one name. `after`: is it live at the end of what is asked about?"""

    def __init__(self, name: str):
        self.name = name

    def reads(self, *nodes: ast.AST | None) -> bool:
        return any(node is not None and reads(node, self.name) for node in nodes)

    def stored_in(self, *targets: ast.AST) -> bool:
        return self.name in stored(targets)

    def live(self, statements: Sequence[ast.stmt], after: bool, exits: Exits) -> bool:
        """Is the name live before these statements, if it is so `after` them?"""
        for statement in reversed(statements):
            after = exits.raises or self._before(statement, after, exits)
        return after

    def _before(self, node: ast.stmt, after: bool, exits: Exits) -> bool:
        match node:
            case ast.AugAssign(target=target):
                return self.reads(node) or self.stored_in(target) or after
            case ast.Assign() | ast.AnnAssign():
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                return self.reads(node) or (after and not (node.value and self.stored_in(*targets)))
            case ast.Return() | ast.Raise() | ast.Break() | ast.Continue():
                return self.reads(node) or getattr(exits, LEAVING[type(node)])
            case ast.Expr() | ast.Assert() | ast.Delete() | ast.Pass() | ast.Global() | ast.Nonlocal():
                return self.reads(node) or after  # what a := stores in there is not certain
            case ast.If(test=test, body=body, orelse=orelse):
                return self.reads(test) or any(self.live(branch, after, exits) for branch in (body, orelse))
            case ast.While() | ast.For():
                source = node.iter if isinstance(node, ast.For) else None
                return self.reads(source) or self.before_loop(node, after, exits)
            case ast.With(items=items, body=body):
                return self._before_with(items, body, after, exits)
            case ast.Try() | ast.TryStar():
                inner, following = self.inside_try(node, after, exits)
                return self.live(node.body, following, inner)
            case ast.Match(subject=subject, cases=cases):
                taken = any(self.live(case.body, after, exits) for case in cases)
                asked = [part for case in cases for part in (case.pattern, case.guard)]
                return after or taken or self.reads(subject, *asked)
        # Functions, classes and imports: what they store is not counted on.
        return after or any(isinstance(part, ast.Name) and part.id == self.name for part in ast.walk(node))

    def before_loop(self, node: ast.For | ast.While, after: bool, exits: Exits) -> bool:
        """Live where the next round begins, or the loop ends."""
        top = False
        for _ in range(2):  # it can only become true
            inside = self.live(node.body, top, replace(exits, breaks=after, continues=top))
            if isinstance(node, ast.For):
                leaves, asked = True, self.reads(node.target) or exits.raises
                inside = inside and not self.stored_in(node.target)
            else:
                leaves = not (isinstance(node.test, ast.Constant) and node.test.value)
                asked = self.reads(node.test)
            top = top or asked or inside or (leaves and self.live(node.orelse, after, exits))
        return top

    def _through(self, final: Body, exits: Exits) -> Exits:
        """The same exits, each by way of a `finally`."""
        return replace(
            exits, **{way: self.live(final, getattr(exits, way), exits) for way in LEAVING.values()}
        )

    def inside_try(self, node: ast.Try | ast.TryStar, after: bool, exits: Exits) -> tuple[Exits, bool]:
        """The exits of the body of a `try`, and whether the name is live at its end."""
        outer = self._through(node.finalbody, exits)
        end = self.live(node.finalbody, after, exits)
        caught = outer.raises or any(
            self.reads(h.type) or (self.live(h.body, end, outer) and h.name != self.name)
            for h in node.handlers
        )
        return replace(outer, raises=caught), self.live(node.orelse, end, outer)

    def _before_with(self, items: list[ast.withitem], body: Body, after: bool, exits: Exits) -> bool:
        inner = exits.around(after)
        found = self.live(body, after, inner)
        for item in reversed(items):
            target = item.optional_vars
            if target is not None:
                found = inner.raises or self.reads(target) or (found and not self.stored_in(target))
            found = found or self.reads(item.context_expr)
        return found

    def around(self, block: Block) -> tuple[bool, Exits]:
        """Is the name live after the statement at this place, and at the exits from there?"""
        after, exits = False, Exits()
        if block.outer is not None:
            after, exits = self._within(block, *self.around(block.outer))
        return self.live(block.after, after, exits), exits

    def _within(self, block: Block, after: bool, exits: Exits) -> tuple[bool, Exits]:
        """The same at the end of a list of statements that belongs to another statement."""
        owner, statements = block.owner, block.statements
        match owner:
            case ast.For() | ast.While() if statements is owner.body:
                top = self.before_loop(owner, after, exits)
                return top, replace(exits, breaks=after, continues=top)
            case ast.With():
                return after, exits.around(after)
            case ast.Try() | ast.TryStar() if statements is owner.finalbody:
                # Whoever came here goes on there: to the end, to a handler, or out of the function.
                return after or exits.breaks or exits.continues or exits.returns or exits.raises, exits
            case ast.Try() | ast.TryStar():
                inner, end = self.inside_try(owner, after, exits)
                if statements is owner.body:
                    return end, inner
                return self.live(owner.finalbody, after, exits), self._through(owner.finalbody, exits)
        return after, exits
