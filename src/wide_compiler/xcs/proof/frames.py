"""A function that is being analysed: its names, the loops and `try` statements around the present point."""

import ast
import functools
import types
from dataclasses import dataclass, field
from typing import Any

from ..text.names import captured, stored
from ..text.source import FunctionNode
from .values import Value, join, join_all

Env = dict[str, Value]


@dataclass
class Loop:
    """A loop: what holds where it is left, and where a round is cut short."""

    breaks: list[Env] = field(default_factory=list)
    continues: list[Env] = field(default_factory=list)


class Frame:
    """One function being analysed.

    Attributes:
        env: its names, as they are at the present point.
        function: the function object, for globals and cells; slot: where the guards find it.
        parent: the frame of the analysed function that defines it.
        outer: of a site's own body: the names of the jitted function.
        tries: for each `try` around, all values that names were given in it; handling: handlers around.
        cells: captured names, with any value they ever had: nobody knows when they are read.
    """

    def __init__(self, node: FunctionNode, function: Any, slot: int | None, parent: "Frame | None" = None):
        self.node, self.function, self.slot, self.parent = node, function, slot, parent
        self.env: Env = {}
        self.outer: Env | None = None
        self.returns: list[Value] = []
        self.loops: list[Loop] = []
        self.tries: list[Env] = []
        self.handling = 0
        self.captured, self.locals = _names(node)
        self.cells: Env = {}
        self.functions: dict[ast.AST, Value] = {}

    def note(self, name: str, value: Value) -> None:
        """A name was given a value."""
        for had in (*self.tries, *([self.cells] if name in self.captured else [])):
            had[name] = join(had[name], value) if name in had else value

    def bind(self, name: str, value: Value) -> None:
        self.env[name] = value
        self.note(name, value)

    def made(self, node: Any) -> Value:
        """The function that a lambda or `def` in it makes: one for all rounds of a loop."""
        if node not in self.functions:
            value = self.functions[node] = Value(types.FunctionType, fresh=True)
            value.function = (node, self)
        return self.functions[node]

    def spaces(self) -> list[Env]:
        """Names that the analysed code may read besides its own."""
        found: list[Env] = [self.cells, *self.tries]
        return found if self.parent is None else [*found, *self.parent.spaces()]


@functools.lru_cache(maxsize=256)
def _names(node: FunctionNode) -> tuple[set[str], set[str]]:
    """Names that functions inside capture, and those that the function stores: the same at every call."""
    return captured(node), stored(node.body if isinstance(node.body, list) else [node.body])


def merged(ends: list[Env]) -> Env:
    """After branches: a name that only some of them bind is not relied upon."""
    names = set.intersection(*map(set, ends)) if ends else set()
    return {name: join_all([end[name] for end in ends]) for name in names}
