"""Helpers for syntax trees: copies, and expressions made from templates."""

import ast
import functools
from typing import Any, TypeVar

Node = TypeVar("Node", bound=ast.AST)


class _NodeFields(dict[type, tuple[str, ...]]):
    """By class: the fields that may hold nodes with fields of their own. Contexts and operators do not."""

    PLAIN = frozenset(
        ("ctx", "op", "ops", "id", "attr", "kind", "type_comment", "level", "is_async", "conversion")
    )

    def __missing__(self, kind: type) -> tuple[str, ...]:
        self[kind] = tuple(field for field in kind._fields if field not in self.PLAIN)  # type: ignore[attr-defined]
        return self[kind]


_NODE_FIELDS = _NodeFields()


def clone(node: Node) -> Node:
    """Return a deep copy of a node; faster than `copy.deepcopy`. Contexts and operators are shared."""
    made = node.__class__.__new__(node.__class__)  # Python 3.13 warns of fields that `__init__` is not given
    own = made.__dict__
    own.update(node.__dict__)
    for field in _NODE_FIELDS[type(node)]:
        value = own.get(field)
        if isinstance(value, ast.AST):
            own[field] = clone(value)
        elif type(value) is list:
            own[field] = [clone(part) if isinstance(part, ast.AST) else part for part in value]
    return made


def children(node: ast.AST) -> list[ast.AST]:
    """Return the direct children of a node in the order of its fields, without contexts and operators."""
    found: list[ast.AST] = []
    own = node.__dict__
    for field in _NODE_FIELDS[type(node)]:
        value = own.get(field)
        if isinstance(value, ast.AST):
            found.append(value)
        elif type(value) is list:
            found += [part for part in value if isinstance(part, ast.AST)]
    return found


def walk(*nodes: ast.AST) -> list[ast.AST]:
    """Return the nodes and all their descendants, breadth first. Much faster than `ast.walk`."""
    found = list(nodes)
    for node in found:
        found += children(node)
    return found


def name(identifier: str, store: bool = False) -> ast.Name:
    return ast.Name(identifier, ast.Store() if store else ast.Load())


def expression(template: str, **given: Any) -> Any:
    """Parse `template` and replace names in it.

    Args:
        given: replacements by name: a string for another name, a tree, or a list of trees for a starred name.
    """
    return _Filled(given).visit(clone(_parsed(template)))


@functools.cache
def _parsed(template: str) -> ast.expr:
    tree = ast.parse(template, mode="eval").body
    for node in walk(tree):  # the caller sets the location
        for place in ("lineno", "col_offset", "end_lineno", "end_col_offset"):
            node.__dict__.pop(place, None)
    return tree


class _Filled(ast.NodeTransformer):
    def __init__(self, given: dict[str, Any]):
        self.given = given

    def visit_Name(self, node: ast.Name) -> ast.AST:
        found = self.given.get(node.id, node)
        return ast.Name(found, node.ctx) if isinstance(found, str) else found

    def visit_Starred(self, node: ast.Starred) -> Any:
        found = self.given.get(node.value.id) if isinstance(node.value, ast.Name) else None
        return found if isinstance(found, list) else self.generic_visit(node)


def arguments(names: list[str]) -> ast.arguments:
    return ast.arguments(
        posonlyargs=[], args=[ast.arg(n) for n in names], kwonlyargs=[], kw_defaults=[], defaults=[]
    )


def function_of(function: str, parameters: list[str], body: list[ast.stmt], like: ast.AST) -> ast.FunctionDef:
    made = ast.FunctionDef(name=function, args=arguments(parameters), body=body, decorator_list=[])
    if "type_params" in ast.FunctionDef._fields:
        made.type_params = []  # type: ignore[attr-defined]
    return ast.copy_location(made, like)


def lambda_of(parameters: list[str], value: ast.expr) -> ast.Lambda:
    return ast.copy_location(ast.Lambda(arguments(parameters), value), value)
