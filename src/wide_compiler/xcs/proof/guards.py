"""Guards: every global, closure cell, attribute and method that a proof used, checked at each call.

A proof looks at objects along paths: a name the site reads, an attribute of it, a method of its class. Each
path is a step here. A step fetches its object from the step it hangs on and asks for the same identity
(functions, classes, modules) or the same type (data). Steps that hang on the items of a loop hold for all.
All steps are one generated function, a line or two for each.
"""

import builtins
import itertools
import operator
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import nn

from ..items import Blocks
from .class_tables import MISSING, modules_are_plain, on_class

Functions = Mapping[str, types.FunctionType]
SMALL = 64  # containers up to this size are looked through at each call
# How a step fetches its object: from another one's object {p}, by a key {k}; a root from {o}.
ROOTS = {
    "free": "functions[{o}].__closure__[{k}].cell_contents",
    "item": "columns[{k}]",
    "const": "{o}",
    "global": "lookup_global({o}, {k})",
    "modules": "modules_are_plain()",
    "called": "called_plainly({o})",
}
FETCH = {
    "field": "{p}.__dict__[{k}]",
    "covering": "{p}.__dict__[{k}]",  # where the class has something of that name too
    "absent": "{k} in {p}.__dict__",
    "module": "{p}.__dict__[{k}[0]][{k}[1]]",
    "bare": "bare({p})",
    "still": "{p}.holds()",
    "getattr": "getattr({p}, {k})",
    "class": "static_lookup(type({p}), {k})",
    "own": "static_lookup({p}, {k})",
    "cell": "{p}.__closure__[{k}].cell_contents",
    "defaults": "({p}.__defaults__ or ())[{k}]",
    "kwdefaults": "{p}.__kwdefaults__[{k}]",
    "index": "{p}[{k}]",
    "length": "len({p})",
}
MANY = {  # for all items at once
    "field": "own_fields({p}, {k})",
    "absent": "have_own({p}, {k})",
    "class": "[static_lookup(type({p}[0]), {k})] * len({p})",  # they are of one type
    "getattr": "list(map(getattr, {p}, repeat({k})))",
}
OF_MODULES = ("modules", "called")  # asked of PyTorch as a whole, or of classes of modules
GONE = (LookupError, AttributeError, ValueError, TypeError)


class Guards:
    """A list of steps; `note` adds one, `hold` asks whether all are still true."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, Any, Any]] = []
        self.checks: dict[int, tuple[str, Any]] = {}
        self.vector: list[bool] = []  # does a step lead to one object for each item?
        self.column: list[int | None] = []  # the column of items that it hangs on then
        self._index: dict[tuple[Any, ...], int] = {}
        self._checkers: dict[int | None, Callable[..., list[Any] | None]] = {}

    def note(self, fetch: str, parent: Any, key: Any = None) -> int:
        """The slot of a path, new or old. parent: a slot, or what a root starts from."""
        token = (fetch, parent if isinstance(parent, (int, str)) else id(parent), key)
        if token not in self._index:
            self._index[token] = len(self.steps)
            self.steps.append((fetch, parent, key))
            self.column.append(key if fetch == "item" else None if fetch in ROOTS else self.column[parent])
            self.vector.append(self.column[-1] is not None)
            self._checkers.clear()
        return self._index[token]

    def expect(self, slot: int, check: str, value: Any) -> None:
        """`check` is 'is', 'type' or 'holds' (a small container of safe types)."""
        self._checkers.clear()
        if check == "is" or slot not in self.checks or self.checks[slot][0] == "type":
            self.checks[slot] = (check, value)

    def require(self, value: Any, fetch: str, parent: Any, key: Any = None) -> int:
        """The slot of a path that must lead to this very object."""
        slot = self.note(fetch, parent, key)
        self.expect(slot, "is", value)
        return slot

    def hold(self, functions: Functions, columns: Any, without: int | None = None) -> list[Any] | None:
        """What all steps lead to, or None if one of them is not what it was. `without`: a column of modules
        that was looked at already, and PyTorch with it."""
        checker = self._checkers.get(without)
        if checker is None:
            checker = self._checkers[without] = self._compiled(without)
        try:
            return checker(functions, columns)
        except GONE:
            return None

    def _compiled(self, without: int | None) -> Callable[..., list[Any] | None]:
        world: dict[str, Any] = dict(_WORLD)
        lines = ["def hold(functions, columns):"]
        for slot, (fetch, parent, key) in enumerate(self.steps):
            many = self.vector[slot]
            skipped = without is not None and (self.column[slot] == without if many else fetch in OF_MODULES)
            lines.append(f" s{slot} = {'None' if skipped else self._fetched(slot, fetch, parent)}")
            world |= {f"k{slot}": key, f"o{slot}": parent}
            if slot in self.checks and not skipped:
                how, expected = self.checks[slot]
                world[f"v{slot}"] = expected
                test = f"not {'all_are' if many else 'is_as'}({how!r}, v{slot}, s{slot})"
                if how == "is" and not many:  # the two that are asked most often, without a call
                    test = f"s{slot} is not v{slot}"
                elif how == "type" and not many and expected is not np.ndarray:
                    test = f"type(s{slot}) is not v{slot}"
                lines.append(f" if {test}: return None")
        lines.append(f" return [{', '.join(f's{slot}' for slot in range(len(self.steps)))}]")
        exec(compile("\n".join(lines), "<guards>", "exec"), world)
        return world["hold"]

    def _fetched(self, slot: int, fetch: str, parent: Any) -> str:
        names = {"k": f"k{slot}", "o": f"o{slot}"}
        if fetch in ROOTS:
            return ROOTS[fetch].format(**names)
        if not self.vector[slot] or fetch in MANY:
            return (MANY if self.vector[slot] else FETCH)[fetch].format(p=f"s{parent}", **names)
        return f"[{FETCH[fetch].format(p='one', **names)} for one in s{parent}]"


def lookup_global(namespace: dict[str, Any], name: str) -> Any:
    found = namespace.get(name, MISSING)
    return found if found is not MISSING else getattr(builtins, name)


def static_lookup(kind: type, name: str) -> Any:
    """A class attribute as it lies in the class, without running descriptors."""
    found = on_class(kind, name)
    if found is MISSING:
        raise AttributeError(name)
    return found


# The way from a call of a module to its forward.
_CALLING = ("__call__", "_wrapped_call_impl", "_compiled_call_impl", "_call_impl", "_slow_forward")
_calling = operator.attrgetter(*_CALLING, "__getattribute__")
_AS_PYTORCH = _calling(nn.Module)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_OWN_WAYS = frozenset({"forward", *_CALLING[1:]})


def called_plainly(kind: Any) -> Any:
    """How such a module finds attributes, if calls of it come to its forward as PyTorch has it; else None."""
    return kind.__getattr__ if all(map(operator.is_, _calling(kind), _AS_PYTORCH)) else None


def bare(module: Any) -> bool:
    """A module of PyTorch without hooks, and without a forward or a way to it put on the object itself."""
    own = module.__dict__
    return _OWN_WAYS.isdisjoint(own) and not any(own.get(hooks, True) for hooks in _HOOKS)


_has_objects = operator.attrgetter("dtype.hasobject")
_read: Any = object.__getattribute__  # past `__getattr__`, which is the user's


def own_fields(objects: Sequence[Any], name: str) -> list[Any]:
    """A field of each object, read as it is. Asked for `__dict__`, objects would be slower for everybody from
    then on: Python makes a dictionary for each, and keeps it."""
    return list(map(_read, objects, itertools.repeat(name)))


def have_own(objects: Sequence[Any], name: str) -> list[bool]:
    """Has each object a field of that name, which comes before what its class has?"""
    found = on_class(type(objects[0]), name)
    method, fixed = isinstance(found, types.FunctionType), isinstance(found, staticmethod)
    if found is MISSING or (hasattr(type(found), "__get__") and not method and not fixed):
        return [name in held.__dict__ for held in objects]  # a read would run it: a `cached_property`, say
    shared, reads = found.__func__ if fixed else found, own_fields(objects, name)
    return [
        (read.__func__ is not found or read.__self__ is not held)
        if method and type(read) is types.MethodType
        else read is not shared
        for read, held in zip(reads, objects, strict=True)
    ]


def is_as(how: str, expected: Any, value: Any) -> bool:
    """One object: is it as expected?"""
    if how == "is":
        return value is expected
    if how == "holds":
        return type(value) is expected[0] and held_types(value) <= expected[1]
    return type(value) is expected and (expected is not np.ndarray or not value.dtype.hasobject)


def all_are(how: str, expected: Any, values: Any) -> bool:
    """One object for each item: are all as expected?"""
    if how == "is":
        return all(map(operator.is_, values, itertools.repeat(expected)))
    if how == "holds":
        return all(is_as(how, expected, value) for value in values)
    if type(values) is np.ndarray:  # a row of an array, or a number of NumPy
        kind = np.ndarray if values.ndim > 1 else values.dtype.type
        return not values.dtype.hasobject and expected is kind
    if type(values) in (range, Blocks):  # Blocks: rows made by a site just now
        return expected is (int if type(values) is range else np.ndarray)
    if not isinstance(values, (list, tuple)):  # a tensor
        return type(values) is expected
    if list(map(type, values)).count(expected) != len(values):
        return False
    return expected is not np.ndarray or not any(map(_has_objects, values))


def held_types(container: Any) -> frozenset[Any]:
    """Types of what a small container holds, keys too; a large one holds 'anything'."""
    if len(container) > SMALL:
        return frozenset(["anything"])
    values = container.values() if type(container) is dict else container
    kinds: set[Any] = set(map(type, values))
    if type(container) is dict:
        kinds |= {("key", kind) for kind in map(type, container)}
    if any(type(c) is np.ndarray and c.dtype.hasobject for c in values):
        kinds.add("anything")
    return frozenset(kinds)


_WORLD: dict[str, Any] = {"repeat": itertools.repeat} | {
    helper.__name__: helper
    for helper in (lookup_global, static_lookup, modules_are_plain, called_plainly, bare, own_fields,
                   have_own, is_as, all_are)
}  # fmt: skip
