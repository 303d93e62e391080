"""Calls of what is written in Python: functions, methods, classes, objects and modules of PyTorch."""

import ast
import dataclasses
import types
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ...global_hooks import foreign_hooks
from ..text.source import NoSource, tree_of, written
from . import pure_torch, waiting
from .analysis import DEEPEST
from .behaviour import PYTORCH
from .fields import on_class, takes_writes
from .frames import Frame, merge
from .guards import bare, called_plainly, static_lookup
from .kinds import BOTTOM, CONTAINERS, ITERATORS
from .outside import fields_of
from .values import Value, join

if TYPE_CHECKING:
    from .analysis import Analyzer
    from .frames import Env

Keywords = dict[str, Value]


def text_of(node: ast.AST) -> str:
    return ast.unparse(node.func) if isinstance(node, ast.Call) else "call"


def all_safe(args: list[Value], keywords: Keywords) -> bool:
    return all(v.is_deep_safe for v in [*args, *keywords.values()])


def call_method_object(
    a: "Analyzer", callee: Value, args: list[Value], keywords: Keywords, node: ast.AST
) -> Value:
    """A bound method kept in a variable."""
    assert callee.slot is not None
    owner = a.look(callee.obj.__self__, a.guards.note("getattr", callee.slot, "__self__"))
    function = callee.obj.__func__
    if not isinstance(function, types.FunctionType):
        raise a.decline(f"{text_of(node)} is a method without text", node)
    held = a.look(function, a.guards.note("getattr", callee.slot, "__func__"))
    return call_function(a, held, [owner, *args], keywords, node)


def call_instance(
    a: "Analyzer", callee: Value, args: list[Value], keywords: Keywords, node: ast.AST
) -> Value:
    method = static_lookup(type(callee.obj), "__call__")
    if not isinstance(method, types.FunctionType):
        raise a.decline(f"calling a {type(callee.obj).__name__} is not known to be free of effects", node)
    assert callee.slot is not None
    a.guards.expect(callee.slot, "type", type(callee.obj))
    found = a.look(method, a.guards.note("class", callee.slot, "__call__"))
    return call_function(a, found, [callee, *args], keywords, node)


def call_layer(a: "Analyzer", callee: Value, args: list[Value], keywords: Keywords, node: ast.AST) -> Value:
    """A module of PyTorch: one of the layers that only compute, or a forward whose text is analysed."""
    layer, slot = callee.obj, callee.slot
    assert slot is not None
    kind = type(layer)
    if called_plainly(kind, None) is None:
        raise a.decline(f"{kind.__name__} is called in its own way", node)
    if not PYTORCH.holds():
        raise a.decline("a class or function of PyTorch was replaced", node)
    if not bare(layer, None):
        raise a.decline(f"{kind.__name__} has hooks or a forward of its own", node)
    if foreign_hooks():
        raise a.decline("a hook sees every call of a module", node)
    a.guards.expect(a.guards.note("bare", slot, None), "is", True)
    anywhere = a.guards.note("const", foreign_hooks, None)
    a.guards.expect(a.guards.note("hooked", anywhere, None), "is", False)
    library = a.guards.note("const", PYTORCH, None)
    a.guards.expect(a.guards.note("behaves", library, None), "is", True)
    a.guards.expect(slot, "type", kind)
    method = static_lookup(kind, "forward")
    if method is not pure_torch.FORWARDS.get(kind, method):
        raise a.decline(f"{kind.__name__} has another forward than PyTorch has given it", node)
    if kind in pure_torch.LAYERS or (kind in pure_torch.EVAL_LAYERS and not layer.training):
        a.guards.expect(a.guards.note("class", slot, "forward"), "is", method)
        if kind in pure_torch.EVAL_LAYERS:
            a.guards.expect(a.guards.note("covering", slot, "training"), "is", False)
        if not all_safe(args, keywords):
            raise a.decline(f"{kind.__name__} gets something of unknown type", node)
        return _layer_result(a, callee, args, keywords, node)
    if kind is nn.Sequential:
        from .calls import call_value

        if len(args) != 1 or keywords:
            raise a.decline("Sequential gets other arguments than it takes", node)
        layers = a.guards.note("covering", slot, "_modules")
        a.guards.expect(a.guards.note("length", layers, None), "is", len(layer._modules))
        found = args[0]
        for name, inner in layer._modules.items():
            held = a.look(inner, a.guards.note("module", slot, ("_modules", name)))
            found = call_value(a, held, [found], {}, node)
        return found
    if kind in pure_torch.EVAL_LAYERS:
        raise a.decline(f"{kind.__name__} in training keeps count or draws numbers", node, impure=True)
    if not isinstance(method, types.FunctionType) or method.__module__.startswith("torch.nn"):
        raise a.decline(f"{kind.__name__} is not among the layers known to be free of effects", node)
    # Of PyTorch's own classes this is known. It is asked once of the class, which is that of all items.
    of_class = a.guards.note("const", kind, None)
    a.guards.expect(a.guards.note("called", of_class, None), "is", called_plainly(kind, None))
    found_method = a.look(method, a.guards.note("class", slot, "forward"))
    return call_function(a, found_method, [callee, *args], keywords, node)


def _layer_result(
    a: "Analyzer", callee: Value, args: list[Value], keywords: Keywords, node: ast.AST
) -> Value:
    """What a known layer gives, and whether it changes something on the way."""
    layer, slot = callee.obj, callee.slot
    assert slot is not None
    for name, harmless in pure_torch.CHANGING.items():
        if name not in layer.__dict__:
            continue
        held = layer.__dict__[name]
        if held is not harmless and (held is not True or len(args) != 1 or keywords or not args[0].is_tensor):
            raise a.decline(f"{type(layer).__name__} changes something it did not make", node, impure=True)
        a.guards.expect(a.guards.note("covering", slot, name), "is", held)
        if held is not harmless:
            a.changes(args[0], node)
            return args[0]
    if type(layer) in pure_torch.PASSING:
        return Value(torch.Tensor, fresh=all(v.fresh for v in args) and not keywords)
    several = getattr(layer, "return_indices", False)
    return Value(torch.Tensor, fresh=not several)


def construct(a: "Analyzer", callee: Value, args: list[Value], keywords: Keywords, node: ast.AST) -> Value:
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
    if kind.__getattribute__ is not object.__getattribute__ or hasattr(kind, "__del__"):
        raise a.decline(f"{kind.__name__} has a __getattribute__ or __del__ of its own", node)
    for name in ("__init__", "__new__", "__setattr__", "__getattribute__"):
        a.guards.expect(a.guards.note("own", callee.slot, name), "is", static_lookup(kind, name))
    fields = [f for f in dataclasses.fields(kind) if f.init]
    if any(f.default_factory is not dataclasses.MISSING for f in dataclasses.fields(kind)):
        raise a.decline(f"{kind.__name__} makes default values by a function", node)
    for f in fields:
        found = on_class(kind, f.name)
        if takes_writes(found) and not isinstance(found, types.MemberDescriptorType):
            raise a.decline(f"{kind.__name__}.{f.name} is a descriptor", node)
    fields_of(a, kind).show(*(f.name for f in fields))
    fields_of(a, kind).fix("__del__")
    made = Value(kind, fresh=True)
    # As its `__init__` takes them: fields by keyword alone and those that are not stored have other places.
    takes = init.__code__.co_varnames[1 : init.__code__.co_argcount]
    given = dict(zip(takes, args, strict=False)) | keywords
    made.attrs = {f.name: given[f.name] for f in fields if f.name in given}
    return made


def call_function(
    a: "Analyzer", callee: Value, args: list[Value], keywords: Keywords, node: ast.AST
) -> Value:
    """Analyse the text of a Python function with these arguments."""
    function, slot = callee.obj, callee.slot
    assert isinstance(function, types.FunctionType) and slot is not None
    marked = waiting.marked_call(a, callee, [*args, *keywords.values()], node)
    if marked is not None:
        return marked
    a.guards.expect(a.guards.note("code", slot, None), "is", function.__code__)
    a.guards.expect(a.guards.note("getattr", slot, "__globals__"), "is", function.__globals__)
    try:
        tree = tree_of(written(function))  # of a jitted function, too
    except NoSource as reason:
        raise a.decline(f"{function.__qualname__}: {reason}", node) from None
    env = _bind(a, tree, callee, args, keywords, node)
    frame = Frame(tree, function, slot)
    a.functions[function.__code__] = tree
    a.calls.setdefault(text_of(node), "analysed")
    return _once(a, frame, env, (function.__code__, slot), node)


def call_inner(a: "Analyzer", callee: Value, args: list[Value], keywords: Keywords, node: ast.AST) -> Value:
    """A lambda or function that the analysed code made itself."""
    tree, frame = callee.function
    env = dict(zip((p.arg for p in tree.args.args), args, strict=False))
    if keywords or len(env) != len(args) or len(args) != len(tree.args.args) or tree.args.kwonlyargs:
        raise a.decline("it calls a function of its own with arguments that are not analysed", node)
    if tree.args.vararg or tree.args.kwarg or tree.args.posonlyargs:
        raise a.decline("it calls a function of its own that takes *, ** or /", node)
    inner = Frame(tree, frame.function, frame.slot, frame)
    return _analysed(a, inner, env, (tree,), node)


def _once(a: "Analyzer", frame: Frame, env: "Env", what: tuple, node: ast.AST) -> Value:
    """Helpers that call helpers twice would be looked at four, eight, sixteen times. What came of a call
    holds for each other one with such arguments, if nothing can be learnt of them or of the result later on,
    and if it took nothing from a call that is not at its end. The guards have all that it noted."""
    key = None
    if all(map(_settled, env.values())):
        key = (*what, *((name, v.type, v.fresh, v.slot, id(v.obj)) for name, v in sorted(env.items())))
        if key in a.finished:
            return a.finished[key][0]
    taken, given = a.unfinished, dict(env)
    found = _analysed(a, frame, env, what, node)
    if key is not None and a.unfinished == taken and _settled(found):
        a.finished[key] = found, given  # the objects in the key must not go
    return found


def _settled(value: Value) -> bool:
    """Is all known of it that ever will be?"""
    if value.type in CONTAINERS or value.type in ITERATORS:
        return False
    return value.attrs is None and value.function is None and value.method is None


def _analysed(a: "Analyzer", frame: Frame, env: "Env", what: tuple, node: ast.AST) -> Value:
    """Run a function's text once for each kind of arguments; recursion is followed until nothing changes."""
    key = (*what, tuple(_look(v) for v in env.values()))
    if key in a.stack:
        a.recursive.add(key)
        a.unfinished += 1
        merge(a.given[key], [dict(a.given[key]), env])  # the run in progress must hold for these, too
        return a.answers[key]
    if len(a.stack) >= DEEPEST:
        raise a.decline("it calls too deep", node)
    a.answers[key], a.given[key] = Value(BOTTOM), env
    a.stack.append(key)

    answer: Env = {}

    def one() -> None:
        frame.returns = []
        answer["returns"] = join(a.answers[key], a.run(frame, dict(a.given[key])))
        a.answers[key] = answer["returns"]

    try:
        one()
        if key in a.recursive:
            a.settle(one, a.given[key], frame, node, answer)
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
    # Counted from the last: there may be more of them, or fewer, the next time.
    for name, index in zip(reversed(positional), range(-1, -1 - len(defaults), -1), strict=False):
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
