"""Analysis of calls: whitelisted functions, methods of built-in values, arrays and tensors."""

import ast
import types
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from ..text.site_text import excerpt
from . import expressions, numpy_tables, python_tables, torch_tables, waiting
from .kinds import CONTAINERS, HOLDERS, NUMBERS, Bottom, DataType, Number, is_numpy_scalar
from .python_calls import (
    CallArguments,
    call_function,
    call_instance,
    call_layer,
    call_method_object,
    not_pure,
)  # fmt: skip
from .values import Value, opaque

if TYPE_CHECKING:
    from .analysis import Analyzer

TEXTS = (np.str_, np.bytes_)
IMPURE = (print, input, exec, eval, setattr, delattr)


def call(a: "Analyzer", node: ast.Call) -> Value:
    """Return what a call gives; raise `Decline` if it may do more than compute."""
    if isinstance(node.func, ast.Name) and node.func.id == "super":
        raise a.decline("super() is not analysed", node)
    callee = a.expr(node.func)
    if any(isinstance(arg, ast.Starred) for arg in node.args) or any(k.arg is None for k in node.keywords):
        raise a.decline(f"* and ** in a call are not analysed: `{excerpt(node)}`", node)
    args = [_argument(a, arg, callee) for arg in node.args]
    keywords = {k.arg: a.expr(k.value) for k in node.keywords if k.arg is not None}
    try:
        return call_value(a, callee, CallArguments(args, keywords, node))
    except (IndexError, TypeError):  # raised by a table for an unsupported signature
        raise a.decline(f"`{excerpt(node)}`: arguments that are not analysed") from None


def _argument(a: "Analyzer", node: ast.expr, callee: Value) -> Value:
    """Analyse an argument. A generator is accepted if the callee consumes all of it before it returns."""
    if not isinstance(node, ast.GeneratorExp):
        return a.expr(node)
    consumes = callee.slot is not None and any(callee.obj is e for e in python_tables.CONSUMERS)
    if callee.method is not None:
        consumes = callee.method[0].type is str and callee.method[1] == "join"
    return expressions.comprehension(a, node) if consumes else a.expr(node)


def call_value(a: "Analyzer", callee: Value, call: CallArguments) -> Value:
    """Return what calling `callee` gives: a method, a known function, or one whose text is analysed."""
    if callee.type is Bottom:
        return callee
    if callee.method is not None:
        receiver, name = callee.method
        if callee.function is not None:
            return call_function(a, callee.function, call.with_first(receiver))
        return _call_method(a, receiver, name, call)
    if callee.slot is None:
        raise a.decline(f"the called object is unknown: `{call.text}`", call.node)
    found, kind = callee.obj, type(callee.obj)
    if kind is types.MethodType:
        return call_method_object(a, callee, call)
    known = _call_known(a, found, call)
    if known is not None:
        a.guards.expect(callee.slot, "is", found)  # known by identity, not by its code
        return known
    if kind is types.FunctionType:
        return call_function(a, callee, call)
    if issubclass(kind, nn.Module):
        return call_layer(a, callee, call)
    if callable(found) and kind.__module__ != "builtins" and not issubclass(kind, type):
        return call_instance(a, callee, call)
    raise a.decline(not_pure(getattr(found, "__name__", found)), call.node)


def _call_known(a: "Analyzer", found: Any, call: CallArguments) -> Value | None:
    """Return the result of a whitelisted function, or None."""
    if not _hashable(found):
        return None
    args, keywords, node = call
    if found in IMPURE:
        raise a.decline(f"{found.__name__} has side effects", node, impure=True)
    if found in python_tables.LOOKERS and not keywords:
        a.demand(_only_looks(found, args), f"{call.text}() may run code of a user's class", node)
        return Value(python_tables.LOOKERS[found])
    waited = waiting.waiting_call(a, found, call)
    if waited is not None:
        return waited
    if found in python_tables.EXCEPTIONS:
        return opaque()
    if found in torch_tables.GRAD_MODES and not args and not keywords:
        return Value(torch_tables.GradMode, fresh=True)
    if found in python_tables.FUNCTIONS:
        return _call_builtin(a, found, call)
    if found in numpy_tables.UFUNCS:
        options = set(keywords) - {"dtype", "axis", "keepdims"}
        if len(args) > found.nin or options:
            raise a.decline(call.options_unknown, node)
        a.known(call.safe, "an argument", node)
        return numpy_tables.numpy_result("new", None, [])
    numpy_kind = numpy_tables.NUMPY_FUNCTIONS.get(found)
    if numpy_kind is not None or found in numpy_tables.NUMPY_TYPES:
        _only_computes(a, found, found.__name__, call)
        return numpy_tables.numpy_result(numpy_kind or found, None, call.values)
    if found in torch_tables.TORCH_FUNCTIONS:
        _only_computes(a, found, found.__name__, call)
        return torch_tables.tensor_result(found.__name__, None)
    return None


def _hashable(found: Any) -> bool:
    """Return whether a table lookup of the object runs no `__hash__` or `__eq__` of the user."""
    kind = type(found)
    overrides = kind.__hash__ is not object.__hash__ or kind.__eq__ is not object.__eq__
    return kind.__hash__ is not None and (not overrides or kind.__module__ in ("builtins", "numpy"))


def _only_looks(found: Any, args: list[Value]) -> bool:
    """Return whether `isinstance` or `type` runs no user code.

    `isinstance` calls the metaclass, and reads the object's `__class__`, which a class may define itself.
    """
    if found is type or len(args) != 2:
        return found is type and len(args) == 1
    held, kind = args[0], args[0].type
    classes = args[1].parts if args[1].parts is not None else [args[1]]
    if not all(given.known and given.type in python_tables.METACLASSES for given in classes):
        return False
    plain = isinstance(kind, type) and kind.__getattribute__ is object.__getattribute__
    overrides = plain and any("__class__" in base.__dict__ for base in kind.__mro__[:-1])
    return held.is_safe or kind in HOLDERS or (held.known and plain and not overrides)


def _call_builtin(a: "Analyzer", found: Any, call: CallArguments) -> Value:
    entry, args, node = python_tables.FUNCTIONS[found], call.args, call.node
    options = isinstance(entry, Value) or set(call.keywords) <= python_tables.OPTIONS.get(found, set())
    if not options:
        raise a.decline(call.options_unknown, node)
    for arg in args[:1] if found is enumerate else args:
        if found in python_tables.ITERATING:
            arg.is_safe or a.iterable(arg, node)
        else:
            a.known(arg.is_deep_safe, "an argument", node)
    safe = all(value.is_deep_safe for value in call.keywords.values())
    a.known(safe, "an argument", node)
    return python_tables.result(entry, a.made, *args)


def _only_computes(a: "Analyzer", function: Any, name: str, call: CallArguments) -> None:
    """Raise `Decline` if a NumPy or PyTorch call may do more than compute a new result."""
    args = [_as_data_type(v) for v in call.args]
    keywords = {key: _as_data_type(v) for key, v in call.keywords.items()}
    holds_objects = numpy_tables.may_hold_objects([*args, *keywords.values()])
    a.known(CallArguments(args, keywords, call.node).safe and not holds_objects, "an argument", call.node)
    option = numpy_tables.risky_option(function, name, args, keywords)
    if option is not None:
        raise a.decline(f"{call.text}() may write into or return an argument (option {option})", call.node)


def _as_data_type(value: Value) -> Value:
    """Return a dtype value for number types such as `float` and `np.float32` and for dtype objects."""
    held = value.obj if value.slot is not None else None
    number = isinstance(held, type) and (held in NUMBERS or (is_numpy_scalar(held) and held not in TEXTS))
    return Value(DataType) if number or (isinstance(held, np.dtype) and held.kind in "biufc") else value


def _call_method(a: "Analyzer", receiver: Value, name: str, call: CallArguments) -> Value:
    """Analyse methods of built-in values, arrays and tensors: pure ones, and changes of fresh receivers."""
    kind, node = receiver.type, call.node
    if kind in waiting.METHODS:
        return waiting.waiting_method(a, kind, name, call)
    if name in python_tables.CHANGERS.get(kind, ()):
        a.changes(receiver, node)
        known = not call.keywords and (call.safe or name == "append")
        a.known(known, "an argument", node)
        if kind in CONTAINERS:
            last = call.args[0]
            expressions.put(a, receiver, a.iterable(last, node).element() if name == "extend" else last, node)
        return Value(type(None))
    if receiver.is_array or is_numpy_scalar(kind) or kind is Number:
        if name not in numpy_tables.ARRAY_METHODS:
            raise a.decline(not_pure(f".{name}() of an array or number"), node)
        method = getattr(np.ndarray, name, getattr(np.float64, name, None))
        _only_computes(a, method, name, call.with_first(receiver))
        return numpy_tables.numpy_result(numpy_tables.ARRAY_METHODS[name], a.made, [receiver])
    if receiver.is_tensor:
        _only_computes(a, getattr(torch.Tensor, name), name, call.with_first(receiver))
        return torch_tables.tensor_result(name, receiver)
    a.known(call.safe, "an argument", node)
    if kind in (list, tuple, set) and name != "copy":
        a.known(receiver.is_deep_safe, "an element", node)
    if kind is dict and call.args:
        a.known(receiver.element().is_deep_safe, "a key of the dict", node)
    return python_tables.result(python_tables.METHODS[kind][name], a.made, receiver, *call.args)
