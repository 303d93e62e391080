"""Classes and objects of the user's, by value: of each what the code that is sent names of it.

Operators, texts and hashes of such objects are nothing that a proof allows, so their methods are not sent.
What stands in their place notes that it was called (see `receiving`).
"""

import types
from typing import Any

from .process_state import compares_identity
from .references import place_of

_OF_EVERY_CLASS = ("__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__slots__")
_C = (
    types.GetSetDescriptorType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.BuiltinFunctionType,
)
_DATACLASS = ("__dataclass_fields__", "__dataclass_params__", "__match_args__")


class NotSendable(Exception):
    """Why a body cannot run in another process."""


def written_by_user(kind: type) -> bool:
    """A plain class of Python's, all of it by the user, or an exception."""
    for base in kind.__mro__[:-1]:
        if place_of(base) is not None:
            if base.__module__ != "builtins" or not issubclass(base, BaseException):
                return False
        elif type(base) is not type or _in_c(base) or {"__getattr__", "__getattribute__"} & vars(base).keys():
            return False
    return True


def _in_c(kind: type) -> bool:
    """Objects of such a class may hold what nobody sees."""
    return any(isinstance(v, _C) for n, v in vars(kind).items() if n not in _OF_EVERY_CLASS)


def class_parts(kind: type, names: set[str]) -> tuple[dict[str, Any], list[str]]:
    """Attributes that are named somewhere, and the names of special methods that are not."""
    if not written_by_user(kind):
        raise NotSendable(f"class {kind.__qualname__} is not one that can be made again in another process")
    named: dict[str, Any] = {}
    others: list[str] = []
    for name, held in vars(kind).items():
        if name in (*_OF_EVERY_CLASS, *_DATACLASS) or isinstance(held, types.MemberDescriptorType):
            continue
        special = name.startswith("__") and name.endswith("__")
        if name == "__call__" or (name == "__init__" and _generated(held)):
            named[name] = held
        elif special and (callable(held) or name not in names):
            others.append(name)
        elif name in names:
            named[name] = held
    return named, others


def _generated(init: Any) -> bool:
    """The `__init__` of a dataclass, if it does no more than to keep what it gets."""
    code = getattr(init, "__code__", None)
    return code is not None and code.co_filename == "<string>" and not compares_identity(code, {})


def fields(obj: Any, names: set[str]) -> dict[str, Any]:
    """What an object holds under names that are named somewhere."""
    kind = type(obj)
    if issubclass(kind, BaseException):
        raise NotSendable(f"an exception, {kind.__qualname__}")
    slots = (n for base in kind.__mro__ for n, v in vars(base).items() if _slot(v))
    held = {name: getattr(obj, name) for name in slots if name in names and hasattr(obj, name)}
    return held | {name: value for name, value in getattr(obj, "__dict__", {}).items() if name in names}


def _slot(held: Any) -> bool:
    return isinstance(held, types.MemberDescriptorType)
