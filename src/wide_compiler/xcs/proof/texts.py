"""What can be told from the text of a body and of all functions that were analysed for it: may it go one way
or another, and might it not end? Where all items run at once, that must not cost more than plain Python."""

import ast
from collections.abc import Iterable
from typing import Any

from ..text.names import COMPREHENSIONS, handled

LOOPS = (ast.While, ast.For)
TRIES = (ast.Try, ast.TryStar)
BRANCHES = (*LOOPS, *TRIES, ast.If, ast.IfExp, ast.BoolOp, ast.Match, ast.Assert, ast.comprehension)


class Texts:
    """Bodies, and all functions that were analysed for them.

    Attributes:
        recursive: does one of them call itself?
        branches: may it go one way or another?
        tries: is there a `try`?
        may_run_long: may it depend on the numbers of an item how long it takes?
        may_try_for_ever: may a bail-out be caught, and what raised it be tried again and again?
    """

    def __init__(self, trees: Iterable[ast.AST] = (), recursive: bool = False):
        nodes = [node for tree in trees for node in ast.walk(tree)]
        loops = recursive or any(isinstance(n, LOOPS) for n in nodes)
        self.recursive = recursive
        self.branches = any(isinstance(n, BRANCHES) for n in nodes)
        self.tries = any(isinstance(n, TRIES) for n in nodes)
        self.may_run_long = loops or any(isinstance(n, COMPREHENSIONS) and not _bounded(n) for n in nodes)
        self.may_try_for_ever = loops and any(map(_catches_all, nodes))


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
