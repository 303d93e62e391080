"""What the analysis knows of a value: its exact type, maybe the object, what it holds, is it fresh?"""

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
DEEPEST = 8  # tuples in tuples


class Place:
    """What lists, dicts or sets made at one point of the text, or found at one place outside of it, hold. It
    only ever learns more.

    Attributes:
        elem: what any element is, None if there is none; key: any key of a dict.
        shared: code that is not analysed has got one of them.
    """

    __slots__ = ("elem", "heap", "key", "shared")

    def __init__(self, heap: Any):
        self.heap = heap  # the analyzer, which counts what is learnt
        self.elem: Value | None = None
        self.key: Value | None = None
        self.shared = False

    def learn(self, elem: "Value | None", key: "Value | None" = None) -> None:
        new = _either(self.elem, elem), _either(self.key, key)
        if new != (self.elem, self.key):
            self.elem, self.key = new
            self.heap.version += 1


class Value:
    """One abstract value, which never changes; equal to another if nothing tells them apart.

    Attributes:
        type: the exact type, one of the stand-ins of `kinds`, or Opaque if unknown.
        obj: the object the analysis looked at, or NOTHING.
        slot: where the guards fetch it from, or None.
        fresh: made by the analysed code itself, so that it may be changed.
        parts: what a tuple holds, in order; elem: what any element of a tuple or iterator is.
        places: of a list, dict or set, the places it may come from.
        method: (receiver, name) of a method; function: its function, if that is written in Python.
    """

    __slots__ = (
        "_hash", "_key", "depth", "elem", "fresh", "function", "method", "obj", "parts", "places",
        "slot", "type",
    )  # fmt: skip

    def __init__(
        self, type: Any, obj: Any = NOTHING, slot: int | None = None, fresh: bool = False,
        parts: "Iterable[Value] | None" = None, elem: "Value | None" = None,
        places: frozenset[Place] = frozenset(), method: "tuple[Value, str] | None" = None,
        function: "Value | None" = None,
    ):  # fmt: skip
        self.type, self.obj, self.slot, self.fresh = type, obj, slot, fresh
        self.parts = None if parts is None else tuple(parts)
        self.elem, self.places, self.method, self.function = elem, places, method, function
        held = [*(self.parts or ()), *([] if elem is None else [elem])]
        self.depth: int = 1 + max((value.depth for value in held), default=0)
        if self.depth > DEEPEST:
            raise Decline(Effect.UNKNOWN, "it nests things too deep")
        self._key = (id(type), id(obj), slot, fresh, self.parts, elem, places, method, function)
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
        """Written in the text. Of any other object the guards check the type alone."""
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
        """Operators on it run no user code and change nothing."""
        return self.is_array or self.is_number or self.is_tensor or self.type in SAFE

    @property
    def is_deep_safe(self) -> bool:
        """It and all it holds are safe."""
        return _deep_safe(self, set())

    def element(self) -> "Value":
        """What iterating over it gives; `Bottom` if it is empty."""
        if self.type in HOLDERS:
            inside = [p.key if self.type is dict else p.elem for p in self.places]
            return join_all([v for v in (*(self.parts or ()), self.elem, *inside) if v is not None])
        if self.is_array or self.is_tensor:
            return Value(Arrayish if self.is_array else torch.Tensor, fresh=self.fresh)
        return Value({str: str, range: int, bytes: int, Bottom: Bottom}.get(self.type, Opaque))

    def value(self) -> "Value":
        """Of a dict: what looking something up in it gives."""
        return join_all([p.elem for p in self.places if p.elem is not None])


def _deep_safe(value: Value, seen: set[Place]) -> bool:
    if value.type not in HOLDERS:
        return value.is_safe
    new = value.places - seen
    seen |= new
    inside = [v for p in new for v in (p.elem, p.key)]
    held = [v for v in (*(value.parts or ()), value.elem, *inside) if v is not None]
    return all(_deep_safe(v, seen) for v in held)


def opaque() -> Value:
    return Value(Opaque)


def tuple_of(*parts: Value) -> Value:
    return Value(tuple, parts=parts)


def sequence(elem: Value, kind: type = tuple) -> Value:
    """A tuple of any length, or what else cannot be changed, of such elements."""
    return Value(kind, elem=elem)


def join_all(values: Iterable[Value]) -> Value:
    found = Value(Bottom)
    for value in values:
        found = join(found, value)
    return found


def join(a: Value, b: Value) -> Value:
    """What is true of a value that may be either."""
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
    places = a.places | b.places if kind in CHANGEABLE else frozenset()
    held: tuple[Any, Any] = (a.obj, a.slot) if one else (NOTHING, None)
    return Value(kind, held[0], held[1], a.fresh and b.fresh, parts, elem, places)


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
    """Nobody else's array is in it."""
    if value.is_array or value.is_tensor:
        return value.fresh
    return value.is_safe or (value.type in CONTAINERS and owned(value.element()))
