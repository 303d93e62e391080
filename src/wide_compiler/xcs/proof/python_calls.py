"""Calls of what is written in Python: functions, methods, classes, objects and modules of PyTorch."""

import ast
import dataclasses
import types
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from ...global_hooks import foreign_hooks
from ..text.source import NoSource, tree_of, written
from . import torch_tables, waiting
from .class_tables import PYTORCH, on_class, takes_writes
from .frames import Env, Frame, merged
from .guards import bare, called_plainly, static_lookup
from .kinds import HOLDERS, Bottom
from .objects import fields_of
from .values import Value, join

if TYPE_CHECKING:
    from .analysis import Analyzer

DEEPEST = 24


class Call(NamedTuple):
    """What a callee is given, and where."""

    args: list[Value]
    keywords: dict[str, Value]
    node: ast.AST

    @property
    def values(self) -> list[Value]:
        return [*self.args, *self.keywords.values()]

    @property
    def safe(self) -> bool:
        return all(v.is_deep_safe for v in self.values)

    @property
    def text(self) -> str:
        return ast.unparse(self.node.func) if isinstance(self.node, ast.Call) else "call"

    def with_first(self, value: Value) -> "Call":
        return Call([value, *self.args], self.keywords, self.node)


def call_method_object(a: "Analyzer", callee: Value, call: Call) -> Value:
    """A bound method kept in a variable."""
    owner = a.look(callee.obj.__self__, a.guards.note("getattr", callee.slot, "__self__"))
    function = callee.obj.__func__
    if not isinstance(function, types.FunctionType):
        raise a.decline(f"{call.text} is a method without text", call.node)
    held = a.look(function, a.guards.note("getattr", callee.slot, "__func__"))
    return call_function(a, held, call.with_first(owner))


def call_instance(a: "Analyzer", callee: Value, call: Call) -> Value:
    kind = type(callee.obj)
    method = static_lookup(kind, "__call__")
    if not isinstance(method, types.FunctionType):
        raise a.decline(f"calling a {kind.__name__} is not known to be free of effects", call.node)
    return _call_on_class(a, callee, "__call__", method, call)


def _call_on_class(a: "Analyzer", callee: Value, name: str, method: Any, call: Call) -> Value:
    assert callee.slot is not None
    a.guards.expect(callee.slot, "type", type(callee.obj))
    found = a.look(method, a.guards.note("class", callee.slot, name))
    return call_function(a, found, call.with_first(callee))


def call_layer(a: "Analyzer", callee: Value, call: Call) -> Value:
    """A module of PyTorch: one of the layers that only compute, or a forward whose text is analysed."""
    layer, slot, node, kind, guards = callee.obj, callee.slot, call.node, type(callee.obj), a.guards
    assert slot is not None
    method = static_lookup(kind, "forward")
    for trouble, why in (
        (called_plainly(kind) is None, f"{kind.__name__} is called in its own way"),
        (not PYTORCH.holds(), "a class or function of PyTorch was replaced"),
        (not bare(layer), f"{kind.__name__} has hooks or a forward of its own"),
        (foreign_hooks(), "a hook sees every call of a module"),
        (
            method is not torch_tables.FORWARDS.get(kind, method),
            f"{kind.__name__} has another forward than PyTorch has given it",
        ),
    ):
        if trouble:
            raise a.decline(why, node)
    guards.require(True, "bare", slot)
    guards.require(False, "hooked", guards.note("const", foreign_hooks))
    guards.require(True, "behaves", guards.note("const", PYTORCH))
    guards.expect(slot, "type", kind)
    evaluated = kind in torch_tables.EVAL_LAYERS
    if kind in torch_tables.LAYERS or (evaluated and not layer.training):
        guards.require(method, "class", slot, "forward")
        if evaluated:
            guards.require(False, "covering", slot, "training")
        a.demand(call.safe, f"{kind.__name__} gets something of unknown type", node)
        return _layer_result(a, callee, call)
    if kind is nn.Sequential:
        from .calls import call_value

        if len(call.args) != 1 or call.keywords:
            raise a.decline("Sequential gets other arguments than it takes", node)
        guards.require(len(layer._modules), "length", guards.note("covering", slot, "_modules"))
        found = call.args[0]
        for name, inner in layer._modules.items():
            held = a.look(inner, guards.note("module", slot, ("_modules", name)))
            found = call_value(a, held, Call([found], {}, node))
        return found
    if evaluated:
        raise a.decline(f"{kind.__name__} in training keeps count or draws numbers", node, impure=True)
    if not isinstance(method, types.FunctionType) or method.__module__.startswith("torch.nn"):
        raise a.decline(f"{kind.__name__} is not among the layers known to be free of effects", node)
    # Of PyTorch's own classes this is known. It is asked once of the class, which is that of all items.
    guards.require(called_plainly(kind), "called", guards.note("const", kind))
    return _call_on_class(a, callee, "forward", method, call)


def _layer_result(a: "Analyzer", callee: Value, call: Call) -> Value:
    """What a known layer gives, and whether it changes something on the way."""
    layer, args = callee.obj, call.args
    for name, harmless in torch_tables.CHANGING.items():
        if name not in layer.__dict__:
            continue
        held = layer.__dict__[name]
        one_tensor = len(args) == 1 and not call.keywords and args[0].is_tensor
        if held is not harmless and (held is not True or not one_tensor):
            why = f"{type(layer).__name__} changes something it did not make"
            raise a.decline(why, call.node, impure=True)
        a.guards.require(held, "covering", callee.slot, name)
        if held is not harmless:
            a.changes(args[0], call.node)
            return args[0]
    if type(layer) in torch_tables.PASSING:
        return Value(torch.Tensor, fresh=all(v.fresh for v in args) and not call.keywords)
    return Value(torch.Tensor, fresh=not getattr(layer, "return_indices", False))


def construct(a: "Analyzer", callee: Value, call: Call) -> Value:
    """A dataclass with a generated `__init__` and nothing after it."""
    kind, node = callee.obj, call.node
    plain = dataclasses.is_dataclass(kind) and kind.__new__ is object.__new__ and type(kind) is type
    code: Any = getattr(getattr(kind, "__init__", None), "__code__", None)
    generated = plain and code is not None and code.co_filename == "<string>"
    frozen = plain and kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    stores = frozen or kind.__setattr__ is object.__setattr__
    if not generated or hasattr(kind, "__post_init__") or not stores:
        raise a.decline(f"making a {kind.__name__} is not known to be free of effects", node)
    if kind.__getattribute__ is not object.__getattribute__ or hasattr(kind, "__del__"):
        raise a.decline(f"{kind.__name__} has a __getattribute__ or __del__ of its own", node)
    for name in ("__init__", "__new__", "__setattr__", "__getattribute__"):
        a.guards.require(static_lookup(kind, name), "own", callee.slot, name)
    if any(f.default_factory is not dataclasses.MISSING for f in dataclasses.fields(kind)):
        raise a.decline(f"{kind.__name__} makes default values by a function", node)
    fields = [f.name for f in dataclasses.fields(kind) if f.init]
    for name in fields:
        found = on_class(kind, name)
        if takes_writes(found) and not isinstance(found, types.MemberDescriptorType):
            raise a.decline(f"{kind.__name__}.{name} is a descriptor", node)
    fields_of(a, kind).show(*fields)
    fields_of(a, kind).fix("__del__")
    made = Value(kind, fresh=True)
    # As its `__init__` takes them: fields by keyword alone and those that are not stored have other places.
    given = dict(zip(code.co_varnames[1 : code.co_argcount], call.args, strict=False)) | call.keywords
    made.attrs = {name: given[name] for name in fields if name in given}
    return made


def call_function(a: "Analyzer", callee: Value, call: Call) -> Value:
    """Analyse the text of a Python function with these arguments."""
    function, slot = callee.obj, callee.slot
    assert isinstance(function, types.FunctionType) and slot is not None
    marked = waiting.marked_call(a, callee, call)
    if marked is not None:
        return marked
    a.guards.require(function.__code__, "code", slot)
    a.guards.require(function.__globals__, "getattr", slot, "__globals__")
    try:
        tree = tree_of(written(function))  # of a jitted function, too
    except NoSource as reason:
        raise a.decline(f"{function.__qualname__}: {reason}", call.node) from None
    env = _bind(a, tree, callee, call)
    a.functions[function.__code__] = tree
    return _once(a, Frame(tree, function, slot), env, (function.__code__, slot), call.node)


def call_inner(a: "Analyzer", callee: Value, call: Call) -> Value:
    """A lambda or function that the analysed code made itself."""
    tree, frame = callee.function
    env = _bind(a, tree, callee, call)
    return _analysed(a, Frame(tree, frame.function, frame.slot, frame), env, (tree,), call.node)


def _once(a: "Analyzer", frame: Frame, env: Env, what: tuple[Any, ...], node: ast.AST) -> Value:
    """Helpers that call helpers twice would be looked at four, eight, sixteen times. What came of a call
    holds for each other one with such arguments, if nothing can be learnt of them or of the result later on,
    and if it took nothing from a call that is not at its end. The guards have all that it noted."""
    key = None
    if all(map(_settled, env.values())):
        key = (*what, *((name, v.type, v.fresh, v.slot, id(v.obj)) for name, v in sorted(env.items())))
        if key in a.finished:
            return a.finished[key][0]
    taken = a.unfinished
    found = _analysed(a, frame, env, what, node)
    if key is not None and a.unfinished == taken and _settled(found):
        a.finished[key] = found, env  # the objects in the key must not go
    return found


def _settled(value: Value) -> bool:
    """Is all known of it that ever will be?"""
    return value.type not in HOLDERS and value.attrs is value.function is value.method is None


def _analysed(a: "Analyzer", frame: Frame, env: Env, what: tuple[Any, ...], node: ast.AST) -> Value:
    """Run a function's text once for each kind of arguments; recursion is followed until nothing changes."""
    key = (*what, *((v.type, v.slot, v.fresh, v.slot is not None and id(v.obj)) for v in env.values()))
    if key in a.stack:
        a.recursive.add(key)
        a.unfinished += 1
        a.given[key] = merged([a.given[key], env])  # the run in progress must hold for these, too
        return a.answers[key]
    if len(a.stack) >= DEEPEST:
        raise a.decline("it calls too deep", node)
    a.answers[key], a.given[key] = Value(Bottom), env
    a.stack.append(key)

    def one() -> None:
        frame.returns = []
        a.answers[key] = join(a.answers[key], a.run(frame, a.given[key]))

    one()
    if key in a.recursive:
        a.settle(one, node, lambda: [a.given[key], {"returns": a.answers[key]}, *frame.spaces()])
    a.stack.pop()
    return a.answers[key]


def _bind(a: "Analyzer", tree: Any, callee: Value, call: Call) -> Env:
    """Arguments and defaults by parameter name. What the analysed code made itself has no defaults."""
    function, slot, spec = callee.obj if callee.known else None, callee.slot, tree.args
    name = getattr(function, "__qualname__", "a function of its own")
    a.demand(not (spec.vararg or spec.kwarg), f"{name} takes * or **", call.node)
    positional = [p.arg for p in (*spec.posonlyargs, *spec.args)]
    a.demand(len(call.args) <= len(positional), f"{name} gets too many arguments", call.node)
    env = dict(zip(positional, call.args, strict=False)) | call.keywords
    defaults = getattr(function, "__defaults__", None) or ()
    by_name = getattr(function, "__kwdefaults__", None) or {}
    # Counted from the last: there may be more of them, or fewer, the next time.
    for parameter, index in zip(reversed(positional), range(-1, -1 - len(defaults), -1), strict=False):
        if parameter not in env:
            env[parameter] = a.look(defaults[index], a.guards.note("defaults", slot, index))
    by_keyword = [p.arg for p in spec.kwonlyargs]
    for parameter in by_keyword:
        if parameter not in env and parameter in by_name:
            env[parameter] = a.look(by_name[parameter], a.guards.note("kwdefaults", slot, parameter))
    a.demand(set(env) == {*positional, *by_keyword}, f"{name} gets other arguments than it takes", call.node)
    return env
