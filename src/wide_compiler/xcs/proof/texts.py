"""What can be told from the text of a body and of all functions that were analysed for it: may it go one way
or another, and might it not end? Where all items run at once, that must not cost more than plain Python."""

import ast
from collections.abc import Iterable

LOOPS = (ast.While, ast.For)
BRANCHES = (*LOOPS, ast.Try, ast.If, ast.IfExp, ast.BoolOp, ast.Match, ast.Assert, ast.comprehension)


class Texts:
    """Bodies, and all functions that were analysed for them.

    Attributes:
        branches: may it go one way or another?
        tries: is there a `try`?
    """

    def __init__(self, trees: Iterable[ast.AST] = ()):
        kinds = {type(node) for tree in trees for node in ast.walk(tree)}
        self.branches = not kinds.isdisjoint(BRANCHES)
        self.tries = ast.Try in kinds
