"""Calls of methods of built-in values, arrays and tensors: those that only compute, and those that change
what the analysed code made itself."""

import ast
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from . import pure_numpy, pure_tables, pure_torch, waiting
from .kinds import CHANGEABLE, NUMBERS, DataType, Number, is_numpy_scalar
from .python_calls import Keywords, all_safe, text_of
from .values import Value, join, opaque
from .writing import may_hold_objects, risky_option

if TYPE_CHECKING:
    from .analysis import Analyzer

TEXTS = (np.str_, np.bytes_)


def only_computes(
    a: "Analyzer", function: Any, name: str, args: list[Value], keywords: Keywords, node: ast.AST
) -> None:
    """Of a function or method of NumPy or PyTorch, whatever its options may be."""
    args = [_as_data_type(v) for v in args]
    keywords = {key: _as_data_type(v) for key, v in keywords.items()}
    values = [*args, *keywords.values()]
    if not all_safe(args, keywords) or may_hold_objects(values):
        raise a.decline(f"{text_of(node)} gets something of unknown type", node)
    option = risky_option(function, name, args, keywords)
    if option is not None:
        raise a.decline(f"{text_of(node)} may write into an argument ({option}), or give it back", node)


def _as_data_type(value: Value) -> Value:
    """`float`, `np.float32` and the like, which the guards know by identity, as a dtype; so an object that is
    one, of which they know the class."""
    held = value.obj if value.slot is not None else None
    if isinstance(held, type) and (held in NUMBERS or (is_numpy_scalar(held) and held not in TEXTS)):
        return Value(DataType)
    if isinstance(held, np.dtype) and held.kind in "biufc":
        return Value(DataType)
    return value


def call_builtin_method(
    a: "Analyzer", receiver: Value, name: str, args: list[Value], keywords: Keywords, node: ast.AST
) -> Value:
    kind = receiver.type
    if (kind is waiting.ReadFile or kind in waiting.PATHS) and not all_safe(args, keywords):
        raise a.decline(f".{name}() gets something of unknown type", node)
    if kind is waiting.ReadFile:
        a.waits()
        return waiting.result(waiting.METHODS[name])
    if kind in waiting.PATHS:
        return waiting.call_path(a, name, args, keywords, node)
    changers = pure_tables.CHANGERS.get(kind, {})
    if name in changers:
        a.changes(receiver, node)
        return _change(a, receiver, name, changers[name], args, keywords, node)
    if receiver.is_array or is_numpy_scalar(kind) or kind is Number:
        if name not in pure_numpy.ARRAY_METHODS:
            raise a.decline(f"a number has no .{name}()", node)
        method = getattr(np.ndarray, name, getattr(np.float64, name, None))
        only_computes(a, method, name, [receiver, *args], keywords, node)
        return pure_numpy.numpy_result(pure_numpy.ARRAY_METHODS[name], args, receiver)
    if receiver.is_tensor:
        only_computes(a, getattr(torch.Tensor, name), name, [receiver, *args], keywords, node)
        return pure_torch.tensor_result(name, receiver)
    if not all_safe(args, keywords):
        raise a.decline(f".{name}() gets something of unknown type", node)
    if kind in (list, tuple, set) and not receiver.is_deep_safe:
        raise a.decline(f".{name}() compares things of unknown type", node)
    if kind is dict and args and not receiver.has_safe_keys:
        raise a.decline("it looks into a dict whose keys could be anything", node)
    return pure_tables.result(pure_tables.METHODS[kind][name], args, receiver)


def _change(
    a: "Analyzer", held: Value, name: str, learns: str, args: list[Value], keywords: Keywords, node: ast.AST
) -> Value:
    """A method that changes its fresh receiver."""
    sorted_by_key = keywords.get("key") is not None
    if sorted_by_key:
        from .calls import call_value

        chosen = call_value(a, keywords.pop("key"), [held.element()], {}, node)
        if not chosen.is_deep_safe:
            raise a.decline(f"the key function of .{name}() returns something of unknown type", node)
    if keywords and not all_safe([], keywords):
        raise a.decline(f".{name}() gets something of unknown type", node)
    if (name in ("sort", "remove", "discard") or held.type in (set, dict)) and not (
        (held.is_deep_safe or sorted_by_key) and all(v.is_deep_safe for v in args[:1])
    ):
        raise a.decline(f".{name}() compares things of unknown type", node)
    if len(args) not in pure_tables.TAKES.get(learns, range(9)):
        raise a.decline(f".{name}() is called with arguments that are not analysed", node)
    if held.type in CHANGEABLE:
        held.content.scatter()  # whatever it does: nothing is surely where it was
    if learns == "one":
        held.may_hold(args[0])
    elif learns == "second":
        held.may_hold(args[1])
    elif learns == "all":
        for arg in args:
            for element in a.iterable(arg, node).elements():
                held.may_hold(element)
    elif learns == "value":
        held.may_have_key(args[0])
        held.may_hold(args[1])
        return held.elem or opaque()
    elif learns == "dict":
        raise a.decline(f".{name}() is not analysed", node)
    elif learns == "gives":
        gone = held.element() if held.type is list else held.elem or opaque()
        return join(gone, args[1]) if held.type is dict and len(args) > 1 else gone
    return Value(type(None))
