"""What the text of a function says about its sites, and the names that rewriting brings in."""

import ast
from dataclasses import dataclass, field
from typing import Any

from .sites import Sink

RUNTIME = "\U0010fffe_xcs"  # no identifier, so nobody's name; sorts last among free names
ITEMS = "__xcs_items"
ITEM = "__xcs_item"
EVENTS = "__xcs_events"


@dataclass
class SiteText:
    """One site, or one place that might have been one and why it is not."""

    index: int
    kind: str
    line: int
    text: str
    shape: Any = None  # nesting of the loop variable: 'x', or a tuple of these
    bodies: dict[str, Any] = field(default_factory=dict)  # 'body', 'cond', 'items', 'thunk 0': a function
    eater: str = ""
    maps: bool = False  # a generator that is written as `map(f, xs)`
    sinks: list[Sink] = field(default_factory=list)
    single: bool = False  # a loop whose body ends in its one sink
    caught: bool = False  # it fills something within a `try` that would see what that raises
    reason: str = ""  # why this is no site


def shape_of(target: ast.expr) -> Any:
    return target.id if isinstance(target, ast.Name) else tuple(shape_of(t) for t in target.elts)  # type: ignore[attr-defined]


def short(node: ast.AST, first_line: bool = False) -> str:
    text = ast.unparse(node)
    return text.split("\n")[0] if first_line else " ".join(text.split())
