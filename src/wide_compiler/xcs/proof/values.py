"""Abstract values of the analysis: exact type, perhaps the object, contents, and freshness."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from .effects import Decline, Effect
from .kinds import (
    CHANGEABLE,
    CONTAINERS,
    HOLDERS,
    NUMBERS,
    SAFE,
    Arrayish,
    Bottom,
    Number,
    Opaque,
    Plain,
    is_numpy_scalar,
)  # fmt: skip

NOTHING = object()
DEEPEST = 8  # maximum nesting of tuples


class Value:
    """One immutable abstract value, compared by its attributes.

    Attributes:
        type: the exact type, a marker class of `kinds`, or Opaque if unknown.
        obj: the object that the analysis examined, or NOTHING.
        slot: the guards' slot of the object, or None.
        fresh: True if the analysed code made it, so that it may be modified. For opaque values and methods:
            True if it may give access to such an object.
        parts: the elements of a tuple, in order.
        elem: the join of the elements of a container or iterator (opaque if not given); of a dict, of its
            values.
        key: the join of the keys of a dict.
        method: (receiver, name) of a method.
        function: the method's function, if it is written in Python.
    """

    def __init__(
        self,
        type: Any,
        obj: Any = NOTHING,
        slot: int | None = None,
        fresh: bool = False,
        parts: "Iterable[Value] | None" = None,
        elem: "Value | None" = None,
        key: "Value | None" = None,
        method: "tuple[Value, str] | None" = None,
        function: "Value | None" = None,
    ):
        self.type, self.obj, self.slot, self.fresh = type, obj, slot, fresh
        self.parts = None if parts is None else tuple(parts)
        if type in HOLDERS and parts is None:
            elem, key = elem or opaque(), key or opaque()
        key = key if type is dict else None
        self.elem, self.key, self.method, self.function = elem, key, method, function
        self.held = [*(self.parts or ()), *(value for value in (elem, key) if value is not None)]
        self.depth: int = 1 + max((value.depth for value in self.held), default=0)
        if self.depth > DEEPEST:
            raise Decline(Effect.UNKNOWN, f"values are nested more than {DEEPEST} levels deep")
        self._key = (id(type), id(obj), slot, fresh, self.parts, elem, key, method, function)
        self._hash = hash(self._key)

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Value) and self._hash == other._hash and self._key == other._key
        )

    def __hash__(self) -> int:
        return self._hash

    @property
    def known(self) -> bool:
        return self.obj is not NOTHING

    @property
    def is_constant(self) -> bool:
        """True for a literal in the source. For other objects the guards check only the type."""
        return self.known and self.slot is None

    @property
    def is_number(self) -> bool:
        return self.type in NUMBERS or self.type is Number or is_numpy_scalar(self.type)

    @property
    def is_array(self) -> bool:
        return self.type is np.ndarray or self.type is Arrayish

    @property
    def is_tensor(self) -> bool:
        return self.type in (torch.Tensor, torch.nn.Parameter)

    @property
    def is_safe(self) -> bool:
        """True if operators on it run no user code and have no side effects."""
        return self.is_array or self.is_number or self.is_tensor or self.type in SAFE

    @property
    def is_deep_safe(self) -> bool:
        """True if it and all its contents are safe."""
        return all(value.is_deep_safe for value in self.held) if self.type in HOLDERS else self.is_safe

    @property
    def may_be_changed(self) -> bool:
        """True if code that receives it may change it, or something that it holds."""
        own = self.fresh or self.method is not None or self.type in CHANGEABLE
        return own or any(value.may_be_changed for value in self.held)

    def content(self) -> "Value":
        """Return the join of what a container holds (a dict: under its keys); `Bottom` if it is empty."""
        return join_all(self.parts or ([] if self.elem is None else [self.elem]))

    def element(self) -> "Value":
        """Return the value that iteration gives; `Bottom` if there is nothing to iterate over."""
        if self.type in HOLDERS:
            return self.content() if self.key is None else self.key
        if self.is_array or self.is_tensor:
            return Value(Arrayish if self.is_array else torch.Tensor, fresh=self.fresh)
        return Value({str: str, range: int, bytes: int, Bottom: Bottom}.get(self.type, Opaque))


def opaque(fresh: bool = False) -> Value:
    return Value(Opaque, fresh=fresh)


def tuple_of(*parts: Value) -> Value:
    return Value(tuple, parts=parts)


def sequence(elem: Value, kind: type = tuple) -> Value:
    """Return a tuple (or frozenset) of any length with such elements."""
    return Value(kind, elem=elem)


def join_all(values: Iterable[Value]) -> Value:
    found = Value(Bottom)
    for value in values:
        found = join(found, value)
    return found


def join(a: Value, b: Value) -> Value:
    """Return what is true of both values."""
    if a == b or b.type is Bottom:
        return a
    if a.type is Bottom:
        return b
    kind, parts, elem, key, fresh = _join_types(a, b), None, None, None, a.fresh and b.fresh
    if kind is Opaque or a.method is not None or b.method is not None:
        fresh = a.may_be_changed or b.may_be_changed  # what may be changed is forgotten
    elif kind in HOLDERS:
        if a.parts is not None and b.parts is not None and len(a.parts) == len(b.parts):
            parts = map(join, a.parts, b.parts)
        else:
            elem, key = join(a.content(), b.content()), join(a.element(), b.element())
    one = a.obj is b.obj and a.slot == b.slot
    return Value(kind, a.obj if one else NOTHING, a.slot if one else None, fresh, parts, elem, key)


def _join_types(a: Value, b: Value) -> Any:
    if a.type is b.type:
        return a.type
    if a.is_number and b.is_number:
        return Number
    if (a.is_array or a.is_number) and (b.is_array or b.is_number):
        return Arrayish
    both_plain = a.type in (Number, *SAFE) and b.type in (Number, *SAFE)
    return Plain if both_plain else Opaque


def owned(value: Value) -> bool:
    """Return whether it contains no array that the analysed code did not make."""
    if value.is_array or value.is_tensor:
        return value.fresh
    return value.is_safe or (value.type in CONTAINERS and owned(value.element()))
