"""What can be told from the text of a body and of all functions that were analysed for it: may it go one way
or another, and might it not end? Where all items run at once, that must not cost more than plain Python."""

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..text.names import COMPREHENSIONS, handled

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

    @functools.cached_property
    def loops(self) -> bool:
        """Is there a loop, or recursion?"""
        return self.recursive or any(isinstance(n, LOOPS) for n in self.nodes())

    @functools.cached_property
    def may_run_long(self) -> bool:
        """May it depend on the numbers of an item how long it takes?"""
        return self.loops or any(isinstance(n, COMPREHENSIONS) and not _bounded(n) for n in self.nodes())

    @functools.cached_property
    def may_try_for_ever(self) -> bool:
        """May a bail-out be caught, and what raised it be tried again and again?"""
        return self.loops and any(_catches_all(n) for n in self.nodes())


def _bounded(node: Any) -> bool:
    """A comprehension over things that are not made for it, and that it does not touch otherwise."""
    sources = [part for g in node.generators for part in ast.walk(g.iter)]
    given = {part.id for part in sources if isinstance(part, ast.Name)}
    mentioned = [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    called = any(isinstance(part, ast.Call) for part in sources)
    return not called and all(mentioned.count(name) == 1 for name in given)


def _catches_all(node: ast.AST) -> bool:
    if isinstance(node, ast.ExceptHandler):
        return not all(kind is not None and issubclass(kind, Exception) for kind in handled(node))
    # A `finally` that goes elsewhere drops the exception.
    leaving = (ast.Return, ast.Break, ast.Continue)
    final = node.finalbody if isinstance(node, TRIES) else []
    return any(isinstance(part, leaving) for top in final for part in ast.walk(top))
