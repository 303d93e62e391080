"""Objects that lie outside the analysed code: what is known of them, of their attributes, and of items."""

import ast
import collections
import types
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from . import numpy_tables, python_tables, torch_tables, waiting
from .class_tables import MISSING, Fields, on_class, takes_writes
from .guards import held_types
from .kinds import CONTAINERS, IMMUTABLE, DataType, Number, Opaque, is_numpy_scalar
from .values import Value, join_all, tuple_of

if TYPE_CHECKING:
    from .analysis import Analyzer

IDENTICAL = (types.ModuleType, types.BuiltinFunctionType, types.BuiltinMethodType, type, np.ufunc)
# Functions that are no Python functions: of NumPy, of PyTorch, wrapped or partial ones.
_C_FUNCTIONS = ("_ArrayFunctionDispatcher", "builtin_function_or_method", "method_descriptor",
                "wrapper_descriptor")  # fmt: skip
NAMED = type(vars(collections.namedtuple("NAMED", "field"))["field"])  # of a field of a named tuple
SAFE_INSIDE = (*IMMUTABLE, np.ndarray, torch.Tensor)  # a container that is looked through
MANY = 256  # containers as items are looked through up to so many


def look(a: "Analyzer", held: Any, slot: int) -> Value:
    """Bind an outside object: by identity if it is code, else by type. It is not asked itself, not even what
    it says it is, as `isinstance` does."""
    kind = type(held)
    value = Value(kind, held, slot)
    a.guards.expect(slot, "type", kind)
    if kind in (types.FunctionType, types.MethodType, nn.Parameter):
        return value
    c_function = (callable(held) and not hasattr(kind, "__dict__")) or kind.__name__ in _C_FUNCTIONS
    if issubclass(kind, IDENTICAL) or c_function:
        a.guards.expect(slot, "is", held)
    elif kind in CONTAINERS:
        _learn(a, value, held_types(held), slot)
    elif kind is np.ndarray and held.dtype.hasobject:
        value.type = Opaque
    return value


def _learn(a: "Analyzer", value: Value, kinds: frozenset[Any], slot: int) -> None:
    """What a container holds, if that is safe; the guards look through it at each call."""
    plain = [k[1] if isinstance(k, tuple) else k for k in kinds]
    if all(k in SAFE_INSIDE or is_numpy_scalar(k) for k in plain):
        a.guards.expect(slot, "holds", (value.type, kinds))
        held = [Value(k) for k in kinds if not isinstance(k, tuple)]
        keys = [Value(k[1]) for k in kinds if isinstance(k, tuple)]
        value.elem, value.key = join_all(held), join_all(keys) if keys else None


def column_value(a: "Analyzer", column: Any, j: int) -> Value:
    """What is known of any item of a column; the guards make sure that it holds for all."""
    slot = a.guards.note("item", 0, j)
    first = column[0]
    kind = type(first)
    if type(column) in (np.ndarray, torch.Tensor, range):
        a.guards.expect(slot, "type", kind)
        return Value(kind, first, slot)
    alike = kind is tuple and all(type(c) is tuple and len(c) == len(first) for c in column)
    if alike and 0 < len(first) <= MANY:
        a.guards.expect(slot, "type", tuple)
        a.guards.require(len(first), "length", slot)
        made = tuple_of([_part(a, column, slot, k) for k in range(len(first))])
        made.fresh = False
        return made
    if kind not in CONTAINERS:
        return a.look(first, slot)
    value = Value(kind, first, slot)
    a.guards.expect(slot, "type", kind)
    if len(column) <= MANY and all(type(c) is kind for c in column):
        _learn(a, value, frozenset().union(*map(held_types, column)), slot)
    return value


def _part(a: "Analyzer", column: Any, slot: int, k: int) -> Value:
    inner = a.guards.note("index", slot, k)
    alike = len({type(c[k]) for c in column}) == 1
    return a.look(column[0][k], inner) if alike else Value(object)


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
            waiting.require(a, waiting.FILES, f".{name}", node)
        return builtin
    if held.slot is None or not held.known:
        raise a.decline(f"it reads {name!r} of something of unknown type", node)
    if not issubclass(type(held.obj), type):
        return instance_attribute(a, held, name, node)
    found = on_class(held.obj, name)
    if found is MISSING:
        raise a.decline(f"{held.obj.__name__} has no plain attribute {name!r}", node)
    if not isinstance(found, (staticmethod, types.FunctionType, *IMMUTABLE, np.ndarray)):
        raise a.decline(f"it reads {name!r} of a class", node)
    return _class_value(a, found, a.guards.note("own", held.slot, name))


def _class_value(a: "Analyzer", found: Any, slot: int) -> Value:
    """What lies in a class, as a read gives it: a static method as its function."""
    if isinstance(found, staticmethod):
        a.guards.expect(slot, "type", type(found))
        return a.look(found.__func__, a.guards.note("getattr", slot, "__func__"))
    return a.look(found, slot)


def _builtin_attribute(held: Value, name: str) -> Value | None:
    kind = held.type
    method = Value(types.MethodType)
    method.method = (held, name)
    if held.is_array or is_numpy_scalar(kind) or kind is Number:
        if name in ("shape", "dtype"):
            return numpy_tables.shape_value() if name == "shape" else Value(DataType)
        if name in numpy_tables.ARRAY_ATTRIBUTES:
            return numpy_tables.numpy_result(numpy_tables.ARRAY_ATTRIBUTES[name], [], held)
        known = name in numpy_tables.ARRAY_METHODS or name in python_tables.CHANGERS[np.ndarray]
        return method if known else None
    if held.is_tensor:
        if name in torch_tables.TENSOR_ATTRIBUTES:
            return torch_tables.tensor_attribute(name, held)
        return method if name in torch_tables.TENSOR_METHODS else None
    for kinds, attributes, methods in waiting.READABLE:
        if kind in kinds:
            return Value(attributes[name]) if name in attributes else method if name in methods else None
    if name in python_tables.ATTRIBUTES.get(kind, ()):
        return Value(python_tables.ATTRIBUTES[kind][name])
    known = name in python_tables.METHODS.get(kind, ()) or name in python_tables.CHANGERS.get(kind, ())
    return method if known else None


def fields_of(a: "Analyzer", kind: type) -> Fields:
    """What the guards ask of a class whose fields are read."""
    if id(kind) not in a.classes:
        fields = a.classes[id(kind)] = Fields(kind)
        a.guards.require(True, "still", a.guards.note("const", fields))
    return a.classes[id(kind)]


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
        from .python_calls import Call, call_function

        inner = a.guards.require(found, "class", slot, name)
        getter = a.look(found.fget, a.guards.note("getattr", inner, "fget"))
        return call_function(a, getter, Call([held], {}, node))
    if isinstance(found, (types.MemberDescriptorType, NAMED)):  # __slots__
        a.guards.require(found, "class", slot, name)
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
    if isinstance(obj, nn.Module) and on_class(kind, "__getattr__") is nn.Module.__getattr__:
        for where in ("_parameters", "_buffers", "_modules"):
            if name in obj.__dict__.get(where, {}) and found is MISSING:
                fields.fix(name, "__getattr__")  # which is asked for what is nowhere else
                a.guards.require(False, "absent", slot, name)
                return a.look(obj.__dict__[where][name], a.guards.note("module", slot, (where, name)))
    if found is MISSING:
        raise a.decline(f"{kind.__name__} has no plain attribute {name!r}", node)
    if hasattr(obj, "__dict__"):
        if many:
            fields.fix(name)
        a.guards.require(False, "absent", slot, name)
    inner = a.guards.note("class", slot, name)
    if isinstance(found, types.FunctionType):
        bound = Value(types.MethodType)
        bound.method, bound.function = (held, name), a.look(found, inner)
        return bound
    if isinstance(found, (staticmethod, *IMMUTABLE, np.ndarray, list, dict, tuple)):
        return _class_value(a, found, inner)
    raise a.decline(f"{kind.__name__}.{name} is a {type(found).__name__}", node)
