"""Copies of trees of syntax. Rewriting makes many, and `copy.deepcopy` takes its time with each."""

import ast
from typing import TypeVar

Node = TypeVar("Node", bound=ast.AST)


def clone(node: Node) -> Node:
    """The node and all below it, once more."""
    made = node.__class__()
    for name, value in node.__dict__.items():
        if isinstance(value, ast.AST):
            value = clone(value)
        elif type(value) is list:
            value = [clone(part) if isinstance(part, ast.AST) else part for part in value]
        made.__dict__[name] = value
    return made
