"""Objects that lie outside the analysed code: what is known of them, and of their attributes."""

import ast
import collections
import types
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from . import pure_numpy, pure_tables, pure_torch, waiting
from .fields import MISSING, Fields, on_class, takes_writes
from .guards import held_types, static_lookup
from .kinds import CONTAINERS, IMMUTABLE, DataType, Number, Opaque, Plain, is_numpy_scalar
from .values import Value, join_all

if TYPE_CHECKING:
    from .analysis import Analyzer

IDENTICAL = (types.ModuleType, types.BuiltinFunctionType, types.BuiltinMethodType, type, np.ufunc)


def look(a: "Analyzer", held: Any, slot: int) -> Value:
    """Bind an outside object: by identity if it is code, else by type. It is not asked itself, not even what
    it says it is, as `isinstance` does."""
    kind = type(held)
    value = Value(kind, held, slot)
    if kind is types.FunctionType or kind is types.MethodType:
        a.guards.expect(slot, "type", kind)
    elif issubclass(kind, IDENTICAL) or kind is torch.nn.Parameter or _callable_constant(held):
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


def attribute(a: "Analyzer", held: Value, name: str, node: ast.AST) -> Value:
    """`held.name`, where that runs no code but what is analysed as well."""
    if held.attrs is not None and name in held.attrs:
        return held.attrs[name]
    if held.known and held.slot is not None and issubclass(type(held.obj), types.ModuleType):
        if name not in vars(held.obj):
            raise a.decline(f"module {held.obj.__name__} has no plain attribute {name!r}", node)
        return a.look(vars(held.obj)[name], a.guards.note("field", held.slot, name))
    builtin = _builtin_attribute(held, name)
    if builtin is not None:
        if held.type in waiting.PATHS:
            waiting.unpatched(a, waiting.FILES, f".{name}", node)
        return builtin
    if held.slot is None or not held.known:
        raise a.decline(f"it reads {name!r} of something of unknown type", node)
    if issubclass(type(held.obj), type):
        found = static_lookup_or_decline(a, held.obj, name, node)
        if isinstance(found, (staticmethod, types.FunctionType)):
            inner = a.guards.note("own", held.slot, name)
            if isinstance(found, staticmethod):
                a.guards.expect(inner, "type", type(found))
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
            return pure_numpy.shape_value()
        if name == "dtype":
            return Value(DataType)
        if name in pure_numpy.ARRAY_ATTRIBUTES:
            return pure_numpy.numpy_result(pure_numpy.ARRAY_ATTRIBUTES[name], [], held)
        changes = name in pure_tables.CHANGERS[np.ndarray]
        return method if name in pure_numpy.ARRAY_METHODS or changes else None
    if held.is_tensor:
        if name in pure_torch.TENSOR_ATTRIBUTES:
            return pure_torch.tensor_attribute(name, held)
        return method if name in pure_torch.TENSOR_METHODS else None
    if kind is waiting.ReadFile:
        if name in waiting.RESPONSE_ATTRIBUTES:
            return Value(waiting.RESPONSE_ATTRIBUTES[name])
        return method if name in waiting.METHODS else None
    if kind in waiting.PATHS:
        if name in waiting.PATH_ATTRIBUTES:
            return Value(waiting.PATH_ATTRIBUTES[name])
        return method if name in waiting.PATH_METHODS else None
    if name in pure_tables.ATTRIBUTES.get(kind, ()):
        return Value(pure_tables.ATTRIBUTES[kind][name])
    if name in pure_tables.METHODS.get(kind, ()) or name in pure_tables.CHANGERS.get(kind, ()):
        return method
    return None


NAMED = type(vars(collections.namedtuple("NAMED", "field"))["field"])


def static_lookup_or_decline(a: "Analyzer", kind: type, name: str, node: ast.AST) -> Any:
    try:
        return static_lookup(kind, name)
    except AttributeError:
        raise a.decline(f"{kind.__name__} has no plain attribute {name!r}", node) from None


def fields_of(a: "Analyzer", kind: type) -> Fields:
    """What the guards ask of a class whose fields are read."""
    fields = a.classes.get(id(kind))
    if fields is None:
        fields = a.classes[id(kind)] = Fields(kind)
        held = a.guards.note("const", fields, None)
        a.guards.expect(a.guards.note("still", held, None), "is", True)
    return fields


def instance_attribute(a: "Analyzer", held: Value, name: str, node: ast.AST) -> Value:
    """An attribute of an instance of the user's class: a field, a method, a property or a class value."""
    kind, obj, slot = type(held.obj), held.obj, held.slot
    assert slot is not None
    waiting.check_shared(a, kind, name, node)
    a.guards.expect(slot, "type", kind)
    fields, many = fields_of(a, kind), a.guards.vector[slot]
    if kind.__getattribute__ not in (object.__getattribute__, tuple.__getattribute__):
        raise a.decline(f"{kind.__name__} has a __getattribute__ of its own", node)
    found = on_class(kind, name)
    if isinstance(found, property) and isinstance(found.fget, types.FunctionType):
        from .python_calls import call_function

        inner = a.guards.note("class", slot, name)
        a.guards.expect(inner, "is", found)
        getter = a.look(found.fget, a.guards.note("getattr", inner, "fget"))
        return call_function(a, getter, [held], {}, node)
    if isinstance(found, (types.MemberDescriptorType, NAMED)):  # __slots__, or a field of a named tuple
        a.guards.expect(a.guards.note("class", slot, name), "is", found)
        return a.look(getattr(obj, name), a.guards.note("getattr", slot, name))
    if takes_writes(found):
        fields.fix(name)  # it may go again
        raise a.decline(f"{kind.__name__}.{name} is a descriptor", node)
    if name in getattr(obj, "__dict__", {}):
        # Of many objects fields are read, not looked up: what the class has must be nothing that is asked.
        read = many and not hasattr(type(found), "__get__")
        (fields.fix if read else fields.show)(name)
        way = "field" if read or not many else "covering"
        return a.look(obj.__dict__[name], a.guards.note(way, slot, name))
    if isinstance(obj, nn.Module) and static_lookup(kind, "__getattr__") is nn.Module.__getattr__:
        for where in ("_parameters", "_buffers", "_modules"):
            if name in obj.__dict__.get(where, {}) and found is MISSING:
                fields.fix(name, "__getattr__")  # which is asked for what is nowhere else
                a.guards.expect(a.guards.note("absent", slot, name), "is", False)
                return a.look(obj.__dict__[where][name], a.guards.note("module", slot, (where, name)))
    if found is MISSING:
        raise a.decline(f"{kind.__name__} has no plain attribute {name!r}", node)
    if hasattr(obj, "__dict__"):
        if many:
            fields.fix(name)
        a.guards.expect(a.guards.note("absent", slot, name), "is", False)
    inner = a.guards.note("class", slot, name)
    if isinstance(found, types.FunctionType):
        method = a.look(found, inner)
        bound = Value(types.MethodType)
        bound.method = (held, name)
        bound.function = method
        return bound
    if isinstance(found, staticmethod):
        a.guards.expect(inner, "type", type(found))
        return a.look(found.__func__, a.guards.note("getattr", inner, "__func__"))
    if isinstance(found, (*IMMUTABLE, np.ndarray, list, dict, tuple)):
        return a.look(found, inner)
    raise a.decline(f"{kind.__name__}.{name} is a {type(found).__name__}", node)
