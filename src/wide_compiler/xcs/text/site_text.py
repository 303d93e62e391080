"""SiteText: what is known of a site from the source; and the names that rewriting introduces."""

import ast
from dataclasses import dataclass, field
from typing import Any

from .sites import Sink

# Not a valid identifier, so no clash with user names; sorts last among free variables.
RUNTIME = "\U0010fffe_xcs"
INTRODUCED = "__xcs_"  # prefix of variables that rewriting introduces
ITEMS = f"{INTRODUCED}items"
EVENTS = f"{INTRODUCED}events"


@dataclass
class SiteText:
    """One site, or one place that cannot be a site, with the reason.

    Attributes:
        kind: 'list', 'set', 'dict', 'generator', 'loop' or 'statements'.
        shape: nesting of the loop variables: 'x', or a tuple of such.
        bodies: functions by role: 'body', 'cond', 'items', 'thunk 0', ...
        consumer: name of the builtin that consumes the generator.
        sinks: what a loop fills.
        single: True if the loop's body ends in its only sink.
        caught: True if it fills something inside a `try` that could catch the exception.
        reason: why this is not a site; '' if it is.
    """

    index: int
    kind: str
    line: int
    text: str
    shape: Any = None
    bodies: dict[str, Any] = field(default_factory=dict)
    consumer: str = ""
    sinks: list[Sink] = field(default_factory=list)
    single: bool = False
    caught: bool = False
    reason: str = ""


def shape_of(target: ast.expr) -> Any:
    return target.id if isinstance(target, ast.Name) else tuple(shape_of(t) for t in target.elts)  # type: ignore[attr-defined]


def short(node: ast.AST, first_line: bool = False) -> str:
    text = ast.unparse(node)
    return text.split("\n")[0] if first_line else " ".join(text.split())


def excerpt(node: ast.AST, most: int = 60) -> str:
    """Return the node's source in one line of at most `most` characters, for messages."""
    text = short(node).replace(INTRODUCED, "")
    return text if len(text) <= most else f"{text[: most - 3]}..."
