"""Facts read from the source of a body and of all functions analysed for it."""

import ast
from collections.abc import Iterable

from ..text.trees import walk

LOOPS = (ast.While, ast.For)
BRANCHES = (*LOOPS, ast.Try, ast.If, ast.IfExp, ast.BoolOp, ast.Match, ast.Assert, ast.comprehension)


class Texts:
    """A body and the functions analysed for it.

    Attributes:
        branches: whether control flow may depend on values.
        tries: whether there is a `try`.
    """

    def __init__(self, trees: Iterable[ast.AST] = ()):
        kinds = {type(node) for node in walk(*trees)}
        self.branches = not kinds.isdisjoint(BRANCHES)
        self.tries = ast.Try in kinds
