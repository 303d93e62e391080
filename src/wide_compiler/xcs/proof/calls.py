"""Calls on abstract values: whitelisted functions, and functions whose text is analysed in turn."""

import ast
import json
import types
from typing import TYPE_CHECKING, Any

from torch import nn

from ..text.maps import as_generator
from . import expressions, pure_numpy, pure_tables, pure_torch, waiting
from .kinds import CONTAINERS, ITERATORS
from .method_calls import call_builtin_method, only_computes
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
from .values import Value, join, opaque

if TYPE_CHECKING:
    from .analysis import Analyzer
    from .frames import Env, Frame


def call(a: "Analyzer", node: ast.Call, env: "Env", frame: "Frame") -> Value:
    if isinstance(node.func, ast.Name) and node.func.id == "super":
        raise a.decline("it calls super()", node)
    callee = a.expr(node.func, env, frame)
    if any(isinstance(arg, ast.Starred) for arg in node.args) or any(k.arg is None for k in node.keywords):
        raise a.decline("it calls with * or **", node)
    eats = _eats_whole(callee)
    found = opaque()

    def one() -> None:
        nonlocal found
        args = [_argument(a, arg, eats, env, frame) for arg in node.args]
        keywords = {k.arg: a.expr(k.value, env, frame) for k in node.keywords if k.arg is not None}
        found = call_value(a, callee, args, keywords, node)

    if any(k.arg == "key" for k in node.keywords):
        a.settle(one, env, frame, node)  # it is called many times, between the rounds of a generator
    else:
        one()
    return found


def _eats_whole(callee: Value) -> bool:
    """Does it take all that a generator gives before it returns?"""
    if callee.method is not None:
        return callee.method[0].type is str and callee.method[1] == "join"
    return callee.known and callee.slot is not None and any(callee.obj is e for e in pure_tables.EATERS)


def _argument(a: "Analyzer", node: ast.expr, eats: bool, env: "Env", frame: "Frame") -> Value:
    if isinstance(node, ast.GeneratorExp) and eats:
        return expressions.comprehension(a, node, env, frame)
    if eats and isinstance(node, ast.Call) and len(node.args) == 2 and not node.keywords:
        callee = a.expr(node.func, env, frame)
        if callee.known and callee.obj is map and callee.slot is not None:
            a.guards.expect(callee.slot, "is", map)
            return expressions.comprehension(a, as_generator(node), env, frame)
    return a.expr(node, env, frame)


def call_value(a: "Analyzer", callee: Value, args: list[Value], keywords: Keywords, node: ast.AST) -> Value:
    if isinstance(callee.function, tuple):
        return call_inner(a, callee, args, keywords, node)
    if callee.method is not None:
        receiver, name = callee.method
        if callee.function is not None:
            return call_function(a, callee.function, [receiver, *args], keywords, node)
        return call_builtin_method(a, receiver, name, args, keywords, node)
    if not callee.known or callee.slot is None:
        raise a.decline(f"it calls something unknown: {text_of(node)}", node)
    found, kind = callee.obj, type(callee.obj)
    if kind is types.MethodType:
        return call_method_object(a, callee, args, keywords, node)
    known = _call_known(a, found, args, keywords, node)
    if known is not None:
        a.guards.expect(callee.slot, "is", found)  # which is not its text
        a.calls.setdefault(text_of(node), "known")
        return known
    if kind is types.FunctionType:
        return call_function(a, callee, args, keywords, node)
    if issubclass(kind, type):
        return construct(a, callee, args, keywords, node)
    if issubclass(kind, nn.Module):
        return call_layer(a, callee, args, keywords, node)
    if callable(found) and kind.__module__ != "builtins":
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
        if not _only_looks(a, found, args):
            raise a.decline(f"{text_of(node)} may ask a class or object of the user's", node)
        return Value(pure_tables.LOOKERS[found])
    if waiting.waits(a, found, text_of(node), node):
        return _wait(a, found, args, keywords, node)
    if found in waiting.PATH_MAKERS and not keywords:
        return waiting.path_of(a, args, node)
    if found is json.load and not keywords:
        return waiting.load_json(a, args, node)
    if found in pure_tables.EXCEPTIONS:
        return opaque()
    if found in pure_torch.GRAD_MODES and not args and not keywords:
        return Value(pure_torch.GradMode, fresh=True)
    if found in pure_tables.FUNCTIONS:
        return _call_builtin(a, found, args, keywords, node)
    if found in pure_numpy.UFUNCS:
        options = set(keywords) - {"dtype", "axis", "keepdims"}
        if len(args) > found.nin or options or not all_safe(args, keywords):
            raise a.decline(f"{text_of(node)} gets something of unknown type, or writes into an array", node)
        return pure_numpy.numpy_result("new", args)
    numpy_kind = pure_numpy.NUMPY_FUNCTIONS.get(found)
    if numpy_kind is not None or found in pure_numpy.NUMPY_TYPES:
        only_computes(a, found, found.__name__, args, keywords, node)
        return pure_numpy.numpy_result(numpy_kind or found, [*args, *keywords.values()])
    if found in pure_torch.TORCH_FUNCTIONS:
        if pure_torch.writes_into(found, args, keywords):
            a.changes(args[0], node)
            return args[0]
        only_computes(a, found, found.__name__, args, keywords, node)
        return pure_torch.tensor_result(found.__name__, None)
    return None


def _only_looks(a: "Analyzer", found: Any, args: list[Value]) -> bool:
    """`isinstance` asks the metaclass of the class, and an object of another class what it says it is."""
    if found is type:
        return len(args) == 1
    if len(args) != 2 or not _plain_classes(a, args[1]):
        return False
    held = args[0]
    if found is issubclass:
        return held.known and held.type in pure_tables.METACLASSES
    if held.is_safe or held.type in (*CONTAINERS, *ITERATORS):
        return True
    kind = held.type
    tells = isinstance(kind, type) and kind.__getattribute__ is object.__getattribute__
    return held.known and tells and not any("__class__" in base.__dict__ for base in kind.__mro__[:-1])


def _plain_classes(a: "Analyzer", given: Value) -> bool:
    """A class, or a tuple of them, whose metaclass runs no code of the user's."""
    if given.type is tuple and given.parts is not None:
        return all(_plain_classes(a, part) for part in given.parts)
    if given.type is tuple and given.known and given.slot is not None:
        a.guards.expect(given.slot, "is", given.obj)
        return all(type(kind) in pure_tables.METACLASSES for kind in given.obj)
    return given.known and given.type in pure_tables.METACLASSES


def _hashable(found: Any) -> bool:
    """Can it be looked up without asking a class of the user's?"""
    kind = type(found)
    if kind.__module__ not in ("builtins", "numpy") and (
        kind.__hash__ is not object.__hash__ or kind.__eq__ is not object.__eq__
    ):
        return False
    try:
        hash(found)
    except TypeError:
        return False
    return True


def _wait(a: "Analyzer", found: Any, args: list[Value], keywords: Keywords, node: ast.AST) -> Value:
    for value in (*args, *keywords.values()):
        if value.type in waiting.PATHS:
            waiting.unpatched(a, waiting.FILES, text_of(node), node)
        elif not value.is_safe:
            raise a.decline(f"{text_of(node)} gets something of unknown type", node)
    if found is open:
        waiting.check_open(a, args[1:], keywords, node)
        if args and args[0].type not in (str, *waiting.PATHS):
            raise a.decline("open() gets something other than a path", node)
    elif found not in waiting.FUNCTIONS:  # the get() of a client for the web
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
    if key is not None and found not in (min, max, sorted):
        raise a.decline(f"{text_of(node)} takes no key", node)
    if key is not None and key.type is not type(None):
        if not args:
            raise a.decline(f"{text_of(node)} is called without arguments", node)
        elem = args[0].element() if len(args) == 1 else join_values(args)
        chosen = call_value(a, key, [elem], {}, node)
        if not chosen.is_deep_safe:
            raise a.decline(f"the key function of {text_of(node)} returns something of unknown type", node)
    several = key is not None and len(args) > 1  # max(a, b, key=...): nobody looks into them
    sequences = found in (list, tuple, zip, enumerate, reversed, iter, len) or key is not None
    if sequences:
        for arg in [] if several else args[:1] if found is enumerate else args:
            if found is not len or not arg.is_safe:
                a.iterable(arg, node)
    elif not all_safe(args, keywords):
        raise a.decline(f"{text_of(node)} gets something of unknown type", node)
    if not all_safe([], keywords):
        raise a.decline(f"{text_of(node)} gets something of unknown type", node)
    if entry == "operator":
        if not args or keywords:
            raise a.decline(f"{text_of(node)} is called without arguments", node)
        return expressions.operate(a, ast.Add(), args[0], args[-1], node)
    if not args and not isinstance(entry, type) and found not in (list, tuple, set, dict, frozenset):
        raise a.decline(f"{text_of(node)} is called without arguments", node)
    return pure_tables.result(entry, pure_tables.with_options(found, args, keywords))


def join_values(values: list[Value]) -> Value:
    found = values[0]
    for value in values[1:]:
        found = join(found, value)
    return found
