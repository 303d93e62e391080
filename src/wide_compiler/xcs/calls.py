"""Calls on abstract values: whitelisted functions, and functions whose text is analysed in turn."""

import ast
import dataclasses
import types
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from . import expressions, pure_arrays, pure_tables, waiting
from .analysis import DEEPEST, Frame
from .guards import bare, static_lookup
from .source import NoSource, tree_of
from .values import BOTTOM, Value, join, opaque

if TYPE_CHECKING:
    from .analysis import Analyzer, Env

NUMPY_DISPATCHED = type(np.sum)
Keywords = dict[str, Value]


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
        return _call_inner(a, callee, args, keywords, node)
    if callee.method is not None:
        receiver, name = callee.method
        if callee.function is not None:
            return call_function(a, callee.function, [receiver, *args], keywords, node)
        return _call_builtin_method(a, receiver, name, args, keywords, node)
    if not callee.known or callee.slot is None:
        raise a.decline(f"it calls something unknown: {_text(node)}", node)
    found = callee.obj
    if isinstance(found, types.MethodType):
        return _call_method_object(a, callee, args, keywords, node)
    known = _call_known(a, found, args, keywords, node)
    if known is not None:
        a.calls.setdefault(_text(node), "known")
        return known
    if isinstance(found, types.FunctionType):
        return call_function(a, callee, args, keywords, node)
    if isinstance(found, type):
        return _construct(a, callee, args, keywords, node)
    if isinstance(found, nn.Module):
        return _call_layer(a, callee, args, keywords, node)
    if callable(found) and type(found).__module__ != "builtins":
        return _call_instance(a, callee, args, keywords, node)
    raise a.decline(f"{getattr(found, '__name__', found)!s} is not known to be free of effects", node)


def _text(node: ast.AST) -> str:
    return ast.unparse(node.func) if isinstance(node, ast.Call) else "call"


def _all_safe(args: list[Value], keywords: Keywords) -> bool:
    return all(v.is_deep_safe for v in [*args, *keywords.values()])


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
    if found in pure_arrays.GRAD_MODES and not args and not keywords:
        return Value(pure_arrays.GradMode, fresh=True)
    if found in pure_tables.FUNCTIONS:
        return _call_builtin(a, found, args, keywords, node)
    numpy_kind = "new" if isinstance(found, np.ufunc) else pure_arrays.NUMPY_FUNCTIONS.get(found)
    if numpy_kind is not None or found in pure_arrays.NUMPY_TYPES:
        if "out" in keywords or not _all_safe(args, keywords):
            raise a.decline(f"{_text(node)} gets something of unknown type, or writes into an array", node)
        if isinstance(found, np.ufunc) and len(args) > found.nin:
            raise a.decline(f"{_text(node)} writes into an array", node)
        return pure_arrays.numpy_result(numpy_kind or found, args)
    if found in pure_arrays.TORCH_FUNCTIONS:
        if "out" in keywords or "inplace" in keywords or not _all_safe(args, keywords):
            raise a.decline(f"{_text(node)} gets something of unknown type, or writes into a tensor", node)
        return pure_arrays.tensor_result(found.__name__, None)
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
        raise a.decline(f"{_text(node)} gets something of unknown type", node)
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
            raise a.decline(f"{_text(node)} is called with options that are not analysed", node)
        a.waits()
        return Value(waiting.ReadFile, fresh=True)
    elif len(args) != 1 or set(keywords) - {"timeout"}:
        raise a.decline(f"{_text(node)} is called with options that are not analysed", node)
    a.waits()
    return waiting.result(waiting.FUNCTIONS[found])


def _call_builtin(a: "Analyzer", found: Any, args: list[Value], keywords: Keywords, node: ast.AST) -> Value:
    entry = pure_tables.FUNCTIONS[found]
    key = keywords.pop("key", None)
    if key is not None and key.type is not type(None):
        elem = args[0].element() if len(args) == 1 else join_values(args)
        chosen = call_value(a, key, [elem], {}, node)
        if not chosen.is_deep_safe:
            raise a.decline(f"the key function of {_text(node)} returns something of unknown type", node)
    sequences = found in (list, tuple, zip, enumerate, reversed, iter, len) or key is not None
    if sequences:
        for arg in args[:1] if found is enumerate else args:
            if found is not len or not arg.is_safe:
                a.iterable(arg, node)
    elif not _all_safe(args, keywords):
        raise a.decline(f"{_text(node)} gets something of unknown type", node)
    if not _all_safe([], keywords):
        raise a.decline(f"{_text(node)} gets something of unknown type", node)
    if entry == "operator":
        return expressions.operate(a, ast.Add(), args[0], args[-1], node)
    if not args and not isinstance(entry, type) and found not in (list, tuple, set, dict, frozenset):
        raise a.decline(f"{_text(node)} is called without arguments", node)
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
    if not _all_safe(args, keywords) or "out" in keywords:
        raise a.decline(f".{name}() gets something of unknown type", node)
    if receiver.is_array or expressions.is_numpy_scalar(kind) or kind is expressions.Number:
        return pure_arrays.numpy_result(pure_arrays.ARRAY_METHODS[name], args, receiver)
    if receiver.is_tensor:
        return pure_arrays.tensor_result(name, receiver)
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
    if keywords and not _all_safe([], keywords):
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


def _call_method_object(
    a: "Analyzer", callee: Value, args: list[Value], keywords: Keywords, node: ast.AST
) -> Value:
    """A bound method kept in a variable."""
    assert callee.slot is not None
    owner = a.look(callee.obj.__self__, a.guards.note("getattr", callee.slot, "__self__"))
    function = callee.obj.__func__
    if not isinstance(function, types.FunctionType):
        raise a.decline(f"{_text(node)} is a method without text", node)
    held = a.look(function, a.guards.note("getattr", callee.slot, "__func__"))
    return call_function(a, held, [owner, *args], keywords, node)


def _call_instance(
    a: "Analyzer", callee: Value, args: list[Value], keywords: Keywords, node: ast.AST
) -> Value:
    method = static_lookup(type(callee.obj), "__call__")
    if not isinstance(method, types.FunctionType):
        raise a.decline(f"calling a {type(callee.obj).__name__} is not known to be free of effects", node)
    assert callee.slot is not None
    a.guards.expect(callee.slot, "type", type(callee.obj))
    found = a.look(method, a.guards.note("class", callee.slot, "__call__"))
    return call_function(a, found, [callee, *args], keywords, node)


def _call_layer(a: "Analyzer", callee: Value, args: list[Value], keywords: Keywords, node: ast.AST) -> Value:
    """A module of PyTorch: one of the layers that only compute, or a forward whose text is analysed."""
    layer, slot = callee.obj, callee.slot
    assert slot is not None
    kind = type(layer)
    if kind.__call__ is not nn.Module.__call__:
        raise a.decline(f"{kind.__name__} is called in its own way", node)
    if not bare(layer, None) or nn.modules.module._has_any_global_hook():
        raise a.decline(f"{kind.__name__} has hooks or a forward of its own", node)
    a.guards.expect(a.guards.note("bare", slot, None), "is", True)
    anywhere = a.guards.note("const", nn.modules.module, None)
    a.guards.expect(a.guards.note("hooked", anywhere, None), "is", False)
    a.guards.expect(slot, "type", kind)
    method = static_lookup(kind, "forward")
    if method is not pure_arrays.FORWARDS.get(kind, method):
        raise a.decline(f"{kind.__name__} has another forward than PyTorch has given it", node)
    if kind in pure_arrays.LAYERS or (kind in pure_arrays.EVAL_LAYERS and not layer.training):
        a.guards.expect(a.guards.note("class", slot, "forward"), "is", method)
        if kind in pure_arrays.EVAL_LAYERS:
            a.guards.expect(a.guards.note("field", slot, "training"), "is", False)
        if not _all_safe(args, keywords):
            raise a.decline(f"{kind.__name__} gets something of unknown type", node)
        return Value(torch.Tensor)
    if kind is nn.Sequential:
        found = args[0]
        for name, inner in layer._modules.items():
            held = a.look(inner, a.guards.note("module", slot, ("_modules", name)))
            found = call_value(a, held, [found], {}, node)
        return found
    if kind in pure_arrays.EVAL_LAYERS:
        raise a.decline(f"{kind.__name__} in training keeps count or draws numbers", node, impure=True)
    if not isinstance(method, types.FunctionType) or method.__module__.startswith("torch.nn"):
        raise a.decline(f"{kind.__name__} is not among the layers known to be free of effects", node)
    found_method = a.look(method, a.guards.note("class", slot, "forward"))
    return call_function(a, found_method, [callee, *args], keywords, node)


def _construct(a: "Analyzer", callee: Value, args: list[Value], keywords: Keywords, node: ast.AST) -> Value:
    """A dataclass with a generated `__init__` and nothing after it."""
    kind = callee.obj
    assert callee.slot is not None
    plain = dataclasses.is_dataclass(kind) and kind.__new__ is object.__new__ and type(kind) is type
    init: Any = getattr(kind, "__init__", None)
    generated = (
        plain and getattr(init, "__code__", None) is not None and init.__code__.co_filename == "<string>"
    )
    frozen = plain and kind.__dataclass_params__.frozen
    if (
        not generated
        or hasattr(kind, "__post_init__")
        or not (frozen or kind.__setattr__ is object.__setattr__)
    ):
        raise a.decline(f"making a {kind.__name__} is not known to be free of effects", node)
    a.guards.expect(a.guards.note("own", callee.slot, "__init__"), "is", static_lookup(kind, "__init__"))
    fields = [f for f in dataclasses.fields(kind) if f.init]
    if any(f.default_factory is not dataclasses.MISSING for f in fields):
        raise a.decline(f"{kind.__name__} makes default values by a function", node)
    made = Value(kind, fresh=True)
    made.attrs = {f.name: arg for f, arg in zip(fields, args, strict=False)} | keywords
    return made


def call_function(
    a: "Analyzer", callee: Value, args: list[Value], keywords: Keywords, node: ast.AST
) -> Value:
    """Analyse the text of a Python function with these arguments."""
    function, slot = callee.obj, callee.slot
    assert isinstance(function, types.FunctionType) and slot is not None
    a.guards.expect(a.guards.note("code", slot, None), "is", function.__code__)
    a.guards.expect(a.guards.note("getattr", slot, "__globals__"), "is", function.__globals__)
    try:
        tree = tree_of(_undecorated(function))
    except NoSource as reason:
        raise a.decline(f"{function.__qualname__}: {reason}", node) from None
    env = _bind(a, tree, callee, args, keywords, node)
    frame = Frame(tree, function, slot)
    a.functions[function.__code__] = tree
    a.calls.setdefault(_text(node), "analysed")
    return _analysed(a, frame, env, (function.__code__, slot), node)


def _undecorated(function: types.FunctionType) -> types.FunctionType:
    """A jitted function is analysed by the text it was written with."""
    jitted = getattr(function, "__xcs__", None)
    return jitted.original if jitted is not None else function


def _call_inner(a: "Analyzer", callee: Value, args: list[Value], keywords: Keywords, node: ast.AST) -> Value:
    """A lambda or function that the analysed code made itself."""
    tree, outer, frame = callee.function
    env = dict(zip((p.arg for p in tree.args.args), args, strict=False))
    if keywords or len(env) != len(args) or len(args) != len(tree.args.args) or tree.args.kwonlyargs:
        raise a.decline("it calls a function of its own with arguments that are not analysed", node)
    inner = Frame(tree, frame.function, frame.slot)
    inner.outer = {**(frame.outer or {}), **outer}
    return _analysed(a, inner, env, (tree,), node)


def _analysed(a: "Analyzer", frame: Frame, env: "Env", what: tuple, node: ast.AST) -> Value:
    """Run a function's text once for each kind of arguments; recursion is followed until nothing changes."""
    key = (*what, tuple(_look(v) for v in env.values()))
    if key in a.answers and key in a.stack:
        return a.answers[key]
    if len(a.stack) >= DEEPEST:
        raise a.decline("it calls too deep", node)
    a.answers[key] = Value(BOTTOM)
    a.stack.append(key)
    try:
        for _ in range(4):
            before = a.answers[key]
            frame.returns = []
            found = a.run(frame, dict(env))
            a.answers[key] = found
            if before.type is found.type:
                break
    finally:
        a.stack.pop()
    return a.answers[key]


def _look(value: Value) -> tuple[Any, ...]:
    """What two arguments have in common if one analysis serves both."""
    return (
        value.type,
        value.slot,
        value.fresh,
        id(value.obj) if value.known and value.slot is not None else 0,
    )


def _bind(
    a: "Analyzer", tree: Any, callee: Value, args: list[Value], keywords: Keywords, node: ast.AST
) -> "Env":
    """Arguments and defaults by parameter name."""
    function, slot = callee.obj, callee.slot
    assert slot is not None
    spec = tree.args
    if spec.vararg or spec.kwarg:
        raise a.decline(f"{function.__qualname__} takes * or **", node)
    positional = [p.arg for p in (*spec.posonlyargs, *spec.args)]
    if len(args) > len(positional):
        raise a.decline(f"{function.__qualname__} gets too many arguments", node)
    env = dict(zip(positional, args, strict=False)) | keywords
    defaults = function.__defaults__ or ()
    for name, index in zip(reversed(positional), range(len(defaults) - 1, -1, -1), strict=False):
        if name not in env:
            env[name] = a.look(defaults[index], a.guards.note("defaults", slot, index))
    for parameter in spec.kwonlyargs:
        if parameter.arg not in env and parameter.arg in (function.__kwdefaults__ or {}):
            held = function.__kwdefaults__[parameter.arg]  # type: ignore[index]
            env[parameter.arg] = a.look(held, a.guards.note("kwdefaults", slot, parameter.arg))
    wanted = {*positional, *(p.arg for p in spec.kwonlyargs)}
    if set(env) != wanted:
        raise a.decline(f"{function.__qualname__} gets other arguments than it takes", node)
    return env
