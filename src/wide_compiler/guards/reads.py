"""The kinds of reads: how each is compared with its recorded value, and how a change is undone."""

import collections
import contextvars
import functools
import gc
import operator
import random
import threading
import types
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .dict_versions import dict_version
from .tensors import version_of

ATOMS = (
    *(bool, int, float, complex, str, bytes, type(None), type(...), range, slice),
    *(torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format),
)
_ATOMIC = frozenset(ATOMS)
ABSENT: Any = type("Absent", (), {"__repr__": lambda self: "absent"})()
# Tensors of at most this many elements are copied when read, so that writes can be undone.
_COPIED = 2**22


class Read:
    """One thing that was read: `name` in `holder`, or the content of `holder` if there is no name.

    Attributes:
        path: name for messages.
        value: the value at the time of reading.
    """

    def __init__(self, holder: Any, name: str, path: str):
        self.holder, self.name, self.path = holder, name, path
        self.value = self.now()

    def now(self) -> Any:
        """Return the current value; ABSENT if there is none."""
        raise NotImplementedError

    def same(self, now: Any) -> bool:
        """Return whether `now` is the recorded value, or an equal plain value."""
        return now is self.value or equal_atoms(now, self.value)

    def put_back(self) -> None:
        """Restore the recorded value."""
        raise NotImplementedError

    def term(self) -> tuple[str, Any]:
        """Return source text of a fast comparison of `holder` and `value`, and the object to use as `holder`.

        The text is '' if there is no fast comparison.
        """
        return "", None


class Entry(Read):
    """`holder[name]` of a dictionary: a global, or an attribute in a `__dict__`."""

    @property
    def table(self) -> dict[str, Any]:
        """The dictionary itself, for reading its version."""
        return self.holder

    def now(self) -> Any:
        return self.holder.get(self.name, ABSENT)

    def put_back(self) -> None:
        if self.value is ABSENT:
            self.holder.pop(self.name, None)
        else:
            self.holder[self.name] = self.value

    def term(self) -> tuple[str, Any]:
        name = repr(self.name)
        return f"{name} not in holder" if self.value is ABSENT else f"holder[{name}] is value", self.holder


class ClassEntry(Entry):
    """An entry in a class's own `__dict__`, base classes excluded."""

    @property
    def table(self) -> dict[str, Any]:
        return gc.get_referents(vars(self.holder))[0]  # the dictionary behind the mapping proxy

    def now(self) -> Any:
        return vars(self.holder).get(self.name, ABSENT)

    def put_back(self) -> None:
        if self.value is ABSENT:
            delattr(self.holder, self.name)
        else:
            setattr(self.holder, self.name, self.value)

    def term(self) -> tuple[str, Any]:
        return super().term()[0], vars(self.holder)


class Attribute(Read):
    """An attribute stored in the object: in `__dict__`, a slot, a closure cell, a function's code."""

    def now(self) -> Any:
        try:
            return object.__getattribute__(self.holder, self.name)
        except (AttributeError, ValueError):  # ValueError: the closure cell is empty
            return ABSENT

    def put_back(self) -> None:
        if self.value is ABSENT:
            object.__delattr__(self.holder, self.name)
        elif isinstance(self.holder, types.CellType):
            self.holder.cell_contents = self.value
        else:
            object.__setattr__(self.holder, self.name, self.value)

    def term(self) -> tuple[str, Any]:
        if self.value is ABSENT:
            return "", None
        return f"get_attribute(holder, {self.name!r}) is value", self.holder


class ClassOf(Read):
    """The class of an object. Only a weak reference is kept; a deleted object counts as unchanged."""

    def __init__(self, holder: Any, name: str, path: str):
        try:
            reference: Any = weakref.ref(holder)
        except TypeError:
            reference = functools.partial(_itself, holder)
        super().__init__(reference, name, path)

    def now(self) -> Any:
        found = self.holder()
        return self.value if found is None else type(found)

    def put_back(self) -> None:
        self.holder().__class__ = self.value

    def term(self) -> tuple[str, Any]:
        return "holder() is None or type(holder()) is value", self.holder


def _itself(value: Any) -> Any:
    return value


class Variable(Read):
    """The value of a context variable, or of an attribute of a `threading.local`, in this thread."""

    def now(self) -> Any:
        if isinstance(self.holder, contextvars.ContextVar):
            return self.holder.get(ABSENT)
        return getattr(self.holder, self.name, ABSENT)

    def put_back(self) -> None:
        if not isinstance(self.holder, threading.local):
            self.holder.set(self.value)
        elif self.value is ABSENT:
            delattr(self.holder, self.name)
        else:
            setattr(self.holder, self.name, self.value)


class Flag(Read):
    """The result of a function without arguments that returns a setting of the process."""

    def now(self) -> Any:
        return self.holder()

    def put_back(self) -> None:
        """Do nothing: the function that sets it is not known."""

    def term(self) -> tuple[str, Any]:
        return "holder() == value", self.holder


class Keys(Read):
    """The set of keys of a dictionary or of a class's own `__dict__`."""

    def now(self) -> Any:
        return set(vars(self.holder) if isinstance(self.holder, type) else self.holder)

    def same(self, now: Any) -> bool:
        return bool(now == self.value)

    def put_back(self) -> None:
        for name in self.now() - self.value:
            if isinstance(self.holder, type):
                delattr(self.holder, name)
            else:
                del self.holder[name]

    def term(self) -> tuple[str, Any]:
        table = vars(self.holder) if isinstance(self.holder, type) else self.holder
        return "holder.keys() == value", table


class SequenceItems(Read):
    """The items of a list or deque, compared by identity."""

    def now(self) -> Any:
        return tuple(self.holder)

    def same(self, now: Any) -> bool:
        return len(now) == len(self.value) and all(map(_same_item, now, self.value))

    def put_back(self) -> None:
        self.holder.clear()
        self.holder.extend(self.value)

    def term(self) -> tuple[str, Any]:
        return "same_items(holder, value)", self.holder


class Table(Read):
    """The entries of a dictionary in order, values compared by identity."""

    def __init__(self, holder: dict, name: str, path: str):
        self.version: Any = None
        super().__init__(holder, name, path)
        self.version = dict_version(holder)

    def now(self) -> Any:
        known = dict_version(self.holder) == self.version and not self._reorders()
        return self.value if known else dict(self.holder.items())

    def _reorders(self) -> bool:
        """Return whether the order may change without a new version, as in an OrderedDict."""
        return isinstance(self.holder, collections.OrderedDict) and len(self.holder) > 1

    def same(self, now: Any) -> bool:
        if now is self.value:
            return True
        same = list(now) == list(self.value) and all(map(_same_item, now.values(), self.value.values()))
        if same:
            self.version = dict_version(self.holder)
        return same

    def put_back(self) -> None:
        self.holder.clear()
        self.holder.update(self.value)
        self.version = dict_version(self.holder)

    def term(self) -> tuple[str, Any]:
        if not self.value:
            return "not holder", self.holder
        if self._reorders():
            return "", None
        return "version(holder) == noted", self.holder


class Set(Read):
    """The members of a set: plain values by equality, other objects by identity."""

    def __init__(self, holder: set, name: str, path: str):
        self.members = list(holder)
        super().__init__(holder, name, path)

    def now(self) -> Any:
        return frozenset(member if is_atom(member) else id(member) for member in self.holder)

    def same(self, now: Any) -> bool:
        return bool(now == self.value)

    def put_back(self) -> None:
        self.holder.clear()
        self.holder.update(self.members)

    def term(self) -> tuple[str, Any]:
        return ("holder == value", self.holder) if all(map(is_atom, self.members)) else ("", None)


class Bytes(Read):
    """The memory of a bytearray, `array.array` or `memoryview`."""

    def now(self) -> Any:
        return bytes(self.holder)

    def put_back(self) -> None:
        memoryview(self.holder).cast("B")[:] = self.value


class Array(Read):
    """The values of a NumPy array."""

    def __init__(self, holder: Any, name: str, path: str):
        self.copy = holder.copy()
        super().__init__(holder, name, path)

    def now(self) -> Any:
        return self.holder

    def same(self, now: Any) -> bool:
        array, before = self.holder, self.copy
        if array.dtype != before.dtype or array.shape != before.shape:
            return False
        if array.dtype == object:
            return all(map(operator.is_, array.flat, before.flat))
        return bool(np.array_equal(array, before, equal_nan=array.dtype.kind in "fc"))

    def put_back(self) -> None:
        self.holder[...] = self.copy


class HeldTensor(Read):
    """A tensor held outside of modules: its address, version counter, shape, dtype and device."""

    def __init__(self, holder: Tensor, name: str, path: str):
        small = holder.numel() <= _COPIED and holder.layout == torch.strided and holder.device.type != "meta"
        self.copy = holder.detach().clone() if small else None
        super().__init__(holder, name, path)

    def now(self) -> Any:
        t = self.holder
        place = t.data_ptr() if t.layout == torch.strided and t.device.type != "meta" else 0
        version = version_of(t)
        return place, version, t.shape, t.dtype, t.device, t.requires_grad

    def put_back(self) -> None:
        if self.copy is not None and self.copy.shape == self.holder.shape:
            with torch.no_grad():
                self.holder.detach().copy_(self.copy)
        self.value = self.now()


class State(Read):
    """The state of a random generator or an iterator, which any use advances."""

    def now(self) -> Any:
        holder = self.holder
        if isinstance(holder, random.Random):
            return holder.getstate()
        if isinstance(holder, np.random.RandomState):
            return repr(holder.get_state())
        if isinstance(holder, np.random.Generator):
            return repr(holder.bit_generator.state)
        if isinstance(holder, torch.Generator):
            return holder.get_state().numpy().tobytes()
        try:
            return repr(holder.__reduce__())
        except Exception:  # generators cannot be inspected, so any use counts as a change
            return object()

    def same(self, now: Any) -> bool:
        return now == self.value

    def put_back(self) -> None:
        """Do nothing: an additional draw does not change a result that the caller can rely on."""


def equal_atoms(one: Any, other: Any) -> bool:
    """Return whether two plain values have one type and value (0.0 is not -0.0, nan is nan)."""
    kind = type(one)
    if kind is not type(other):
        return False
    if kind is tuple:
        return len(one) == len(other) and all(map(_same_item, one, other))
    if kind in (float, complex):
        return repr(one) == repr(other)
    return kind in _ATOMIC and bool(one == other)


def is_atom(value: Any) -> bool:
    """Return whether `value` is a plain immutable value.

    Subclasses are excluded: they may have attributes.
    """
    return type(value) in _ATOMIC


def same_items(now: Sequence[Any], before: Sequence[Any]) -> bool:
    """Return whether the items are the same objects."""
    return len(now) == len(before) and all(map(operator.is_, now, before))


def _same_item(one: Any, other: Any) -> bool:
    return one is other or equal_atoms(one, other)
