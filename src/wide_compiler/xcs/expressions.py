"""Expressions on abstract values: operators, attributes, subscripts, displays, names."""

import ast
import builtins
import types
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from . import pure_arrays, pure_tables, waiting
from .guards import held_types, static_lookup
from .values import (
    BOTTOM,
    CONTAINERS,
    IMMUTABLE,
    Arrayish,
    Iterator,
    Number,
    Opaque,
    Plain,
    Value,
    is_numpy_scalar,
    join,
    join_all,
    list_of,
    opaque,
    tuple_of,
)

if TYPE_CHECKING:
    from .analysis import Analyzer, Env, Frame

IDENTICAL = (types.ModuleType, types.BuiltinFunctionType, types.BuiltinMethodType, type, np.ufunc)


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
            shown = [part.value for part in values if isinstance(part, ast.FormattedValue)]
            if not all(a.expr(part, env, frame).is_deep_safe for part in shown):
                raise a.decline("it formats something of unknown type", node)
            return Value(str)
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
            return _comprehension(a, node, env, frame)
        case ast.Lambda():
            if node.args.defaults or node.args.kw_defaults:
                raise a.decline("it makes a lambda with defaults", node)
            made = Value(types.FunctionType, fresh=True)
            made.function = (node, env, frame)
            return made
        case ast.Starred():
            raise a.decline("it unpacks with a star", node)
    raise a.decline(f"it has an expression ({type(node).__name__}) that is not analysed", node)


def _elements(a: "Analyzer", nodes: list[ast.expr], env: "Env", frame: "Frame") -> list[Value]:
    return [a.expr(n, env, frame) for n in nodes]


def _name(a: "Analyzer", name: str, node: ast.AST, env: "Env", frame: "Frame") -> Value:
    if name in env:
        return env[name]
    if frame.outer is not None and name in frame.outer:
        return frame.outer[name]
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


def look(a: "Analyzer", held: Any, slot: int) -> Value:
    """Bind an outside object: by identity if it is code, else by type."""
    kind = type(held)
    value = Value(kind, held, slot)
    if kind is types.FunctionType or kind is types.MethodType:
        a.guards.expect(slot, "type", kind)
    elif isinstance(held, IDENTICAL) or kind is torch.nn.Parameter or _callable_constant(held):
        if kind is not torch.nn.Parameter:
            a.guards.expect(slot, "is", held)
        else:
            a.guards.expect(slot, "type", kind)
    elif kind in CONTAINERS:
        kinds = held_types(held)
        if safe_kinds(kinds):
            a.guards.expect(slot, "holds", (kind, kinds))
            learn(value, kinds)
        else:
            a.guards.expect(slot, "type", kind)
    else:
        a.guards.expect(slot, "type", kind)
        if kind is np.ndarray and held.dtype.hasobject:
            value.type = Opaque
    return value


def _callable_constant(held: Any) -> bool:
    """Functions that are no Python functions: of NumPy, of PyTorch, wrapped or partial ones."""
    return (callable(held) and not hasattr(type(held), "__dict__")) or type(held).__name__ in (
        "_ArrayFunctionDispatcher",
        "builtin_function_or_method",
        "method_descriptor",
        "wrapper_descriptor",
    )


def safe_kinds(kinds: frozenset[Any]) -> bool:
    return all(_safe_kind(k[1] if isinstance(k, tuple) else k) for k in kinds)


def _safe_kind(kind: Any) -> bool:
    if kind == "anything":
        return False
    return kind in IMMUTABLE or kind in (np.ndarray, torch.Tensor) or is_numpy_scalar(kind)


def learn(value: Value, kinds: frozenset[Any]) -> None:
    held = [Value(k) for k in kinds if not isinstance(k, tuple)]
    keys = [Value(k[1]) for k in kinds if isinstance(k, tuple)]
    value.elem = join_all(held) if held else Value(Plain)
    value.key = join_all(keys) if keys else None


def operate(a: "Analyzer", op: ast.operator, left: Value, right: Value, node: ast.AST) -> Value:
    """A binary operator. Safe operands run no code of the user's; what comes out is fresh."""
    if left.type is BOTTOM or right.type is BOTTOM:
        return right if left.type is BOTTOM else left
    pair = (left.type, right.type)
    if pair[0] in (list, tuple) and (pair[1] is pair[0] or right.type is int):
        made = list_of(None, pair[0])
        held = [left, right] if pair[1] is pair[0] else [left]
        made.elem = join_all([v.element() for v in held if v.parts != []]) if held else None
        return made
    if pair[0] in waiting.PATHS and isinstance(op, ast.Div) and pair[1] is str:
        return Value(pair[0])
    if pair[0] is str and isinstance(op, ast.Mod) and right.is_deep_safe:
        return Value(str)
    if pair[0] in (set, frozenset) and pair[1] is pair[0] and left.is_deep_safe and right.is_deep_safe:
        return list_of(join(left.element(), right.element()), pair[0])
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
    if held.type in (str, bytes):
        return Value(held.type if held.type is str or isinstance(index, ast.Slice) else int)
    if held.type is range:
        return Value(range if isinstance(index, ast.Slice) else int)
    if held.type in (list, tuple):
        if isinstance(index, ast.Slice):
            return list_of(held.element() if held.elem or held.parts else None, held.type)
        parts = held.parts
        if parts is not None and isinstance(key.obj, int) and -len(parts) <= key.obj < len(parts):
            return parts[key.obj]
        return held.element()
    if held.type is dict:
        if held.key is None and not held.fresh:
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
        made.key = found if made.key is None else join(made.key, found)
        made.may_hold(a.expr(value, env, frame))
    return made


def _comprehension(a: "Analyzer", node: Any, env: "Env", frame: "Frame") -> Value:
    inner = dict(env)
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
    kinds = {ast.ListComp: list, ast.SetComp: set, ast.GeneratorExp: Iterator}
    return list_of(elem, kinds[type(node)])


def attribute(a: "Analyzer", held: Value, name: str, node: ast.AST) -> Value:
    """`held.name`, where that runs no code but what is analysed as well."""
    if held.attrs is not None and name in held.attrs:
        return held.attrs[name]
    if held.known and held.slot is not None and isinstance(held.obj, types.ModuleType):
        if name not in vars(held.obj):
            raise a.decline(f"module {held.obj.__name__} has no plain attribute {name!r}", node)
        return a.look(vars(held.obj)[name], a.guards.note("field", held.slot, name))
    builtin = _builtin_attribute(held, name)
    if builtin is not None:
        return builtin
    if held.slot is None or not held.known:
        raise a.decline(f"it reads {name!r} of something of unknown type", node)
    if isinstance(held.obj, type):
        found = static_lookup_or_decline(a, held.obj, name, node)
        if isinstance(found, (staticmethod, types.FunctionType)):
            inner = a.guards.note("own", held.slot, name)
            if isinstance(found, staticmethod):
                inner = a.guards.note("getattr", inner, "__func__")
                found = found.__func__
            return a.look(found, inner)
        if isinstance(found, (*IMMUTABLE, np.ndarray)):
            return a.look(found, a.guards.note("own", held.slot, name))
        raise a.decline(f"it reads {name!r} of a class", node)
    return instance_attribute(a, held, name, node)


def _builtin_attribute(held: Value, name: str) -> Value | None:
    kind = held.type
    method = Value(types.MethodType)
    method.method = (held, name)
    if held.is_array or is_numpy_scalar(kind) or kind is Number:
        if name == "shape":
            return pure_arrays.shape_value()
        if name == "dtype":
            return Value(Plain)
        if name in pure_arrays.ARRAY_ATTRIBUTES:
            return pure_arrays.numpy_result(pure_arrays.ARRAY_ATTRIBUTES[name], [], held)
        changes = name in pure_tables.CHANGERS[np.ndarray]
        return method if name in pure_arrays.ARRAY_METHODS or changes else None
    if held.is_tensor:
        if name in pure_arrays.TENSOR_ATTRIBUTES:
            return pure_arrays.tensor_attribute(name, held)
        return method if name in pure_arrays.TENSOR_METHODS else None
    if kind is waiting.ReadFile:
        if name in waiting.RESPONSE_ATTRIBUTES:
            return opaque()
        return method if name in waiting.METHODS else None
    if kind in waiting.PATHS:
        return (
            method
            if name in waiting.PATH_METHODS
            else Value(str)
            if name in ("name", "stem", "suffix")
            else None
        )
    if name in pure_tables.ATTRIBUTES.get(kind, ()):
        return Value(pure_tables.ATTRIBUTES[kind][name])
    if name in pure_tables.METHODS.get(kind, ()) or name in pure_tables.CHANGERS.get(kind, ()):
        return method
    return None


def static_lookup_or_decline(a: "Analyzer", kind: type, name: str, node: ast.AST) -> Any:
    try:
        return static_lookup(kind, name)
    except AttributeError:
        raise a.decline(f"{kind.__name__} has no plain attribute {name!r}", node) from None


def instance_attribute(a: "Analyzer", held: Value, name: str, node: ast.AST) -> Value:
    """An attribute of an instance of the user's class: a field, a method, a property or a class value."""
    kind, obj, slot = type(held.obj), held.obj, held.slot
    assert slot is not None
    if kind.__getattribute__ is not object.__getattribute__:
        raise a.decline(f"{kind.__name__} has a __getattribute__ of its own", node)
    a.guards.expect(slot, "type", kind)
    on_class = next((base.__dict__[name] for base in kind.__mro__ if name in base.__dict__), None)
    if isinstance(on_class, property) and isinstance(on_class.fget, types.FunctionType):
        from .calls import call_function

        inner = a.guards.note("class", slot, name)
        a.guards.expect(inner, "is", on_class)
        getter = a.look(on_class.fget, a.guards.note("getattr", inner, "fget"))
        return call_function(a, getter, [held], {}, node)
    if isinstance(on_class, types.MemberDescriptorType):  # __slots__
        a.guards.expect(a.guards.note("class", slot, name), "is", on_class)
        return a.look(getattr(obj, name), a.guards.note("getattr", slot, name))
    if on_class is not None and hasattr(type(on_class), "__set__"):
        raise a.decline(f"{kind.__name__}.{name} is a descriptor", node)
    if name in getattr(obj, "__dict__", {}):
        return a.look(obj.__dict__[name], a.guards.note("field", slot, name))
    if isinstance(obj, nn.Module):
        for where in ("_parameters", "_buffers", "_modules"):
            if name in obj.__dict__.get(where, {}):
                return a.look(obj.__dict__[where][name], a.guards.note("module", slot, (where, name)))
    if on_class is None:
        raise a.decline(f"{kind.__name__} has no plain attribute {name!r}", node)
    if hasattr(obj, "__dict__"):
        a.guards.expect(a.guards.note("absent", slot, name), "is", False)
    inner = a.guards.note("class", slot, name)
    if isinstance(on_class, types.FunctionType):
        method = a.look(on_class, inner)
        bound = Value(types.MethodType)
        bound.method = (held, name)
        bound.function = method
        return bound
    if isinstance(on_class, staticmethod):
        return a.look(on_class.__func__, a.guards.note("getattr", inner, "__func__"))
    if isinstance(on_class, (*IMMUTABLE, np.ndarray, list, dict, tuple)):
        return a.look(on_class, inner)
    raise a.decline(f"{kind.__name__}.{name} is a {type(on_class).__name__}", node)
