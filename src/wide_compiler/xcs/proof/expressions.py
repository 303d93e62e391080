"""Expressions on abstract values: operators, subscripts, displays, names."""

import ast
import builtins
from typing import TYPE_CHECKING, Any

import torch

from . import waiting
from .kinds import BOTTOM, Arrayish, Number, Plain
from .outside import attribute
from .values import Value, join, join_all, list_of, opaque, tuple_of

if TYPE_CHECKING:
    from .analysis import Analyzer
    from .frames import Env, Frame


def evaluate(a: "Analyzer", node: ast.expr, env: "Env", frame: "Frame") -> Value:
    match node:
        case ast.Constant(value=constant):
            return Value(type(constant), constant)
        case ast.Name(id=name):
            return _name(a, name, node, env, frame)
        case ast.Call():
            from .calls import call

            return call(a, node, env, frame)
        case ast.Attribute(value=holder, attr=attr):
            return attribute(a, a.expr(holder, env, frame), attr, node)
        case ast.BinOp(left=left, op=op, right=right):
            return operate(a, op, a.expr(left, env, frame), a.expr(right, env, frame), node)
        case ast.UnaryOp(op=op, operand=operand):
            value = a.expr(operand, env, frame)
            if isinstance(op, ast.Not):
                return a.truth(value, node)
            if isinstance(op, ast.UAdd) and value.is_tensor:
                return value  # the very tensor
            return _unary(a, value, node)
        case ast.BoolOp(values=values):
            found = [a.expr(v, env, frame) for v in values]
            for asked in found[:-1]:
                a.truth(asked, node)
            return join_all(found)
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            return _compare(a, node, [a.expr(v, env, frame) for v in (left, *comparators)], ops)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            a.truth(a.expr(test, env, frame), test)
            return join(a.expr(body, env, frame), a.expr(orelse, env, frame))
        case ast.Subscript(value=holder, slice=index):
            return _subscript(a, a.expr(holder, env, frame), index, node, env, frame)
        case ast.Slice(lower=lower, upper=upper, step=step):
            parts = [a.expr(p, env, frame) for p in (lower, upper, step) if p is not None]
            if not all(p.is_safe for p in parts):
                raise a.decline("it slices by something of unknown type", node)
            return Value(slice)
        case ast.Tuple(elts=elts):
            return tuple_of(_elements(a, elts, env, frame))
        case ast.List(elts=elts):
            made = list_of(None)
            made.parts = _elements(a, elts, env, frame)
            return made
        case ast.Set(elts=elts):
            found = _elements(a, elts, env, frame)
            if not all(f.is_deep_safe for f in found):
                raise a.decline("it makes a set of things of unknown type", node)
            return list_of(join_all(found), set)
        case ast.Dict(keys=keys, values=values):
            return _dict(a, keys, values, node, env, frame)
        case ast.JoinedStr(values=values):
            shown = [part for part in values if isinstance(part, ast.FormattedValue)]
            if not all(a.expr(part.value, env, frame).is_deep_safe for part in shown):
                raise a.decline("it formats something of unknown type", node)
            for part in shown:
                if part.format_spec is not None:
                    a.expr(part.format_spec, env, frame)
            return Value(str)
        case ast.GeneratorExp():
            raise a.decline("it makes a generator that may run later, or in part", node)
        case ast.ListComp() | ast.SetComp() | ast.DictComp():
            return comprehension(a, node, env, frame)
        case ast.Lambda():
            if node.args.defaults or node.args.kw_defaults:
                raise a.decline("it makes a lambda with defaults", node)
            return frame.made(node)
        case ast.Starred():
            raise a.decline("it unpacks with a star", node)
    raise a.decline(f"it has an expression ({type(node).__name__}) that is not analysed", node)


def _elements(a: "Analyzer", nodes: list[ast.expr], env: "Env", frame: "Frame") -> list[Value]:
    return [a.expr(n, env, frame) for n in nodes]


def _name(a: "Analyzer", name: str, node: ast.AST, env: "Env", frame: "Frame") -> Value:
    if name in env:
        return env[name]
    around: Frame | None = frame
    while around is not None and around.parent is not None:
        if name in around.locals:
            raise a.decline(f"{name!r} may not be set", node)
        around = around.parent
        if name in around.cells:
            return around.cells[name]
    if around is not None and around.outer is not None and name in around.outer:
        return around.outer[name]
    function = frame.function
    if function is None:
        raise a.decline(f"{name!r} may not be set", node)
    code = function.__code__
    if name in code.co_freevars:
        if frame.slot is None:
            raise a.decline(f"{name!r} may not be set", node)
        index = code.co_freevars.index(name)
        try:
            held = function.__closure__[index].cell_contents
        except ValueError:
            raise a.decline(f"{name!r} may not be set", node) from None
        return a.look(held, a.guards.note("cell", frame.slot, index))
    if name in code.co_varnames or name in code.co_cellvars:
        raise a.decline(f"{name!r} may not be set", node)
    space = function.__globals__
    if name in space:
        held = space[name]
    elif hasattr(builtins, name):
        held = getattr(builtins, name)
    else:
        raise a.decline(f"{name!r} is not defined", node)
    return a.look(held, a.guards.note("global", space, name))


def operate(a: "Analyzer", op: ast.operator, left: Value, right: Value, node: ast.AST) -> Value:
    """A binary operator. Safe operands run no code of the user's; what comes out is fresh."""
    if left.type is BOTTOM or right.type is BOTTOM:
        return right if left.type is BOTTOM else left
    pair = (left.type, right.type)
    if pair[0] in (list, tuple) and (pair[1] is pair[0] or right.type is int):
        held = [left, right] if pair[1] is pair[0] else [left]
        elements = [e for v in held for e in v.elements()]
        return list_of(join_all(elements) if elements else None, pair[0])
    if pair[0] in waiting.PATHS and isinstance(op, ast.Div) and pair[1] is str:
        waiting.unpatched(a, waiting.FILES, "a path", node)
        return Value(pair[0])
    if pair[0] is str and isinstance(op, ast.Mod) and right.is_deep_safe:
        return Value(str)
    if pair[0] in (set, frozenset) and pair[1] is pair[0] and left.is_deep_safe and right.is_deep_safe:
        elements = [*left.elements(), *right.elements()]
        return list_of(join_all(elements) if elements else None, pair[0])
    if not (left.is_safe and right.is_safe):
        raise a.decline("it computes with something of unknown type", node)
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
        if kinds <= {int, bool}:
            return int
        if kinds <= {int, bool, float}:
            return float
        if kinds == {str} or (kinds == {str, int} and isinstance(op, ast.Mult)):
            return str
    if isinstance(op, (ast.BitAnd, ast.BitOr, ast.BitXor, ast.LShift, ast.RShift)) and kinds <= {int, bool}:
        return Number if kinds == {bool} else int
    if left.is_number and right.is_number:
        return Number
    return Plain


def _unary(a: "Analyzer", value: Value, node: ast.AST) -> Value:
    if value.type is BOTTOM:
        return value
    if not value.is_safe:
        raise a.decline("it computes with something of unknown type", node)
    if value.is_array or value.is_tensor:
        return Value(value.type, fresh=True)
    return Value(int if value.type is bool else value.type)


def _compare(a: "Analyzer", node: ast.AST, values: list[Value], ops: list[ast.cmpop]) -> Value:
    if all(isinstance(op, (ast.Is, ast.IsNot)) for op in ops):
        return Value(bool)
    if not all(v.is_deep_safe or v.type is BOTTOM for v in values):
        raise a.decline("it compares something of unknown type", node)
    if len(ops) == 1 and not isinstance(ops[0], (ast.In, ast.NotIn)):
        if any(v.is_tensor for v in values):
            return Value(torch.Tensor, fresh=True)
        if any(v.is_array for v in values):
            return Value(Arrayish, fresh=True)
    return Value(bool) if not any(v.is_array for v in values) else Value(Arrayish, fresh=True)


def _subscript(
    a: "Analyzer", held: Value, index: ast.expr, node: ast.AST, env: "Env", frame: "Frame"
) -> Value:
    key = a.expr(index, env, frame)
    if not key.is_deep_safe:
        raise a.decline("it looks something up by a key of unknown type", node)
    if held.is_array:
        return Value(Arrayish, fresh=held.fresh)
    if held.is_tensor:
        return Value(torch.Tensor, fresh=held.fresh)
    sliced = isinstance(index, ast.Slice) or key.type is slice
    if held.type in (str, bytes):
        return Value(held.type if held.type is str or sliced else int)
    if held.type is range:
        return Value(range if sliced else int)
    if held.type in (list, tuple):
        if sliced:
            elements = held.elements()
            return list_of(join_all(elements) if elements else None, held.type)
        if key.type is Plain:
            return opaque()
        parts = held.parts
        constant = key.obj if key.is_constant else None  # the guards look at types, not at values
        if parts is not None and isinstance(constant, int) and -len(parts) <= constant < len(parts):
            return parts[constant]
        return held.element()
    if held.type is dict:
        if not held.has_safe_keys:
            raise a.decline("it looks into a dict whose keys could be anything", node)
        return held.elem or opaque()
    if held.type is Plain:
        return Value(Plain)
    raise a.decline("it looks into something of unknown type", node)


def _dict(a: "Analyzer", keys: Any, values: Any, node: ast.AST, env: "Env", frame: "Frame") -> Value:
    made = Value(dict, fresh=True)
    for key, value in zip(keys, values, strict=True):
        if key is None:
            raise a.decline("it unpacks a dict", node)
        found = a.expr(key, env, frame)
        if not found.is_deep_safe:
            raise a.decline("it makes a dict with keys of unknown type", node)
        made.may_have_key(found)
        made.may_hold(a.expr(value, env, frame))
    return made


def comprehension(a: "Analyzer", node: Any, env: "Env", frame: "Frame") -> Value:
    """Its rounds may change what later ones find; it is made of what the last look at one has found."""
    made = Value(dict, fresh=True)

    def one() -> None:
        nonlocal made
        made = _one_round(a, node, dict(env), frame)

    a.settle(one, env, frame, node)
    return made


def _one_round(a: "Analyzer", node: Any, inner: "Env", frame: "Frame") -> Value:
    for generator in node.generators:
        if generator.is_async:
            raise a.decline("it is asynchronous", node)
        source = a.iterable(a.expr(generator.iter, inner, frame), generator.iter)
        a.assign(generator.target, source.element(), inner, frame)
        for test in generator.ifs:
            a.truth(a.expr(test, inner, frame), test)
    if isinstance(node, ast.DictComp):
        made = Value(dict, fresh=True)
        made.key, made.elem = a.expr(node.key, inner, frame), a.expr(node.value, inner, frame)
        if not made.key.is_deep_safe:
            raise a.decline("it makes a dict with keys of unknown type", node)
        return made
    elem = a.expr(node.elt, inner, frame)
    if isinstance(node, ast.SetComp) and not elem.is_deep_safe:
        raise a.decline("it makes a set of things of unknown type", node)
    return list_of(elem, set if isinstance(node, ast.SetComp) else list)
