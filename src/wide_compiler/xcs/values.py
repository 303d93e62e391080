"""What the analysis knows of a value: its exact type, maybe the object, whether it is fresh."""

from typing import Any

import numpy as np
import torch

NOTHING = object()


class Plain:
    """Stands for any immutable built-in value: a number, a string, None."""


class Number(Plain):
    """Stands for any number of Python or NumPy."""


class Arrayish:
    """Stands for an array without objects in it, or a NumPy scalar: what NumPy functions return."""


class Opaque:
    """Stands for a value that may be passed on, but not looked at."""


NUMBERS = (int, float, bool, complex)
IMMUTABLE = (
    *NUMBERS,
    str,
    bytes,
    type(None),
    range,
    slice,
    type(Ellipsis),
    torch.dtype,
    torch.device,
    torch.Size,
)
CONTAINERS = (list, tuple, dict, set, frozenset)


class Value:
    """One abstract value. Shared between all names that stand for it, so a fresh list learns what it holds.

    Attributes:
        type: the exact type, one of the stand-ins above, or Opaque if unknown.
        obj: the object the analysis looked at, or NOTHING.
        slot: where the guards fetch it from, or None.
        fresh: made by the analysed code itself, so that it may be changed.
        parts: what a tuple or a display holds, in order; elem: what any element of a container is.
        attrs: fields of an object that the analysed code made.
        function: (node, environment) of a lambda or nested function; method: (receiver, name) of a method.
    """

    __slots__ = ("attrs", "elem", "fresh", "function", "key", "method", "obj", "parts", "slot", "type")

    def __init__(self, type: Any, obj: Any = NOTHING, slot: int | None = None, fresh: bool = False):
        self.type = type
        self.obj = obj
        self.slot = slot
        self.fresh = fresh
        self.parts: list[Value] | None = None
        self.elem: Value | None = None
        self.key: Value | None = None
        self.attrs: dict[str, Value] | None = None
        self.function: Any = None
        self.method: tuple[Value, str] | None = None

    def __repr__(self) -> str:
        return f"Value({getattr(self.type, '__name__', self.type)}{', fresh' if self.fresh else ''})"

    @property
    def known(self) -> bool:
        return self.obj is not NOTHING

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
        return self.is_array or self.is_number or self.is_tensor or self.type in (Plain, *IMMUTABLE)

    @property
    def is_deep_safe(self) -> bool:
        """It and all it holds are safe."""
        if self.is_safe:
            return True
        if self.type not in CONTAINERS and self.type not in ITERATORS:
            return False
        if self.parts is not None:
            held = self.parts
        else:
            held = [v for v in (self.elem, self.key) if v is not None]
            if self.elem is None and not self.fresh:
                return False
        return all(v.is_deep_safe for v in held)

    def may_hold(self, value: "Value") -> None:
        """A fresh container got one more element."""
        if self.parts is not None:
            self.elem, self.parts = join_all(self.parts), None
        self.elem = value if self.elem is None else join(self.elem, value)

    def element(self) -> "Value":
        """What iterating over it gives."""
        if self.parts is not None:
            return join_all(self.parts)
        if self.type is dict:
            return self.key or opaque()
        if self.elem is not None:
            return self.elem
        given = {str: str, range: int, bytes: int}
        if self.type in given:
            return Value(given[self.type])
        if self.is_array:
            return Value(Arrayish, fresh=self.fresh)
        if self.is_tensor:
            return Value(torch.Tensor, fresh=self.fresh)
        return opaque()


class Iterator:
    """Stands for a zip, enumerate, reversed or generator over analysed values."""


ITERATORS = (Iterator,)


def opaque() -> Value:
    return Value(Opaque)


def is_numpy_scalar(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, np.generic) and kind is not np.object_


def tuple_of(parts: list[Value]) -> Value:
    value = Value(tuple, fresh=True)
    value.parts = parts
    return value


def list_of(elem: Value | None, kind: type = list) -> Value:
    value = Value(kind, fresh=True)
    value.elem = elem
    return value


def join_all(values: list[Value]) -> Value:
    if not values:
        return Value(Plain)
    found = values[0]
    for value in values[1:]:
        found = join(found, value)
    return found


def join(a: Value, b: Value) -> Value:
    """What is true of a value that may be either."""
    if a is b:
        return a
    if a.type is BOTTOM or b.type is BOTTOM:
        return b if a.type is BOTTOM else a
    made = Value(_join_types(a, b), fresh=a.fresh and b.fresh)
    if a.known and b.known and a.obj is b.obj and a.slot == b.slot:
        made.obj, made.slot = a.obj, a.slot
    if made.type in CONTAINERS or made.type in ITERATORS:
        if a.parts is not None and b.parts is not None and len(a.parts) == len(b.parts):
            made.parts = [join(x, y) for x, y in zip(a.parts, b.parts, strict=True)]
        else:
            held = [*(a.parts or []), *(b.parts or []), *(v for v in (a.elem, b.elem) if v is not None)]
            made.elem = join_all(held) if held else None
    if a.key is not None and b.key is not None:
        made.key = join(a.key, b.key)
    return made


class Bottom:
    """The value of a call that does not return, or not yet: of a recursion."""


BOTTOM = Bottom


def _join_types(a: Value, b: Value) -> Any:
    if a.type is b.type:
        return a.type
    if a.is_number and b.is_number:
        return Number
    if (a.is_array or a.is_number) and (b.is_array or b.is_number):
        return Arrayish
    if a.type in (Plain, Number, *IMMUTABLE) and b.type in (Plain, Number, *IMMUTABLE):
        return Plain
    return Opaque
