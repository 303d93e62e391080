"""Guards: every global, closure cell, attribute and method that a proof used, checked at each call.

A proof looks at objects along paths: a name the site reads, an attribute of it, a method of its class. Each
path is a step here. A step fetches its object from the step it hangs on and asks for the same identity
(functions, classes, modules) or the same type (data). Steps that hang on the items of a loop hold for all.
"""

import builtins
import itertools
import operator
import types
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import nn

from ..items import Blocks

Functions = Mapping[str, types.FunctionType]
LIBRARY = ("hooked", "behaves", "called")  # steps that ask of PyTorch as a whole, or of classes of modules
SMALL = 64  # containers up to this size are looked through at each call


class Guards:
    """A list of steps; `note` adds one, `hold` asks whether all are still true."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, Any, Any]] = []
        self.checks: dict[int, tuple[str, Any]] = {}
        self.vector: list[bool] = []
        self.column: list[int | None] = []  # the column of items that a step hangs on
        self._index: dict[tuple[str, int, Any], int] = {}
        self._live: dict[int | None, list[tuple[Any, ...]]] = {}  # what `hold` goes through

    def note(self, fetch: str, parent: Any, key: Any) -> int:
        """The slot of a path, new or old."""
        token = parent if isinstance(parent, (int, str)) else id(parent)
        found = self._index.get((fetch, token, key))  # type: ignore[arg-type]
        if found is not None:
            return found
        self._index[(fetch, token, key)] = len(self.steps)  # type: ignore[index]
        self.steps.append((fetch, parent, key))
        self._live.clear()
        hangs = isinstance(parent, int) and fetch not in ("item", "free")
        self.vector.append(fetch == "item" or (hangs and self.vector[parent]))
        self.column.append(key if fetch == "item" else self.column[parent] if hangs else None)
        return len(self.steps) - 1

    def expect(self, slot: int, check: str, value: Any) -> None:
        """`check` is 'is', 'type' or 'holds' (a small container of safe types)."""
        self._live.clear()
        if check == "is" or slot not in self.checks or self.checks[slot][0] == "type":
            self.checks[slot] = (check, value)

    def hold(
        self, functions: Functions, columns: Sequence[Sequence[Any]], without: int | None = None
    ) -> list[Any] | None:
        """Fetch and check every step: what they lead to, or None. Lists of items are checked by type at once.
        `without`: a column of modules that was looked at already, and PyTorch with it."""
        live = self._live.get(without)
        if live is None:
            live = self._live[without] = self._alive(without)
        seen: list[Any] = [None] * len(self.steps)
        try:
            for slot, fetch, parent, key, many, own, check, identical, kind in live:
                # At every call of a site: what is asked for most is not worth a call.
                if fetch == "item":
                    value = columns[key]
                elif fetch == "free":
                    value = functions[parent].__closure__[key].cell_contents  # type: ignore[index]
                elif fetch == "const":
                    value = parent
                elif own is None or many:
                    value = self._fetch(fetch, parent, key, many, seen, functions, columns)
                elif fetch == "field":
                    value = seen[parent].__dict__[key]
                elif fetch == "still":
                    value = seen[parent].holds()
                else:
                    value = own(seen[parent], key)
                if identical:
                    if value is not check:
                        return None
                elif not (check is None or type(value) is kind or (_all if many else _one)(check, value)):
                    return None
                seen[slot] = value
        except (LookupError, AttributeError, ValueError, TypeError):
            return None
        return seen

    def _alive(self, without: int | None) -> list[tuple[Any, ...]]:
        """The steps that are checked or lead to such, with all that `hold` asks of them."""
        wanted: set[int] = set()
        found: list[tuple[Any, ...]] = []
        for slot in reversed(range(len(self.steps))):
            fetch, parent, key = self.steps[slot]
            many, check = self.vector[slot], self.checks.get(slot)
            if without is not None and (self.column[slot] == without if many else fetch in LIBRARY):
                continue
            if check is None and slot not in wanted and fetch in ("item", "const"):
                continue  # others may fail by being fetched
            if isinstance(parent, int) and fetch not in ("item", "free"):
                wanted.add(parent)
            identical = not many and check is not None and check[0] == "is"
            expected = check[1] if check is not None and identical else check
            enough = not many and check is not None and check[0] == "type" and check[1] is not np.ndarray
            kind = check[1] if check is not None and enough else None  # which is the type of nothing
            found.append((slot, fetch, parent, key, many, FETCH.get(fetch), expected, identical, kind))
        return found[::-1]

    def values(self, functions: Functions, columns: Sequence[Sequence[Any]]) -> list[Any]:
        """What every step leads to now; a list for steps that hang on items."""
        seen: list[Any] = []
        for slot, (fetch, parent, key) in enumerate(self.steps):
            seen.append(self._fetch(fetch, parent, key, self.vector[slot], seen, functions, columns))
        return seen

    @staticmethod
    def _fetch(
        fetch: str, parent: Any, key: Any, many: bool, seen: list, functions: Functions, columns: Any
    ) -> Any:
        if fetch == "free":
            return functions[parent].__closure__[key].cell_contents  # type: ignore[index]
        if fetch == "item":
            return columns[key]
        if fetch == "global":
            return lookup_global(parent, key)
        if fetch == "const":
            return parent
        held = seen[parent]
        if not many:
            return FETCH[fetch](held, key)
        return MANY[fetch](held, key) if fetch in MANY else [FETCH[fetch](h, key) for h in held]


def lookup_global(namespace: dict[str, Any], name: str) -> Any:
    found = namespace.get(name, FETCH)  # which is nobody's global
    return found if found is not FETCH else getattr(builtins, name)


def static_lookup(kind: type, name: str) -> Any:
    """A class attribute as it lies in the class, without running descriptors."""
    for base in kind.__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    raise AttributeError(name)


def _submodule(held: Any, key: tuple[str, str]) -> Any:
    return held.__dict__[key[0]][key[1]]


# The way from a call of a module to its forward.
_CALLING = ("__call__", "_wrapped_call_impl", "_compiled_call_impl", "_call_impl", "_slow_forward")
_calling = operator.attrgetter(*_CALLING, "__getattribute__")
_AS_PYTORCH = _calling(nn.Module)


def called_plainly(kind: Any, key: None) -> Any:
    """How such a module finds attributes, if calls of it come to its forward as PyTorch has it; else None."""
    return kind.__getattr__ if all(map(operator.is_, _calling(kind), _AS_PYTORCH)) else None


def bare(module: Any, key: None) -> bool:
    """A module of PyTorch without hooks, and without a forward or a way to it put on the object itself."""
    own = module.__dict__
    hooks = (
        own.get("_forward_hooks", True)  # nn.Module.__init__ may not have run yet
        or own["_forward_pre_hooks"]
        or own["_backward_hooks"]
        or own["_backward_pre_hooks"]
    )
    return not (
        hooks
        or "forward" in own
        or "_call_impl" in own
        or "_compiled_call_impl" in own
        or "_slow_forward" in own
        or "_wrapped_call_impl" in own
    )


_read: Any = object.__getattribute__  # past `__getattr__`, which is the user's


def own_fields(objects: Sequence[Any], name: str) -> list[Any]:
    """A field of each object, read as it is. Asked for `__dict__`, objects would be slower for everybody from
    then on: Python makes a dictionary for each, and keeps it."""
    return list(map(_read, objects, itertools.repeat(name)))


READ_WITHOUT_CODE = (types.FunctionType, staticmethod)


def have_own(objects: Sequence[Any], name: str) -> list[bool]:
    """Has each object a field of that name, which comes before what its class has?"""
    try:
        found = static_lookup(type(objects[0]), name)
        if hasattr(type(found), "__get__") and not isinstance(found, READ_WITHOUT_CODE):
            raise AttributeError(name)  # a read would run it: a `cached_property`, say
        reads = own_fields(objects, name)
    except AttributeError:
        return [name in held.__dict__ for held in objects]
    if isinstance(found, types.FunctionType):
        return [
            type(read) is not types.MethodType or read.__func__ is not found or read.__self__ is not held
            for read, held in zip(reads, objects, strict=True)
        ]
    shared = found.__func__ if isinstance(found, staticmethod) else found
    return [read is not shared for read in reads]


def _on_classes(kinds: list[type], name: str) -> list[Any]:
    if kinds.count(kinds[0]) == len(kinds):
        return [static_lookup(kinds[0], name)] * len(kinds)
    return [static_lookup(kind, name) for kind in kinds]


# The same for all items at once, where that is another way. Their classes are known to be plain there.
MANY: dict[str, Any] = {
    "field": own_fields,
    "absent": have_own,
    "class": lambda objects, key: _on_classes(list(map(type, objects)), key),
    "getattr": lambda objects, key: list(map(getattr, objects, itertools.repeat(key))),
}
FETCH: dict[str, Any] = {
    "field": lambda held, key: held.__dict__[key],
    "covering": lambda held, key: held.__dict__[key],
    "absent": lambda held, key: key in held.__dict__,
    "module": _submodule,
    "bare": bare,
    "called": called_plainly,
    "behaves": lambda held, key: held.holds(),
    "still": lambda held, key: held.holds(),
    "hooked": lambda held, key: held(),
    "getattr": getattr,
    "class": lambda held, key: static_lookup(type(held), key),
    "own": static_lookup,
    "code": lambda held, key: held.__code__,
    "cell": lambda held, key: held.__closure__[key].cell_contents,
    "defaults": lambda held, key: (held.__defaults__ or ())[key],
    "kwdefaults": lambda held, key: (held.__kwdefaults__ or {})[key],
    "index": lambda held, key: held[key],
    "length": lambda held, key: len(held),
}


def _one(check: tuple[str, Any], value: Any) -> bool:
    kind, expected = check
    if kind == "is":
        return value is expected
    if kind == "holds":
        return type(value) is expected[0] and held_types(value) <= expected[1]
    if type(value) is not expected:
        return False
    return expected is not np.ndarray or not value.dtype.hasobject


def _all(check: tuple[str, Any], values: Sequence[Any]) -> bool:
    kind, expected = check
    if kind == "type":
        if type(values) is np.ndarray:  # a row of an array, or a number of NumPy
            return not values.dtype.hasobject and (
                expected is np.ndarray if values.ndim > 1 else expected is values.dtype.type
            )
        if type(values) is range:
            return expected is int
        if type(values) is Blocks:  # rows made by a site just now
            return expected is np.ndarray
        if not isinstance(values, (list, tuple)):  # a tensor
            return type(values) is expected
        return list(map(type, values)).count(expected) == len(values)
    if kind == "is":
        return all(map(operator.is_, values, itertools.repeat(expected)))
    return all(_one(check, value) for value in values)


def held_types(container: Any) -> frozenset[Any]:
    """Types of what a small container holds, keys too; a large one holds 'anything'."""
    if len(container) > SMALL:
        return frozenset(["anything"])
    kinds: set[Any] = set(map(type, container.values() if type(container) is dict else container))
    if type(container) is dict:
        kinds |= {("key", kind) for kind in map(type, container)}
    if any(type(c) is np.ndarray and c.dtype.hasobject for c in container):
        kinds.add("anything")
    return frozenset(kinds)
