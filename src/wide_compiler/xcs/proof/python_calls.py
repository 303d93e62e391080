"""Analysis of calls of Python code: functions, methods, callable objects and modules."""

import ast
import inspect
import types
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from ...global_hooks import foreign_hooks
from ..text.source import NoSource, tree_of, written
from . import torch_tables, waiting
from .class_tables import PATCHED, modules_are_plain
from .guards import bare, called_plainly, static_lookup
from .values import Value

if TYPE_CHECKING:
    from .analysis import Analyzer


def not_pure(name: Any) -> str:
    return f"{name} is not known to be free of side effects"


class CallArguments(NamedTuple):
    """The arguments and the AST node of a call."""

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

    @property
    def options_unknown(self) -> str:
        return f"{self.text} is called with options that are not analysed"

    def with_first(self, value: Value) -> "CallArguments":
        return CallArguments([value, *self.args], self.keywords, self.node)


def call_method_object(a: "Analyzer", callee: Value, call: CallArguments) -> Value:
    """Analyse a call of a bound method held in a variable."""
    owner = a.look(callee.obj.__self__, a.guards.note("getattr", callee.slot, "__self__"))
    function = a.look(callee.obj.__func__, a.guards.note("getattr", callee.slot, "__func__"))
    a.demand(function.type is types.FunctionType, f"{call.text} is not a Python function", call.node)
    return call_function(a, function, call.with_first(owner))


def call_instance(a: "Analyzer", callee: Value, call: CallArguments, name: str = "__call__") -> Value:
    """Analyse a call of an object through its class's Python method `name`."""
    kind, method = type(callee.obj), static_lookup(type(callee.obj), name)
    of_python = type(method) is types.FunctionType
    a.demand(of_python, f"{kind.__name__}.{name} is not a Python function", call.node)
    assert callee.slot is not None
    a.guards.expect(callee.slot, "type", kind)
    function = a.look(method, a.guards.note("class", callee.slot, name))
    return call_function(a, function, call.with_first(callee))


def call_layer(a: "Analyzer", callee: Value, call: CallArguments) -> Value:
    """Analyse a call of a module: a whitelisted layer, a Sequential, or a forward written in Python."""
    layer, slot, node, kind, guards = callee.obj, callee.slot, call.node, type(callee.obj), a.guards
    assert slot is not None
    method = static_lookup(kind, "forward")
    a.demand(called_plainly(kind) is not None, f"{kind.__name__} overrides how nn.Module is called", node)
    a.demand(not foreign_hooks(), "a global module hook is set", node)
    a.demand(modules_are_plain(), PATCHED, node)
    own = not bare(layer) or method is not torch_tables.FORWARDS.get(kind, method)
    a.demand(not own, f"a {kind.__name__} has hooks, or a forward set on the instance", node)
    guards.require(True, "bare", slot)
    guards.require(True, "modules", None)
    guards.expect(slot, "type", kind)
    evaluated = kind in torch_tables.EVAL_LAYERS
    if kind in torch_tables.LAYERS or (evaluated and not layer.training):
        guards.require(method, "class", slot, "forward")
        if evaluated:
            guards.require(False, "covering", slot, "training")
        a.known(call.safe, "an argument", node)
        return _layer_result(a, callee, call)
    if kind is nn.Sequential:
        from .known_calls import call_value

        one = len(call.args) == 1 and not call.keywords
        a.demand(one, "nn.Sequential takes one argument", node)
        guards.require(len(layer._modules), "length", guards.note("covering", slot, "_modules"))
        found = call.args[0]
        for name, inner in layer._modules.items():
            held = a.look(inner, guards.note("module", slot, ("_modules", name)))
            found = call_value(a, held, CallArguments([found], {}, node))
        return found
    if evaluated:
        why = f"{kind.__name__} in training mode updates statistics or draws random numbers"
        raise a.decline(why, node, impure=True)
    if not isinstance(method, types.FunctionType) or method.__module__.startswith("torch.nn"):
        raise a.decline(not_pure(kind.__name__), node)
    # Known for PyTorch's own classes. Checked once for the class, since all items have the same one.
    guards.require(called_plainly(kind), "called", kind)
    return call_instance(a, callee, call, "forward")


def _layer_result(a: "Analyzer", callee: Value, call: CallArguments) -> Value:
    """Return the result of a whitelisted layer. Raises `Decline` if it modifies something it did not make."""
    layer, args = callee.obj, call.args
    for name, harmless in torch_tables.CHANGING.items():
        if name not in layer.__dict__:
            continue
        held = layer.__dict__[name]
        one_tensor = len(args) == 1 and not call.keywords and args[0].is_tensor
        if held is not harmless and (held is not True or not one_tensor):
            why = f"side effect: {type(layer).__name__} writes into its input or weights ({name})"
            raise a.decline(why, call.node, impure=True)
        a.guards.require(held, "covering", callee.slot, name)
        if held is not harmless:
            a.changes(args[0], call.node)
            return args[0]
    if type(layer) in torch_tables.PASSING:
        return Value(torch.Tensor, fresh=all(v.fresh for v in args) and not call.keywords)
    return Value(torch.Tensor, fresh=not getattr(layer, "return_indices", False))


def call_function(a: "Analyzer", callee: Value, call: CallArguments) -> Value:
    """Analyse a Python function with these arguments."""
    function, slot = callee.obj, callee.slot
    assert isinstance(function, types.FunctionType) and slot is not None
    marked = waiting.marked_call(a, callee, call)
    if marked is not None:
        return marked
    a.guards.require(function.__code__, "getattr", slot, "__code__")
    a.guards.require(function.__globals__, "getattr", slot, "__globals__")
    original = written(function)  # a jitted function is analysed as written
    try:
        tree = tree_of(original)
    except NoSource as reason:
        raise a.decline(f"{function.__qualname__}: {reason}", call.node) from None
    env = _bind(a, original, slot, call)
    a.functions[function.__code__] = tree
    return a.called(tree, callee, env, call.node)


def _bind(a: "Analyzer", function: Any, slot: int, call: CallArguments) -> dict[str, Value]:
    """Return arguments and defaults by parameter name."""
    code, name = function.__code__, function.__qualname__
    starred = code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    a.demand(not starred, f"{name} takes *args or **kwargs, which are not analysed", call.node)
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    positional, n, most = names[: code.co_argcount], len(call.args), code.co_argcount
    a.demand(n <= most, f"{name} takes {most} positional arguments, got {n}", call.node)
    env = dict(zip(positional, call.args, strict=False)) | call.keywords
    # Indexed from the end, since the number of defaults may change.
    indexes = range(-min(len(function.__defaults__ or ()), len(positional)), 0)
    found = [(positional[i], "defaults", i, function.__defaults__) for i in indexes]
    by_name = function.__kwdefaults__ or {}
    found += [(key, "kwdefaults", key, by_name) for key in names[most:] if key in by_name]
    for parameter, fetch, index, defaults in found:
        if parameter not in env:
            env[parameter] = a.look(defaults[index], a.guards.note(fetch, slot, index))
    a.demand(set(env) == set(names), f"{name} does not take these arguments", call.node)
    return env
