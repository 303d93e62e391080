"""What can be told from the text of a body and of all functions that were analysed for it: may it go one way
or another, and might it not end? Where all items run at once, that must not cost more than plain Python."""

import ast
from collections.abc import Iterable

from ..text.names import COMPREHENSIONS

LOOPS = (ast.While, ast.For)
BRANCHES = (*LOOPS, ast.Try, ast.If, ast.IfExp, ast.BoolOp, ast.Match, ast.Assert, ast.comprehension)


class Texts:
    """Bodies, and all functions that were analysed for them.

    Attributes:
        branches: may it go one way or another?
        tries: is there a `try`?
        may_run_long: may it depend on the numbers of an item how long it takes?
        may_try_for_ever: may a bail-out be caught, and what raised it be tried again and again?
    """

    def __init__(self, trees: Iterable[ast.AST] = ()):
        kinds = {type(node) for tree in trees for node in ast.walk(tree)}
        loops = not kinds.isdisjoint(LOOPS)
        self.branches = not kinds.isdisjoint(BRANCHES)
        self.tries = ast.Try in kinds
        self.may_run_long = loops or not kinds.isdisjoint(COMPREHENSIONS)
        self.may_try_for_ever = loops and self.tries
