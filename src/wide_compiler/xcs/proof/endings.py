"""Bodies that might not end: where all items run at once, that must not cost more than plain Python would.

What is asked here can be told from the text of a body and of all functions that were analysed for it.
"""

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..text.attempts import handled
from ..text.names import COMPREHENSIONS

LOOPS = (ast.While, ast.For)
TRIES = (ast.Try, ast.TryStar)
BRANCHES = (*LOOPS, *TRIES, ast.If, ast.IfExp, ast.BoolOp, ast.Match, ast.Assert, ast.comprehension)


@dataclass(frozen=True)
class Texts:
    """Bodies, and all functions that were analysed for them."""

    trees: tuple[ast.AST, ...] = ()
    recursive: bool = False

    def nodes(self) -> Iterator[ast.AST]:
        for tree in self.trees:
            yield from ast.walk(tree)

    @functools.cached_property
    def branches(self) -> bool:
        """May it go one way or another?"""
        return any(isinstance(n, BRANCHES) for n in self.nodes())

    @functools.cached_property
    def tries(self) -> bool:
        """Is there a `try`?"""
        return any(isinstance(n, TRIES) for n in self.nodes())


def may_run_long(texts: Texts) -> bool:
    """Is there a loop, or recursion? How long it takes may depend on the numbers of an item."""
    return texts.recursive or any(
        isinstance(n, LOOPS) or (isinstance(n, COMPREHENSIONS) and not _goes_over_what_is_there(n))
        for n in texts.nodes()
    )


def _goes_over_what_is_there(node: Any) -> bool:
    """A comprehension over things that are not made for it, and that it does not touch otherwise."""
    sources = [part for g in node.generators for part in ast.walk(g.iter)]
    given = {part.id for part in sources if isinstance(part, ast.Name)}
    mentioned = [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    return not any(isinstance(part, ast.Call) for part in sources) and all(
        mentioned.count(name) == 1 for name in given
    )


def may_try_for_ever(texts: Texts) -> bool:
    """May a bail-out be caught, and what raised it be tried again and again?"""
    nodes = list(texts.nodes())
    again = texts.recursive or any(isinstance(n, LOOPS) for n in nodes)
    return again and any(_catches_all(n) for n in nodes)


def _catches_all(node: ast.AST) -> bool:
    if isinstance(node, ast.ExceptHandler):
        return not all(kind is not None and issubclass(kind, Exception) for kind in handled(node))
    if not isinstance(node, TRIES):
        return False
    # A `finally` that goes elsewhere drops the exception.
    leaving = (ast.Return, ast.Break, ast.Continue)
    return any(isinstance(part, leaving) for top in node.finalbody for part in ast.walk(top))
