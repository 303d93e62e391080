"""A function that is being analysed: its names, the loops and `try` statements around the present point."""

from dataclasses import dataclass, field
from typing import Any

from ..text.source import FunctionNode
from .values import Value, join_all

Env = dict[str, Value]


@dataclass
class Loop:
    """What holds where a loop is left, and where a round is cut short."""

    breaks: list[Env] = field(default_factory=list)
    continues: list[Env] = field(default_factory=list)


@dataclass
class Frame:
    """One function being analysed.

    Attributes:
        function: the function object, for globals and cells; slot: where the guards find it.
        outer: of a site's own body: the names of the jitted function.
        env: its names, as they are at the present point.
        tries: for each `try` around, all values that names were given in it; handling: handlers around.
    """

    node: FunctionNode
    function: Any
    slot: int | None
    outer: Env | None = None
    env: Env = field(default_factory=dict)
    returns: list[Value] = field(default_factory=list)
    loops: list[Loop] = field(default_factory=list)
    tries: list[Env] = field(default_factory=list)
    handling: int = 0


def merged(ends: list[Env]) -> Env:
    """After branches: a name that only some of them bind is not relied upon."""
    names = set.intersection(*map(set, ends)) if ends else set()
    return {name: join_all([end[name] for end in ends]) for name in names}
