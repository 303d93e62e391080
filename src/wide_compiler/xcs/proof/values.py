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


class ContainerContents:
    """The contents of the containers made at one AST node, or found in one object outside.

    Facts are only added.

    Attributes:
        heap: the analyzer, whose `version` is incremented with each new fact.
        elem: the join of all elements; None if there are none.
        key: the join of all keys of a dict.
        shared: True if code that is not analysed has received one of the containers.
    """

    __slots__ = ("elem", "heap", "key", "shared")

    def __init__(self, heap: Any):
        self.heap = heap
        self.elem: Value | None = None
        self.key: Value | None = None
        self.shared = False

    def learn(self, elem: "Value | None", key: "Value | None" = None) -> None:
        new = _either(self.elem, elem), _either(self.key, key)
        if new != (self.elem, self.key):
            self.elem, self.key = new
            self.heap.version += 1


class Value:
    """One immutable abstract value, compared by its attributes.

    Attributes:
        type: the exact type, a marker class of `kinds`, or Opaque if unknown.
        obj: the object that the analysis examined, or NOTHING.
        slot: the guards' slot of the object, or None.
        fresh: True if the analysed code made it, so that it may be modified.
        parts: the elements of a tuple, in order.
        elem: the join of the elements of a tuple or iterator.
        contents: what a list, dict or set may hold, by where it may come from.
        method: (receiver, name) of a method.
        function: the method's function, if it is written in Python.
    """

    __slots__ = (
        "_hash",
        "_key",
        "contents",
        "depth",
        "elem",
        "fresh",
        "function",
        "method",
        "obj",
        "parts",
        "slot",
        "type",
    )  # fmt: skip

    def __init__(
        self, type: Any, obj: Any = NOTHING, slot: int | None = None, fresh: bool = False,
        parts: "Iterable[Value] | None" = None, elem: "Value | None" = None,
        contents: frozenset[ContainerContents] = frozenset(), method: "tuple[Value, str] | None" = None,
        function: "Value | None" = None,
    ):  # fmt: skip
        self.type, self.obj, self.slot, self.fresh = type, obj, slot, fresh
        self.parts = None if parts is None else tuple(parts)
        self.elem, self.contents, self.method, self.function = elem, contents, method, function
        held = [*(self.parts or ()), *([] if elem is None else [elem])]
        self.depth: int = 1 + max((value.depth for value in held), default=0)
        if self.depth > DEEPEST:
            raise Decline(Effect.UNKNOWN, f"values are nested more than {DEEPEST} levels deep")
        self._key = (id(type), id(obj), slot, fresh, self.parts, elem, contents, method, function)
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
        return _deep_safe(self, set())

    def element(self) -> "Value":
        """Return the value that iteration gives; `Bottom` if it is empty."""
        if self.type in HOLDERS:
            inside = [p.key if self.type is dict else p.elem for p in self.contents]
            return join_all([v for v in (*(self.parts or ()), self.elem, *inside) if v is not None])
        if self.is_array or self.is_tensor:
            return Value(Arrayish if self.is_array else torch.Tensor, fresh=self.fresh)
        return Value({str: str, range: int, bytes: int, Bottom: Bottom}.get(self.type, Opaque))

    def value(self) -> "Value":
        """Return the value that a lookup in this dict gives."""
        return join_all([p.elem for p in self.contents if p.elem is not None])


def _deep_safe(value: Value, seen: set[ContainerContents]) -> bool:
    if value.type not in HOLDERS:
        return value.is_safe
    new = value.contents - seen
    seen |= new
    inside = [v for p in new for v in (p.elem, p.key)]
    held = [v for v in (*(value.parts or ()), value.elem, *inside) if v is not None]
    return all(_deep_safe(v, seen) for v in held)


def opaque() -> Value:
    return Value(Opaque)


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
    kind, parts, elem = _join_types(a, b), None, None
    if kind in HOLDERS and kind not in CHANGEABLE:
        if a.parts is not None and b.parts is not None and len(a.parts) == len(b.parts):
            parts = map(join, a.parts, b.parts)
        else:
            elem = join(a.element(), b.element())
    one = a.obj is b.obj and a.slot == b.slot
    contents = a.contents | b.contents if kind in CHANGEABLE else frozenset()
    held: tuple[Any, Any] = (a.obj, a.slot) if one else (NOTHING, None)
    return Value(kind, held[0], held[1], a.fresh and b.fresh, parts, elem, contents)


def _either(a: Value | None, b: Value | None) -> Value | None:
    return join(a, b) if a is not None and b is not None else a or b


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
