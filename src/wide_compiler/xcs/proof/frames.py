"""A function that is being analysed: its names, the loops and `try` statements around the present point."""

import ast
import functools
import types
from typing import Any

from ..text.names import captured, stored
from ..text.source import FunctionNode
from .values import Value, join

Env = dict[str, Value]


class Loop:
    """A loop: what holds where it is left, and where a round is cut short."""

    def __init__(self) -> None:
        self.breaks: list[Env] = []
        self.continues: list[Env] = []


class Frame:
    """One function being analysed: where its free names are found, and what it returns."""

    def __init__(self, node: FunctionNode, function: Any, slot: int | None, parent: "Frame | None" = None):
        self.node = node
        self.function = function  # the function object, for globals and cells
        self.slot = slot
        self.parent = parent  # of a function defined inside another analysed one
        self.outer: Env | None = None  # of a site's own body: the names of the jitted function
        self.returns: list[Value] = []
        self.loops: list[Loop] = []
        self.tries: list[Env] = []  # for each `try` around: all values that names were given in it
        self.handling = 0  # handlers of errors around
        self.captured, self.locals = _names(node)
        self.cells: Env = {}  # captured names, with any value they ever had: nobody knows when they are read
        self.functions: dict[ast.AST, Value] = {}

    def note(self, name: str, value: Value) -> None:
        """A name was given a value."""
        for had in (*self.tries, *([self.cells] if name in self.captured else [])):
            had[name] = join(had[name], value) if name in had else value

    def made(self, node: Any) -> Value:
        """The function that a lambda or `def` in it makes: one for all rounds of a loop."""
        if node not in self.functions:
            value = Value(types.FunctionType, fresh=True)
            value.function = (node, self)
            self.functions[node] = value
        return self.functions[node]

    def spaces(self) -> list[Env]:
        """Names that the analysed code may read besides its own."""
        found: list[Env] = [self.cells, *self.tries]
        return found if self.parent is None else [*found, *self.parent.spaces()]


@functools.lru_cache(maxsize=256)
def _names(node: FunctionNode) -> tuple[set[str], set[str]]:
    """Names that functions inside capture, and those that the function stores: the same at every call."""
    return captured(node), stored(node.body if isinstance(node.body, list) else [node.body])


def merge(env: Env, ends: list[Env]) -> None:
    """After branches: a name that only some of them bind is not relied upon."""
    names = set.intersection(*(set(end) for end in ends)) if ends else set()
    for gone in set(env) - names:
        del env[gone]
    for name in names:
        found = ends[0][name]
        for end in ends[1:]:
            found = join(found, end[name])
        env[name] = found
