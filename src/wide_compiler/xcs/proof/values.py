"""What the analysis knows of a value: its exact type, maybe the object, what it holds, is it fresh?"""

from collections.abc import Callable, Iterable, Mapping
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
    Iterator,
    Number,
    Opaque,
    Plain,
    is_numpy_scalar,
)  # fmt: skip

NOTHING = object()
DEEPEST = 24


class Content:
    """What a container holds. Names that may stand for one container share it, so that each of them learns
    what is put into it through any other.

    Attributes:
        parts: what a tuple or a display holds, in order; elem: what any element is; key: any key of a dict.
        later: of an iterator, what it gives when it is asked.
        into: the content that this one has become part of.
    """

    __slots__ = ("elem", "into", "key", "later", "parts")

    def __init__(self) -> None:
        self.parts: list[Value] | None = None
        self.elem: Value | None = None
        self.key: Value | None = None
        self.later: Callable[[], Value] | None = None
        self.into: Content | None = None

    def root(self) -> "Content":
        found = self
        while found.into is not None:
            found = found.into
        return found

    def scatter(self) -> None:
        """Forget which part lies where."""
        if self.parts is not None:
            held, self.parts = self.parts, None
            self.elem = join_all(held) if held else None


def _in_content(name: str) -> Any:
    return property(
        lambda self: getattr(self.content, name), lambda self, new: setattr(self.content, name, new)
    )


class Value:
    """One abstract value. Shared between all names that stand for it, so a fresh list learns what it holds.

    Attributes:
        type: the exact type, one of the stand-ins of `kinds`, or Opaque if unknown.
        obj: the object the analysis looked at, or NOTHING.
        slot: where the guards fetch it from, or None.
        fresh: made by the analysed code itself, so that it may be changed.
        attrs: fields of an object that the analysed code made.
        function: (node, frame) of a lambda or nested function, or the function of a method.
        method: (receiver, name) of a method.
    """

    __slots__ = ("_content", "attrs", "fresh", "function", "method", "obj", "slot", "type")
    parts, elem, key = map(_in_content, ("parts", "elem", "key"))

    def __init__(self, type: Any, obj: Any = NOTHING, slot: int | None = None, fresh: bool = False):
        self.type, self.obj, self.slot, self.fresh = type, obj, slot, fresh
        self._content: Content | None = None
        self.attrs: dict[str, Value] | None = None
        self.function: Any = None
        self.method: tuple[Value, str] | None = None

    @property
    def content(self) -> Content:
        if self._content is None:
            self._content = Content()
        return self._content.root()

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

    @property
    def has_safe_keys(self) -> bool:
        """Of a dict: looking something up in it asks nobody's `__eq__`."""
        return self.fresh if self.key is None else self.key.is_deep_safe

    @property
    def is_unknown_inside(self) -> bool:
        """A container from outside, of which nobody has looked at what it holds."""
        held = self.content
        return not self.fresh and held.elem is None and held.parts is None and held.later is None

    def may_hold(self, value: "Value", key: "Value | None" = None) -> None:
        """A fresh container got one more element; a dict under that key."""
        held = self.content
        held.scatter()
        held.elem = value if held.elem is None else join(held.elem, value)
        if key is not None:
            held.key = key if held.key is None else join(held.key, key)

    def element(self) -> "Value":
        """What iterating over it gives."""
        held = self.content
        if held.later is not None:
            return held.later()
        if held.parts is not None:
            return join_all(held.parts)
        if self.type is dict:
            return held.key or opaque()
        if held.elem is not None:
            return held.elem
        if self.is_array or self.is_tensor:
            return Value(Arrayish if self.is_array else torch.Tensor, fresh=self.fresh)
        return Value({str: str, range: int, bytes: int}.get(self.type, Opaque))

    def elements(self) -> "list[Value]":
        """What it holds, as far as it is not known to be empty."""
        unseen = self.fresh and self.type in CONTAINERS and self.parts is self.elem is None
        return [] if unseen or self.parts == [] else [self.element()]


def _deep_safe(value: Value, seen: set[int]) -> bool:
    if value.is_safe or value.type not in HOLDERS:
        return value.is_safe
    held = value.content
    if id(held) in seen:
        return True
    seen.add(id(held))
    if value.is_unknown_inside:
        return False
    if held.later is not None:
        return _deep_safe(held.later(), seen)
    inside = held.parts if held.parts is not None else [v for v in (held.elem, held.key) if v is not None]
    return all(_deep_safe(v, seen) for v in inside)


def opaque() -> Value:
    return Value(Opaque)


def tuple_of(parts: list[Value]) -> Value:
    value = Value(tuple, fresh=True)
    value.parts = parts
    return value


def list_of(elem: Value | None, kind: type = list) -> Value:
    value = Value(kind, fresh=True)
    value.elem = elem
    return value


def joined_list(values: Iterable[Value], kind: type = list) -> Value:
    """A container of what all of these hold."""
    held = [element for value in values for element in value.elements()]
    return list_of(join_all(held) if held else None, kind)


def iterator(later: Callable[[], Value]) -> Value:
    """What an iterator gives is looked up when it is asked: what it goes over may have changed by then."""
    value = Value(Iterator, fresh=True)
    value.content.later = later
    return value


def join_all(values: list[Value]) -> Value:
    found = values[0] if values else Value(Plain)
    for value in values[1:]:
        found = join(found, value)
    return found


def join(a: Value, b: Value) -> Value:
    """What is true of a value that may be either."""
    if a is b or b.type is Bottom:
        return a
    if a.type is Bottom:
        return b
    made = Value(_join_types(a, b), fresh=a.fresh and b.fresh)
    if a.known and b.known and a.obj is b.obj and a.slot == b.slot:
        made.obj, made.slot = a.obj, a.slot
    if made.type in CHANGEABLE:
        made._content = _unite(a, b)
    elif made.type in CONTAINERS:
        made.parts, made.elem = _either(a, b)
    elif made.type is Iterator:
        made.content.later = lambda: join(a.element(), b.element())
    return made


def _join_types(a: Value, b: Value) -> Any:
    if a.type is b.type:
        return a.type
    if a.is_number and b.is_number:
        return Number
    if (a.is_array or a.is_number) and (b.is_array or b.is_number):
        return Arrayish
    return Plain if a.type in (Number, *SAFE) and b.type in (Number, *SAFE) else Opaque


def _either(a: Value, b: Value) -> tuple[list[Value] | None, Value | None]:
    """Parts, or an element, of two containers."""
    if a.parts is not None and b.parts is not None and len(a.parts) == len(b.parts):
        return [join(x, y) for x, y in zip(a.parts, b.parts, strict=True)], None
    unknown = [opaque() for v in (a, b) if v.is_unknown_inside]
    held = [*(a.parts or []), *(b.parts or []), *(v for v in (a.elem, b.elem) if v is not None), *unknown]
    return None, join_all(held) if held else None


def _unite(a: Value, b: Value) -> Content:
    """Whoever changes the joined value has changed one of the two, nobody knows which: all three share what
    they hold from now on."""
    first, second = a.content, b.content
    if first is second:
        return first
    keys = [k for k in (first.key, second.key) if k is not None]
    if a.type is dict and (not a.has_safe_keys or not b.has_safe_keys):
        keys = [opaque()]
    both = Value(a.type, fresh=True), Value(a.type, fresh=True)
    for copied, original in zip(both, (a, b), strict=True):
        copied.fresh, copied.parts, copied.elem = original.fresh, original.parts, original.elem
    second.into = first  # before going inside: it may hold itself
    first.parts = first.elem = first.key = None
    parts, elem = _either(*both)
    found = first.root()
    if parts is not None and found.parts is None and found.elem is None:
        found.parts = parts
    elif parts is not None or elem is not None:
        found.scatter()
        inside = [*(parts or []), *(v for v in (elem, found.elem) if v is not None)]
        found.elem = join_all(inside) if inside else None
    if keys:
        found.key = join_all(keys if found.key is None else [*keys, found.key])
    return found.root()


# Written down to be compared: has another round of a loop taught the analysis anything?


def shape(spaces: Iterable[Mapping[str, Value]]) -> list[Any]:
    """All that is known of some names, the same for values that differ in nothing but their identity."""
    seen: dict[int, int] = {}
    return [[(name, _shape(space[name], seen, 0)) for name in sorted(space)] for space in spaces]


def _shape(value: Value, seen: dict[int, int], depth: int) -> Any:
    if depth > DEEPEST:
        raise Decline(Effect.UNKNOWN, "it nests things too deep")
    inner = depth + 1
    head: tuple[Any, ...] = (value.type, value.fresh, value.slot, id(value.obj))
    if value.function is not None:
        made = value.function if isinstance(value.function, tuple) else (value.function.obj,)
        head += (tuple(map(id, made)),)
    if value.method is not None:
        head += (value.method[1], _shape(value.method[0], seen, inner))
    if value.attrs is not None:
        head += tuple((name, _shape(held, seen, inner)) for name, held in value.attrs.items())
    if value.type not in HOLDERS:
        return head
    held = value.content
    if id(held) in seen:
        return (*head, seen[id(held)])
    seen[id(held)] = len(seen)
    if held.later is not None:
        return (*head, _shape(held.later(), seen, inner))
    parts = None if held.parts is None else [_shape(part, seen, inner) for part in held.parts]
    return (*head, parts, *(None if v is None else _shape(v, seen, inner) for v in (held.elem, held.key)))
