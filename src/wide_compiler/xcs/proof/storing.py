"""Stores: into names, items and slices; what is stored into must be the analysed code's own."""

import ast
from typing import TYPE_CHECKING

from .expressions import operate
from .frames import Env, Frame
from .kinds import CHANGEABLE, Plain
from .values import Value

if TYPE_CHECKING:
    from .analysis import Analyzer


def assign(a: "Analyzer", target: ast.expr, value: Value, env: Env, frame: Frame) -> None:
    match target:
        case ast.Name(id=name):
            a.bind(name, value, env, frame)
        case ast.Tuple(elts=elts) | ast.List(elts=elts):
            if any(isinstance(e, ast.Starred) for e in elts):
                raise a.decline("it unpacks with a star", target)
            parts = value.parts if value.parts is not None and len(value.parts) == len(elts) else None
            if parts is None:
                a.iterable(value, target)
                parts = [value.element()] * len(elts)
            for element, part in zip(elts, parts, strict=True):
                assign(a, element, part, env, frame)
        case ast.Subscript(value=holder, slice=index):
            held = a.expr(holder, env, frame)
            key = a.expr(index, env, frame)
            a.changes(held, target)
            if not key.is_deep_safe:
                raise a.decline("it stores under a key of unknown type", target)
            if held.type is dict:
                if not held.has_safe_keys:
                    raise a.decline("it stores into a dict whose keys could be anything", target)
                held.may_have_key(key)
                held.may_hold(value)
            elif held.type is list:
                held.may_hold(value.element() if may_be_slice(key) else value)
                if may_be_slice(key):
                    a.iterable(value, target)
            elif not (held.is_array or held.is_tensor) or not value.is_deep_safe:
                raise a.decline("it stores into something of unknown type", target)
        case _:
            raise a.decline("it sets an attribute", target, impure=True)


def augment(
    a: "Analyzer",
    node: ast.AugAssign,
    target: ast.expr,
    op: ast.operator,
    value: ast.expr,
    env: Env,
    frame: Frame,
) -> None:
    if not isinstance(target, ast.Name):
        holder = target.value if isinstance(target, (ast.Subscript, ast.Attribute)) else target
        held = a.expr(holder, env, frame)
        a.changes(held, target)
    load = ast.parse(ast.unparse(target), mode="eval").body
    ast.copy_location(load, target)
    ast.fix_missing_locations(load)
    before = a.expr(load, env, frame)
    right = a.expr(value, env, frame)
    after = operate(a, op, before, right, node)
    if not before.is_safe or before.is_array or before.is_tensor:
        a.changes(before, node)  # += writes into the object itself
        if before.type in CHANGEABLE:
            for held in after.elements():
                before.may_hold(held)
            before.content.scatter()
        after = before if before.is_array or before.is_tensor or before.type in CHANGEABLE else after
    if isinstance(target, ast.Name):
        a.bind(target.id, after, env, frame)
    else:
        assign(a, target, after, env, frame)


def may_be_slice(key: Value) -> bool:
    return key.type in (slice, Plain)
