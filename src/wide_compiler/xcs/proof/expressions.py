"""Analysis of expressions (operators, subscripts, literals, names) and of stores."""

import ast
import builtins
import contextlib
from typing import TYPE_CHECKING, Any

import torch

from ..text.site_text import excerpt
from ..text.trees import clone
from .kinds import CHANGEABLE, Arrayish, Bottom, Iterator, Number, Plain
from .objects import attribute
from .values import DEEPEST, Value, join, join_all, opaque, sequence, tuple_of

if TYPE_CHECKING:
    from .analysis import Analyzer


KEPT_ITERATOR = "an iterator is stored; only iterators that are consumed at once are analysed"


def evaluate(a: "Analyzer", node: ast.expr) -> Value:
    match node:
        case ast.Constant(value=constant):
            return Value(type(constant), constant)
        case ast.Name(id=name):
            return _name(a, name, node)
        case ast.Call():
            from .known_calls import call

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
            safe = all(a.expr(part).is_safe for part in (lower, upper, step) if part is not None)
            a.known(safe, "a slice bound", node)
            return Value(slice)
        case ast.Tuple(elts=elts):
            return tuple_of(*[_kept(a, a.expr(e), node) for e in elts])
        case ast.List(elts=elts):
            return a.made(list, _kept(a, join_all([a.expr(e) for e in elts]), node))
        case ast.Set(elts=elts):
            return a.made(set, _key(a, join_all([a.expr(e) for e in elts]), node))
        case ast.Dict(keys=keys, values=values):
            a.demand(None not in keys, "** in a dict is not analysed", node)
            key = _key(a, join_all([a.expr(k) for k in keys if k is not None]), node)
            return a.made(dict, _kept(a, join_all([a.expr(v) for v in values]), node), key)
        case ast.JoinedStr(values=values):
            for part in values:
                if isinstance(part, ast.FormattedValue):
                    safe = a.expr(part.value).is_deep_safe
                    a.known(safe, "a formatted value", node)
                    if part.format_spec is not None:
                        a.expr(part.format_spec)
            return Value(str)
        case ast.ListComp() | ast.SetComp() | ast.DictComp():
            return comprehension(a, node)
        case ast.GeneratorExp():
            raise a.decline("a generator that is not consumed at once may run later, or in part", node)
    raise a.decline(f"expression not analysed: `{excerpt(node)}`", node)


def _name(a: "Analyzer", name: str, node: ast.AST) -> Value:
    frame = a.frame
    if name in frame.env:
        return frame.env[name]
    if frame.outer is not None and name in frame.outer:
        return frame.outer[name]
    function = frame.function
    code, space = function.__code__, function.__globals__
    if name in code.co_freevars and frame.slot is not None:
        index = code.co_freevars.index(name)
        with contextlib.suppress(ValueError):
            return a.look(function.__closure__[index].cell_contents, a.guards.note("cell", frame.slot, index))
    if name in (*code.co_freevars, *code.co_varnames, *code.co_cellvars):
        raise a.decline(f"{name!r} may be unbound", node)
    if name not in space and not hasattr(builtins, name):
        raise a.decline(f"{name!r} is not defined", node)
    held = space[name] if name in space else getattr(builtins, name)
    return a.look(held, a.guards.note("global", space, name))


def operate(a: "Analyzer", op: ast.operator, left: Value, right: Value, node: ast.AST) -> Value:
    """Return the result of a binary operator, which is a fresh object.

    Raises `Decline` if user code may run.
    """
    if left.type is Bottom or right.type is Bottom:
        return right if left.type is Bottom else left
    kind, same = left.type, left.type is right.type
    if kind in (list, tuple) and (same or right.is_number):
        elem = join(left.element(), right.element()) if same else left.element()
        return sequence(elem) if kind is tuple else a.made(list, elem)
    if kind is str and isinstance(op, ast.Mod) and right.is_deep_safe:
        return Value(str)
    a.known(left.is_safe and right.is_safe, "an operand", node)
    if left.is_tensor or right.is_tensor:
        return Value(torch.Tensor, fresh=True)
    if left.is_array or right.is_array:
        return Value(Arrayish, fresh=True)
    if left.is_number and right.is_number:
        return Value(float if isinstance(op, ast.Div) and {left.type, right.type} <= {int, float} else Number)
    return Value(str if kind is str and (same or right.is_number) else Plain)


def _unary(a: "Analyzer", op: ast.unaryop, value: Value, node: ast.AST) -> Value:
    if isinstance(op, ast.Not):
        return a.truth(value, node)
    if isinstance(op, ast.UAdd) and value.is_tensor:
        return value  # the same tensor
    a.known(value.is_safe, "an operand", node)
    return Value(int if value.type is bool else value.type, fresh=value.is_array or value.is_tensor)


def _compare(a: "Analyzer", node: ast.AST, values: list[Value], ops: list[ast.cmpop]) -> Value:
    if all(isinstance(op, (ast.Is, ast.IsNot)) for op in ops):
        return Value(bool)
    a.known(all(v.is_deep_safe for v in values), "an operand", node)
    if len(ops) == 1 and not isinstance(ops[0], (ast.In, ast.NotIn)) and any(v.is_tensor for v in values):
        return Value(torch.Tensor, fresh=True)
    return Value(Arrayish, fresh=True) if any(v.is_array for v in values) else Value(bool)


def _subscript(a: "Analyzer", held: Value, index: ast.expr, node: ast.AST) -> Value:
    key, kind = a.expr(index), held.type
    a.known(key.is_deep_safe, "the index", node)
    if held.is_array or held.is_tensor:
        return Value(Arrayish if held.is_array else torch.Tensor, fresh=held.fresh)
    sliced = isinstance(index, ast.Slice) or key.type is slice
    if kind in (str, bytes, range):
        return Value(kind if kind is str or sliced else int)
    if kind in (list, tuple):
        if sliced:
            return sequence(held.element()) if kind is tuple else a.made(list, held.element())
        if key.type is Plain:
            return opaque()  # the key may be a number or a slice
        constant = key.obj if key.is_constant else None  # guards check types, not values
        if isinstance(constant, int):
            with contextlib.suppress(IndexError):
                if held.parts is not None:
                    return held.parts[constant]
                unseen = held.slot is not None and not held.is_deep_safe and not a.exposed
                if unseen and not a.guards.vector[held.slot]:  # type: ignore[index]
                    return a.look(held.obj[constant], a.guards.note("index", held.slot, constant))
        return held.element()
    if kind is dict:
        a.known(held.element().is_deep_safe, "a key of the dict", node)
        return held.content()
    a.known(kind in (Plain, Bottom), "the indexed object", node)
    return Value(kind)


def comprehension(a: "Analyzer", node: Any) -> Value:
    """Return the value of a comprehension, whose variables have a scope of their own."""
    frame = a.frame
    env, inside = frame.env, frame.inside
    frame.env, frame.inside = dict(env), 0
    for generator in node.generators:
        a.demand(not generator.is_async, "an async comprehension is not analysed", node)
        source = a.iterable(a.expr(generator.iter), generator.iter)
        assign(a, generator.target, source.element())
        for test in generator.ifs:
            a.truth(a.expr(test), test)
    if isinstance(node, ast.DictComp):
        key = _key(a, a.expr(node.key), node)
        made = a.made(dict, _kept(a, a.expr(node.value), node), key)
    else:
        elem = _kept(a, a.expr(node.elt), node)
        if isinstance(node, ast.GeneratorExp):
            made = Value(Iterator, elem=elem)
        elif isinstance(node, ast.SetComp):
            made = a.made(set, _key(a, elem, node))
        else:
            made = a.made(list, elem)
    frame.env, frame.inside = env, inside
    return made


# Stores. The target must have been made by the analysed code.


def _kept(a: "Analyzer", value: Value, node: ast.AST) -> Value:
    a.demand(value.type is not Iterator, KEPT_ITERATOR, node)
    return value


def _key(a: "Analyzer", value: Value, node: ast.AST) -> Value:
    a.known(value.is_deep_safe, "a key", node)
    return value


def put(a: "Analyzer", held: Value, value: Value, node: ast.AST, key: Value | None = None) -> None:
    """Add an element to a list, set or dict (there under `key`) that the code has made."""
    if held.type in (dict, set):
        _key(a, join(held.element(), key or value), node)
    a.put = join(a.put, _kept(a, value, node))
    a.put = a.put if a.put.depth < DEEPEST // 2 else opaque(a.put.may_be_changed)
    a.keys = join(a.keys, key or a.keys)


def assign(a: "Analyzer", target: ast.expr, value: Value) -> None:
    match target:
        case ast.Name(id=name):
            a.bind(name, value)
        case ast.Tuple(elts=elts) | ast.List(elts=elts):
            if any(isinstance(e, ast.Starred) for e in elts):
                raise a.decline(f"unpacking with a star is not analysed: `{excerpt(target)}`", target)
            parts: Any = value.parts
            if parts is None or len(parts) != len(elts):
                parts = [a.iterable(value, target).element()] * len(elts)
            for element, part in zip(elts, parts, strict=True):
                assign(a, element, part)
        case ast.Subscript(value=holder, slice=index):
            _store(a, a.expr(holder), a.expr(index), value, target)
        case _:
            raise a.decline(f"side effect: it sets `{excerpt(target)}`", target, impure=True)


def _store(a: "Analyzer", held: Value, key: Value, value: Value, target: ast.expr) -> None:
    a.changes(held, target)
    a.known(key.is_deep_safe, "a key", target)
    if held.type is dict:
        put(a, held, value, target, key)
    elif held.type is list:
        by_slice = key.type in (slice, Plain)
        put(a, held, a.iterable(value, target).element() if by_slice else value, target)
    else:
        a.known((held.is_array or held.is_tensor) and value.is_deep_safe, "the container or value", target)


def augment(a: "Analyzer", node: ast.AugAssign) -> None:
    """Analyse `target op= value`, which modifies mutable objects in place."""
    target = node.target
    if not isinstance(target, ast.Name):
        a.changes(a.expr(target.value), target)
    load: Any = clone(target)
    load.ctx = ast.Load()
    before, right = a.expr(load), a.expr(node.value)
    after = operate(a, node.op, before, right, node)
    if before.type in CHANGEABLE or before.is_array or before.is_tensor:
        a.changes(before, node)
        if before.type in CHANGEABLE:
            put(a, before, after.element(), node)
        after = before
    assign(a, target, after)
