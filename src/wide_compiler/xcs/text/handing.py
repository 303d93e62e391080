"""Lists handed in blocks from the statement that makes them to the very next one."""

import ast
from typing import Any

from .blocks import Block
from .site_text import SiteText, name

Place = tuple[int, int]


class Handing:
    """Which list may be handed on to which statement of a function, while that is rewritten.

    Only to the next one, and only if that mentions the list once: anything else could have changed it before
    the site there comes to it. The blocks have a name in the function, so that they go with its frame, or
    before, and nothing of a call is kept after it.
    """

    def __init__(self) -> None:
        self.place: Place = (0, 0)  # of the statement being looked at
        self.taken: dict[Place, str] = {}  # names of blocks, by the statements they are handed to
        # A list, where it may be handed to, the site and the statement that make it.
        self.offered: tuple[str, Place | None, Any, Any] = ("", None, None, None)

    def enter(self, block: Block) -> None:
        self.place = (id(block.statements), block.index)

    def offer(self, identifier: str, block: Block, site: SiteText, made: ast.stmt) -> None:
        """The statement `made` makes a list of that name."""
        if block.after and _mentions(block.after[0], identifier) == 1:
            self.offered = (identifier, (id(block.statements), block.index + 1), site, made)

    def taken_by(self, source: ast.expr) -> str:
        """What a site loops over: the name of its blocks, if it is handed on; else empty."""
        identifier, place, site, made = self.offered
        if not isinstance(source, ast.Name) or (identifier, place) != (source.id, self.place):
            return ""
        asked = made.value
        if not isinstance(asked, ast.IfExp):
            return ""  # no site: its text was not understood
        self.taken[self.place] = blocks = f"__xcs_blocks{site.index}"
        room = ast.NamedExpr(name(blocks, store=True), ast.List([], ast.Load()))
        run: Any = asked.body.test.value.value  # type: ignore[attr-defined]
        run.keywords.append(ast.keyword("after", room))
        nothing = ast.NamedExpr(name(blocks, store=True), ast.Constant(None))
        both = ast.Tuple([nothing, asked.orelse], ast.Load())
        asked.orelse = ast.Subscript(both, ast.Constant(-1), ast.Load())
        return blocks

    def forgotten(self, node: ast.stmt) -> list[ast.stmt]:
        """After the statement that has taken blocks."""
        blocks = self.taken.get(self.place)
        if blocks is None or isinstance(node, ast.Return):
            return []
        return [ast.copy_location(ast.Assign([name(blocks, store=True)], ast.Constant(None)), node)]


def _mentions(statement: ast.stmt, identifier: str) -> int:
    return sum(isinstance(part, ast.Name) and part.id == identifier for part in ast.walk(statement))
