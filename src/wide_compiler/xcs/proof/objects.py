"""Objects from outside the analysed code: their abstract values, attributes, and the items of columns."""

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
from .kinds import CONTAINERS, IMMUTABLE, Bottom, Number, Opaque, is_numpy_scalar
from .values import Value, join_all, opaque, tuple_of

if TYPE_CHECKING:
    from .analysis import Analyzer

IDENTICAL = (types.ModuleType, types.BuiltinFunctionType, types.BuiltinMethodType, type, np.ufunc)
# Types of C functions of NumPy and PyTorch.
_C_FUNCTIONS = ("_ArrayFunctionDispatcher", "builtin_function_or_method", "method_descriptor",
                "wrapper_descriptor")  # fmt: skip
NAMED = type(vars(collections.namedtuple("NAMED", "field"))["field"])  # type of the fields of a namedtuple
SAFE_INSIDE = (*IMMUTABLE, np.ndarray, torch.Tensor)  # contents that make a container safe
CLASS_VALUES = (staticmethod, types.FunctionType, *IMMUTABLE, np.ndarray)
MANY = 256  # maximum number of container items that are examined


def look(a: "Analyzer", held: Any, slot: int) -> Value:
    """Return the abstract value of an outside object, guarded by identity if it is code, else by type.

    Uses `type`, not `isinstance`, because `isinstance` may run the object's `__class__` property.
    """
    kind = type(held)
    a.guards.expect(slot, "type", kind)
    if kind in CONTAINERS:
        return _container(a, held, slot, held_types(held))
    if kind in (types.FunctionType, types.MethodType, nn.Parameter):
        return Value(kind, held, slot)
    c_function = (callable(held) and not hasattr(kind, "__dict__")) or kind.__name__ in _C_FUNCTIONS
    if issubclass(kind, IDENTICAL) or c_function:
        a.guards.expect(slot, "is", held)
    return Value(Opaque if kind is np.ndarray and held.dtype.hasobject else kind, held, slot)


def _container(a: "Analyzer", held: Any, slot: int, kinds: frozenset[Any]) -> Value:
    """Return the value of a container, with the types of its contents if they are safe."""
    kind, elem, key = type(held), opaque(), opaque()
    plain = [k[1] if isinstance(k, tuple) else k for k in kinds]
    if all(k in SAFE_INSIDE or is_numpy_scalar(k) for k in plain):
        a.guards.expect(slot, "holds", (kind, kinds))
        elem = join_all([Value(k) for k in kinds if not isinstance(k, tuple)])
        key = join_all([Value(k[1]) for k in kinds if isinstance(k, tuple)])
    if a.exposed:
        elem = key = opaque()
    return Value(kind, held, slot, elem=elem, key=key)


def column_value(a: "Analyzer", column: Any, j: int) -> Value:
    """Return the value of any item of column j; the guards check that it applies to all items."""
    slot, first = a.guards.note("item", 0, j), column[0]
    kind = type(first)
    a.guards.expect(slot, "type", kind)
    if type(column) in (np.ndarray, torch.Tensor, range):
        return Value(kind, first, slot)
    if kind not in CONTAINERS:
        return a.look(first, slot)
    alike = kind is tuple and all(type(c) is tuple and len(c) == len(first) for c in column)
    if alike and 0 < len(first) <= MANY:
        a.guards.require(len(first), "length", slot)
        return tuple_of(*[_part(a, column, slot, k) for k in range(len(first))])
    alike = len(column) <= MANY and all(type(c) is kind for c in column)
    kinds = frozenset().union(*map(held_types, column)) if alike else frozenset(["anything"])
    return _container(a, first, slot, kinds)


def _part(a: "Analyzer", column: Any, slot: int, k: int) -> Value:
    inner = a.guards.note("index", slot, k)
    alike = len({type(c[k]) for c in column}) == 1
    return a.look(column[0][k], inner) if alike else Value(object)


def attribute(a: "Analyzer", held: Value, name: str, node: ast.AST) -> Value:
    """Return the value of `held.name`. Raises `Decline` if that may run code that is not analysed."""
    if held.type is Bottom:
        return held
    if held.slot is not None and issubclass(type(held.obj), types.ModuleType):
        known = name in vars(held.obj)
        a.demand(known, f"{held.obj.__name__}.{name} is not a plain attribute of the module", node)
        return a.look(vars(held.obj)[name], a.guards.note("field", held.slot, name))
    builtin = _builtin_attribute(held, name)
    if builtin is not None:
        if held.type in waiting.PATHS:
            waiting.require(a, waiting.FILES, f".{name}", node)
        return builtin
    if held.slot is None:
        a.known(False, "the object", node)
    if not issubclass(type(held.obj), type):
        return instance_attribute(a, held, name, node)
    found = on_class(held.obj, name)
    if not isinstance(found, CLASS_VALUES):
        raise a.decline(f"{held.obj.__name__}.{name} is not a plain attribute of the class", node)
    return _class_value(a, found, a.guards.note("own", held.slot, name))


def _class_value(a: "Analyzer", found: Any, slot: int) -> Value:
    """Return the value of a class attribute as a read gives it; a static method becomes its function."""
    if isinstance(found, staticmethod):
        a.guards.expect(slot, "type", type(found))
        return a.look(found.__func__, a.guards.note("getattr", slot, "__func__"))
    return a.look(found, slot)


# Attributes and methods of built-in types, arrays, tensors and readable sources.
_ATTRIBUTES: dict[Any, dict[str, Any]] = {
    **python_tables.ATTRIBUTES, **waiting.ATTRIBUTES, np.ndarray: numpy_tables.ARRAY_ATTRIBUTES,
    torch.Tensor: torch_tables.TENSOR_ATTRIBUTES,
}  # fmt: skip
_METHODS: dict[Any, Any] = {
    **python_tables.METHODS, **waiting.METHODS, np.ndarray: numpy_tables.ARRAY_METHODS,
    torch.Tensor: torch_tables.TENSOR_METHODS,
}  # fmt: skip


def _builtin_attribute(held: Value, name: str) -> Value | None:
    array = held.is_array or is_numpy_scalar(held.type) or held.type is Number
    kind: Any = np.ndarray if array else torch.Tensor if held.is_tensor else held.type
    given = _ATTRIBUTES.get(kind, {}).get(name)
    if given is not None:
        return given if isinstance(given, Value) else given(held)
    known = name in _METHODS.get(kind, ()) or name in python_tables.CHANGERS.get(kind, ())
    return Value(types.MethodType, method=(held, name)) if known else None


def fields_of(a: "Analyzer", kind: type) -> Fields:
    """Return the guard of a class whose fields are read."""
    if id(kind) not in a.classes:
        fields = a.classes[id(kind)] = Fields(kind)
        a.guards.require(True, "still", a.guards.note("const", fields))
    return a.classes[id(kind)]


def instance_attribute(a: "Analyzer", held: Value, name: str, node: ast.AST) -> Value:
    """Return the value of an attribute of a user's object: a field, method, property or class attribute."""
    kind, obj, slot = type(held.obj), held.obj, held.slot
    assert slot is not None
    a.guards.expect(slot, "type", kind)
    fields_of(a, kind).fix(name)
    if kind.__getattribute__ not in (object.__getattribute__, tuple.__getattribute__):
        raise a.decline(f"{kind.__name__} overrides __getattribute__, which reads {name!r}", node)
    found, many = on_class(kind, name), a.guards.vector[slot]
    if isinstance(found, property) and isinstance(found.fget, types.FunctionType):
        from .python_calls import CallArguments, call_function

        inner = a.guards.require(found, "class", slot, name)
        getter = a.look(found.fget, a.guards.note("getattr", inner, "fget"))
        return call_function(a, getter, CallArguments([held], {}, node))
    if isinstance(found, (types.MemberDescriptorType, NAMED)):  # __slots__
        a.guards.require(found, "class", slot, name)
        return a.look(getattr(obj, name), a.guards.note("getattr", slot, name))
    if takes_writes(found):
        raise a.decline(f"{kind.__name__}.{name} is a descriptor", node)
    if name in getattr(obj, "__dict__", {}):
        # For items of a loop, fields are read by `object.__getattribute__`, which would run a class's
        # descriptor.
        read = not many or not hasattr(type(found), "__get__")
        return a.look(obj.__dict__[name], a.guards.note("field" if read else "covering", slot, name))
    if isinstance(obj, nn.Module) and on_class(kind, "__getattr__") is nn.Module.__getattr__:
        for where in ("_parameters", "_buffers", "_modules"):
            if name in obj.__dict__.get(where, {}) and found is MISSING:
                fields_of(a, kind).fix("__getattr__")  # called for names that are nowhere else
                a.guards.require(False, "absent", slot, name)
                return a.look(obj.__dict__[where][name], a.guards.note("module", slot, (where, name)))
    if hasattr(obj, "__dict__"):
        a.guards.require(False, "absent", slot, name)
    if not isinstance(found, (*CLASS_VALUES, list, dict, tuple)):
        raise a.decline(f"{kind.__name__}.{name} is not a plain attribute", node)
    inner = a.guards.note("class", slot, name)
    if isinstance(found, types.FunctionType):
        return Value(types.MethodType, method=(held, name), function=a.look(found, inner))
    return _class_value(a, found, inner)
