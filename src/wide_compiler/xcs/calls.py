"""Calls on abstract values: whitelisted functions, and functions whose text is analysed in turn."""

import ast
import types
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from . import expressions, pure_numpy, pure_tables, pure_torch, waiting
from .analysis import Frame
from .python_calls import (
    Keywords,
    all_safe,
    call_function,
    call_inner,
    call_instance,
    call_layer,
    call_method_object,
    construct,
    text_of,
)
from .values import Number, Value, is_numpy_scalar, join, opaque

if TYPE_CHECKING:
    from .analysis import Analyzer, Env


def call(a: "Analyzer", node: ast.Call, env: "Env", frame: Frame) -> Value:
    if isinstance(node.func, ast.Name) and node.func.id == "super":
        raise a.decline("it calls super()", node)
    callee = a.expr(node.func, env, frame)
    if any(isinstance(arg, ast.Starred) for arg in node.args) or any(k.arg is None for k in node.keywords):
        raise a.decline("it calls with * or **", node)
    args = [a.expr(arg, env, frame) for arg in node.args]
    keywords = {k.arg: a.expr(k.value, env, frame) for k in node.keywords if k.arg is not None}
    return call_value(a, callee, args, keywords, node)


def call_value(a: "Analyzer", callee: Value, args: list[Value], keywords: Keywords, node: ast.AST) -> Value:
    if isinstance(callee.function, tuple):
        return call_inner(a, callee, args, keywords, node)
    if callee.method is not None:
        receiver, name = callee.method
        if callee.function is not None:
            return call_function(a, callee.function, [receiver, *args], keywords, node)
        return _call_builtin_method(a, receiver, name, args, keywords, node)
    if not callee.known or callee.slot is None:
        raise a.decline(f"it calls something unknown: {text_of(node)}", node)
    found = callee.obj
    if isinstance(found, types.MethodType):
        return call_method_object(a, callee, args, keywords, node)
    known = _call_known(a, found, args, keywords, node)
    if known is not None:
        a.calls.setdefault(text_of(node), "known")
        return known
    if isinstance(found, types.FunctionType):
        return call_function(a, callee, args, keywords, node)
    if isinstance(found, type):
        return construct(a, callee, args, keywords, node)
    if isinstance(found, nn.Module):
        return call_layer(a, callee, args, keywords, node)
    if callable(found) and type(found).__module__ != "builtins":
        return call_instance(a, callee, args, keywords, node)
    raise a.decline(f"{getattr(found, '__name__', found)!s} is not known to be free of effects", node)


def _call_known(
    a: "Analyzer", found: Any, args: list[Value], keywords: Keywords, node: ast.AST
) -> Value | None:
    """A whitelisted function, or None."""
    if not _hashable(found):
        return None
    if found in (print, input, exec, eval, setattr, delattr):
        raise a.decline(f"{found.__name__} has effects", node, impure=True)
    if found in pure_tables.LOOKERS and not keywords:
        return Value(pure_tables.LOOKERS[found])
    if found in waiting.FUNCTIONS or waiting.client_get(found):
        return _wait(a, found, args, keywords, node)
    if found in pure_tables.EXCEPTIONS:
        return opaque()
    if found in pure_torch.GRAD_MODES and not args and not keywords:
        return Value(pure_torch.GradMode, fresh=True)
    if found in pure_tables.FUNCTIONS:
        return _call_builtin(a, found, args, keywords, node)
    numpy_kind = "new" if isinstance(found, np.ufunc) else pure_numpy.NUMPY_FUNCTIONS.get(found)
    if numpy_kind is not None or found in pure_numpy.NUMPY_TYPES:
        if "out" in keywords or not all_safe(args, keywords):
            raise a.decline(f"{text_of(node)} gets something of unknown type, or writes into an array", node)
        if isinstance(found, np.ufunc) and len(args) > found.nin:
            raise a.decline(f"{text_of(node)} writes into an array", node)
        return pure_numpy.numpy_result(numpy_kind or found, args)
    if found in pure_torch.TORCH_FUNCTIONS:
        if "out" in keywords or "inplace" in keywords or not all_safe(args, keywords):
            raise a.decline(f"{text_of(node)} gets something of unknown type, or writes into a tensor", node)
        return pure_torch.tensor_result(found.__name__, None)
    return None


def _hashable(found: Any) -> bool:
    try:
        hash(found)
    except TypeError:
        return False
    own = getattr(type(found), "__hash__", None)
    return (
        own is object.__hash__ or type(found).__module__ in ("builtins", "numpy") or isinstance(found, type)
    )


def _wait(a: "Analyzer", found: Any, args: list[Value], keywords: Keywords, node: ast.AST) -> Value:
    if not all(v.is_safe or v.type in waiting.PATHS for v in [*args, *keywords.values()]):
        raise a.decline(f"{text_of(node)} gets something of unknown type", node)
    if found is open:
        mode = args[1] if len(args) > 1 else keywords.get("mode")
        if len(args) > 2 or set(keywords) - {"mode", "encoding", "errors", "newline"}:
            raise a.decline("open() is called with options that are not analysed", node)
        if mode is not None and mode.obj not in waiting.READ_MODES:
            raise a.decline("open() is called for writing", node, impure=True)
        if args and args[0].type not in (str, *waiting.PATHS):
            raise a.decline("open() gets something other than a path", node)
    elif waiting.client_get(found):
        if set(keywords) - {"params", "timeout", "headers"}:
            raise a.decline(f"{text_of(node)} is called with options that are not analysed", node)
        a.waits()
        return Value(waiting.ReadFile, fresh=True)
    elif len(args) != 1 or set(keywords) - {"timeout"}:
        raise a.decline(f"{text_of(node)} is called with options that are not analysed", node)
    a.waits()
    return waiting.result(waiting.FUNCTIONS[found])


def _call_builtin(a: "Analyzer", found: Any, args: list[Value], keywords: Keywords, node: ast.AST) -> Value:
    entry = pure_tables.FUNCTIONS[found]
    key = keywords.pop("key", None)
    if key is not None and key.type is not type(None):
        elem = args[0].element() if len(args) == 1 else join_values(args)
        chosen = call_value(a, key, [elem], {}, node)
        if not chosen.is_deep_safe:
            raise a.decline(f"the key function of {text_of(node)} returns something of unknown type", node)
    sequences = found in (list, tuple, zip, enumerate, reversed, iter, len) or key is not None
    if sequences:
        for arg in args[:1] if found is enumerate else args:
            if found is not len or not arg.is_safe:
                a.iterable(arg, node)
    elif not all_safe(args, keywords):
        raise a.decline(f"{text_of(node)} gets something of unknown type", node)
    if not all_safe([], keywords):
        raise a.decline(f"{text_of(node)} gets something of unknown type", node)
    if entry == "operator":
        return expressions.operate(a, ast.Add(), args[0], args[-1], node)
    if not args and not isinstance(entry, type) and found not in (list, tuple, set, dict, frozenset):
        raise a.decline(f"{text_of(node)} is called without arguments", node)
    return pure_tables.result(entry, args)


def join_values(values: list[Value]) -> Value:
    found = values[0]
    for value in values[1:]:
        found = join(found, value)
    return found


def _call_builtin_method(
    a: "Analyzer", receiver: Value, name: str, args: list[Value], keywords: Keywords, node: ast.AST
) -> Value:
    kind = receiver.type
    if kind is waiting.ReadFile:
        a.waits()
        return waiting.result(waiting.METHODS[name])
    if kind in waiting.PATHS:
        a.waits()
        return Value(waiting.PATH_METHODS[name])
    changers = pure_tables.CHANGERS.get(kind, {})
    if name in changers:
        a.changes(receiver, node)
        return _change(a, receiver, name, changers[name], args, keywords, node)
    if not all_safe(args, keywords) or "out" in keywords:
        raise a.decline(f".{name}() gets something of unknown type", node)
    if receiver.is_array or is_numpy_scalar(kind) or kind is Number:
        return pure_numpy.numpy_result(pure_numpy.ARRAY_METHODS[name], args, receiver)
    if receiver.is_tensor:
        return pure_torch.tensor_result(name, receiver)
    if kind in (list, tuple, set) and not receiver.is_deep_safe:
        raise a.decline(f".{name}() compares things of unknown type", node)
    if kind is dict and args and receiver.key is None and not receiver.fresh:
        raise a.decline("it looks into a dict whose keys could be anything", node)
    return pure_tables.result(pure_tables.METHODS[kind][name], args, receiver)


def _change(
    a: "Analyzer", held: Value, name: str, learns: str, args: list[Value], keywords: Keywords, node: ast.AST
) -> Value:
    """A method that changes its fresh receiver."""
    if keywords.get("key") is not None:
        call_value(a, keywords.pop("key"), [held.element()], {}, node)
    if keywords and not all_safe([], keywords):
        raise a.decline(f".{name}() gets something of unknown type", node)
    if (name in ("sort", "remove", "discard") or held.type in (set, dict)) and not (
        held.is_deep_safe and all(v.is_deep_safe for v in args[:1])
    ):
        raise a.decline(f".{name}() compares things of unknown type", node)
    if learns == "one":
        held.may_hold(args[0])
    elif learns == "second":
        held.may_hold(args[1])
    elif learns == "all":
        held.may_hold(a.iterable(args[0], node).element())
    elif learns == "value" and len(args) == 2:
        held.key = args[0] if held.key is None else join(held.key, args[0])
        held.may_hold(args[1])
        return held.elem or opaque()
    elif learns in ("dict", "value"):
        raise a.decline(f".{name}() is not analysed", node)
    return (
        held.element()
        if learns == "gives" and held.type is list
        else (held.elem or opaque() if learns == "gives" else Value(type(None)))
    )
