"""Expressions on abstract values: operators, subscripts, displays, names; and stores."""

import ast
import builtins
import contextlib
from typing import TYPE_CHECKING, Any

import torch

from . import waiting
from .kinds import CHANGEABLE, Arrayish, Bottom, Number, Plain
from .objects import attribute
from .values import Value, join, join_all, joined_list, list_of, opaque, tuple_of

if TYPE_CHECKING:
    from .analysis import Analyzer
    from .frames import Frame


def evaluate(a: "Analyzer", node: ast.expr) -> Value:
    match node:
        case ast.Constant(value=constant):
            return Value(type(constant), constant)
        case ast.Name(id=name):
            return _name(a, name, node)
        case ast.Call():
            from .calls import call

            return call(a, node)
        case ast.Attribute(value=holder, attr=attr):
            return attribute(a, a.expr(holder), attr, node)
        case ast.BinOp(left=left, op=op, right=right):
            return operate(a, op, a.expr(left), a.expr(right), node)
        case ast.UnaryOp(op=op, operand=operand):
            return _unary(a, op, a.expr(operand), node)
        case ast.BoolOp(values=values):
            found = [a.expr(v) for v in values]
            for asked in found[:-1]:
                a.truth(asked, node)
            return join_all(found)
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            return _compare(a, node, [a.expr(v) for v in (left, *comparators)], ops)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            a.truth(a.expr(test), test)
            return join(a.expr(body), a.expr(orelse))
        case ast.Subscript(value=holder, slice=index):
            return _subscript(a, a.expr(holder), index, node)
        case ast.Slice(lower=lower, upper=upper, step=step):
            if not all(a.expr(part).is_safe for part in (lower, upper, step) if part is not None):
                raise a.decline("it slices by something of unknown type", node)
            return Value(slice)
        case ast.Tuple(elts=elts):
            return tuple_of([a.expr(e) for e in elts])
        case ast.List(elts=elts):
            made = list_of(None)
            made.parts = [a.expr(e) for e in elts]
            return made
        case ast.Set(elts=elts):
            found = [a.expr(e) for e in elts]
            a.demand(all(f.is_deep_safe for f in found), "it makes a set of things of unknown type", node)
            return list_of(join_all(found), set)
        case ast.Dict(keys=keys, values=values):
            return _dict(a, keys, values, node)
        case ast.JoinedStr(values=values):
            shown = [part for part in values if isinstance(part, ast.FormattedValue)]
            if not all(a.expr(part.value).is_deep_safe for part in shown):
                raise a.decline("it formats something of unknown type", node)
            for part in shown:
                if part.format_spec is not None:
                    a.expr(part.format_spec)
            return Value(str)
        case ast.GeneratorExp():
            raise a.decline("it makes a generator that may run later, or in part", node)
        case ast.ListComp() | ast.SetComp() | ast.DictComp():
            return comprehension(a, node)
        case ast.Lambda():
            if node.args.defaults or node.args.kw_defaults:
                raise a.decline("it makes a lambda with defaults", node)
            return a.frame.made(node)
        case ast.Starred():
            raise a.decline("it unpacks with a star", node)
    raise a.decline(f"it has an expression ({type(node).__name__}) that is not analysed", node)


def _name(a: "Analyzer", name: str, node: ast.AST) -> Value:
    frame = a.frame
    if name in frame.env:
        return frame.env[name]
    unset = a.decline(f"{name!r} may not be set", node)
    around: Frame | None = frame
    while around is not None and around.parent is not None:
        if name in around.locals:
            raise unset
        around = around.parent
        if name in around.cells:
            return around.cells[name]
    if around is not None and around.outer is not None and name in around.outer:
        return around.outer[name]
    function = frame.function
    code = function.__code__
    if name in code.co_freevars:
        index = code.co_freevars.index(name)
        try:
            held = function.__closure__[index].cell_contents
        except ValueError:
            raise unset from None
        if frame.slot is None:
            raise unset
        return a.look(held, a.guards.note("cell", frame.slot, index))
    if name in code.co_varnames or name in code.co_cellvars:
        raise unset
    space = function.__globals__
    if name not in space and not hasattr(builtins, name):
        raise a.decline(f"{name!r} is not defined", node)
    held = space[name] if name in space else getattr(builtins, name)
    return a.look(held, a.guards.note("global", space, name))


def operate(a: "Analyzer", op: ast.operator, left: Value, right: Value, node: ast.AST) -> Value:
    """A binary operator. Safe operands run no code of the user's; what comes out is fresh."""
    if left.type is Bottom or right.type is Bottom:
        return right if left.type is Bottom else left
    kind, same = left.type, left.type is right.type
    if kind in (list, tuple) and (same or right.type is int):
        return joined_list([left, right] if same else [left], kind)
    if kind in waiting.PATHS and isinstance(op, ast.Div) and right.type is str:
        waiting.require(a, waiting.FILES, "a path", node)
        return Value(kind)
    if kind is str and isinstance(op, ast.Mod) and right.is_deep_safe:
        return Value(str)
    if kind in (set, frozenset) and same and left.is_deep_safe and right.is_deep_safe:
        return joined_list([left, right], kind)
    a.demand(left.is_safe and right.is_safe, "it computes with something of unknown type", node)
    if left.is_tensor or right.is_tensor:
        return Value(torch.Tensor, fresh=True)
    if left.is_array or right.is_array:
        return Value(Arrayish, fresh=True)
    return Value(_number_type(op, left, right))


def _number_type(op: ast.operator, left: Value, right: Value) -> Any:
    kinds = {left.type, right.type}
    if isinstance(op, ast.Div) and kinds <= {int, float, bool}:
        return float
    if isinstance(op, (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)):
        if kinds <= {int, bool, float}:
            return float if float in kinds else int
        if kinds == {str} or (kinds == {str, int} and isinstance(op, ast.Mult)):
            return str
    if isinstance(op, (ast.BitAnd, ast.BitOr, ast.BitXor, ast.LShift, ast.RShift)) and kinds <= {int, bool}:
        return Number if kinds == {bool} else int
    return Number if left.is_number and right.is_number else Plain


def _unary(a: "Analyzer", op: ast.unaryop, value: Value, node: ast.AST) -> Value:
    if isinstance(op, ast.Not):
        return a.truth(value, node)
    if value.type is Bottom or (isinstance(op, ast.UAdd) and value.is_tensor):
        return value  # the very tensor
    a.demand(value.is_safe, "it computes with something of unknown type", node)
    fresh = value.is_array or value.is_tensor
    return Value(int if value.type is bool else value.type, fresh=fresh)


def _compare(a: "Analyzer", node: ast.AST, values: list[Value], ops: list[ast.cmpop]) -> Value:
    if all(isinstance(op, (ast.Is, ast.IsNot)) for op in ops):
        return Value(bool)
    if not all(v.is_deep_safe or v.type is Bottom for v in values):
        raise a.decline("it compares something of unknown type", node)
    if len(ops) == 1 and not isinstance(ops[0], (ast.In, ast.NotIn)) and any(v.is_tensor for v in values):
        return Value(torch.Tensor, fresh=True)
    return Value(Arrayish, fresh=True) if any(v.is_array for v in values) else Value(bool)


def _subscript(a: "Analyzer", held: Value, index: ast.expr, node: ast.AST) -> Value:
    key = a.expr(index)
    a.demand(key.is_deep_safe, "it looks something up by a key of unknown type", node)
    if held.is_array or held.is_tensor:
        return Value(Arrayish if held.is_array else torch.Tensor, fresh=held.fresh)
    kind, sliced = held.type, isinstance(index, ast.Slice) or key.type is slice
    if kind in (str, bytes, range):
        return Value(kind if kind is str or sliced else int)
    if kind in (list, tuple):
        if sliced:
            return joined_list([held], kind)
        if key.type is Plain:
            return opaque()
        parts = held.parts
        constant = key.obj if key.is_constant else None  # the guards look at types, not at values
        if parts is not None and isinstance(constant, int) and -len(parts) <= constant < len(parts):
            return parts[constant]
        slot = held.slot if held.known and held.elem is None else None
        if slot is not None and isinstance(constant, int) and not a.guards.vector[slot]:
            with contextlib.suppress(IndexError):
                return a.look(held.obj[constant], a.guards.note("index", slot, constant))
        return held.element()
    if kind is dict:
        a.demand(held.has_safe_keys, "it looks into a dict whose keys could be anything", node)
        return held.elem or opaque()
    if kind is Plain:
        return Value(Plain)
    raise a.decline("it looks into something of unknown type", node)


def _dict(a: "Analyzer", keys: Any, values: Any, node: ast.AST) -> Value:
    made = Value(dict, fresh=True)
    for key, value in zip(keys, values, strict=True):
        a.demand(key is not None, "it unpacks a dict", node)
        found = a.expr(key)
        a.demand(found.is_deep_safe, "it makes a dict with keys of unknown type", node)
        made.may_hold(a.expr(value), found)
    return made


def comprehension(a: "Analyzer", node: Any) -> Value:
    """Its rounds may change what later ones find; it is made of what the last look at one has found."""
    made, frame = Value(dict, fresh=True), a.frame

    def one() -> None:
        nonlocal made
        before, frame.env = frame.env, dict(frame.env)
        made = _one_round(a, node)
        frame.env = before

    a.settle(one, node)
    return made


def _one_round(a: "Analyzer", node: Any) -> Value:
    for generator in node.generators:
        a.demand(not generator.is_async, "it is asynchronous", node)
        source = a.iterable(a.expr(generator.iter), generator.iter)
        assign(a, generator.target, source.element())
        for test in generator.ifs:
            a.truth(a.expr(test), test)
    if isinstance(node, ast.DictComp):
        made = Value(dict, fresh=True)
        made.key, made.elem = a.expr(node.key), a.expr(node.value)
        a.demand(made.key.is_deep_safe, "it makes a dict with keys of unknown type", node)
        return made
    elem = a.expr(node.elt)
    if isinstance(node, ast.SetComp) and not elem.is_deep_safe:
        raise a.decline("it makes a set of things of unknown type", node)
    return list_of(elem, set if isinstance(node, ast.SetComp) else list)


# Stores: what is stored into must be the analysed code's own.


def assign(a: "Analyzer", target: ast.expr, value: Value) -> None:
    match target:
        case ast.Name(id=name):
            a.frame.bind(name, value)
        case ast.Tuple(elts=elts) | ast.List(elts=elts):
            if any(isinstance(e, ast.Starred) for e in elts):
                raise a.decline("it unpacks with a star", target)
            parts = value.parts if value.parts is not None and len(value.parts) == len(elts) else None
            if parts is None:
                a.iterable(value, target)
                parts = [value.element()] * len(elts)
            for element, part in zip(elts, parts, strict=True):
                assign(a, element, part)
        case ast.Subscript(value=holder, slice=index):
            _store(a, a.expr(holder), a.expr(index), value, target)
        case _:
            raise a.decline("it sets an attribute", target, impure=True)


def _store(a: "Analyzer", held: Value, key: Value, value: Value, target: ast.expr) -> None:
    a.changes(held, target)
    a.demand(key.is_deep_safe, "it stores under a key of unknown type", target)
    if held.type is dict:
        a.demand(held.has_safe_keys, "it stores into a dict whose keys could be anything", target)
        held.may_hold(value, key)
    elif held.type is list:
        by_slice = key.type in (slice, Plain)
        held.may_hold(a.iterable(value, target).element() if by_slice else value)
    elif not (held.is_array or held.is_tensor) or not value.is_deep_safe:
        raise a.decline("it stores into something of unknown type", target)


def augment(a: "Analyzer", node: ast.AugAssign) -> None:
    """`target op= value`, which writes into the object itself where that can be changed."""
    target = node.target
    if not isinstance(target, ast.Name):
        a.changes(a.expr(target.value), target)
    load = ast.copy_location(ast.parse(ast.unparse(target), mode="eval").body, node)
    before, right = a.expr(load), a.expr(node.value)
    after = operate(a, node.op, before, right, node)
    if not before.is_safe or before.is_array or before.is_tensor:
        a.changes(before, node)
        if before.type in CHANGEABLE:
            for held in after.elements():
                before.may_hold(held)
            before.content.scatter()
        after = before if before.is_array or before.is_tensor or before.type in CHANGEABLE else after
    assign(a, target, after)
