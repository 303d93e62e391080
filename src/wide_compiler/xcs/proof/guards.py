"""Guards: every global, closure cell, attribute and method that a proof used, checked at each call.

A proof follows paths from names that the site reads: an attribute, a method of the class, and so on. Each
step of a path has a slot here. It fetches an object from its parent's object, which must have the same
identity (functions, classes, modules) or the same type (data) as before. Steps below the items of a loop are
checked for all items. All steps are compiled into one generated function.
"""

import builtins
import itertools
import operator
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import nn

from .class_tables import MISSING, modules_are_plain, on_class

Functions = Mapping[str, types.FunctionType]
SMALL = 64  # larger containers are not checked item by item
# Source text that fetches a step's object: from the parent's object {p} by a key {k}, or for a root from {o}.
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
    "covering": "{p}.__dict__[{k}]",  # used if the class has an attribute of that name too
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
MANY = {  # variants for all items at once
    "field": "own_fields({p}, {k})",
    "absent": "have_own({p}, {k})",
    "class": "[static_lookup(type({p}[0]), {k})] * len({p})",  # all items have one type
    "getattr": "list(map(getattr, {p}, repeat({k})))",
}
OF_MODULES = ("modules", "called")  # checks of PyTorch itself or of module classes
GONE = (LookupError, AttributeError, ValueError, TypeError)


class Guards:
    """A list of steps: `note` adds one, `hold` checks all.

    Attributes:
        steps: (how to fetch, parent, key) by slot.
        checks: ('is', 'type' or 'holds', expected value) by slot.
        vector: by slot, True if a step has one object per item.
        column: by slot, the column of items it belongs to, or None.
    """

    def __init__(self) -> None:
        self.steps: list[tuple[str, Any, Any]] = []
        self.checks: dict[int, tuple[str, Any]] = {}
        self.vector: list[bool] = []
        self.column: list[int | None] = []
        self._index: dict[tuple[Any, ...], int] = {}
        self._checkers: dict[int | None, Callable[..., list[Any] | None]] = {}

    def note(self, fetch: str, parent: Any, key: Any = None) -> int:
        """Return the slot of a step, which is added if it is new.

        Args:
            fetch: a key of `ROOTS` or `FETCH`.
            parent: the parent's slot, or what a root starts from.
            key: the name or index to fetch.
        """
        token = (fetch, parent if isinstance(parent, (int, str)) else id(parent), key)
        if token not in self._index:
            self._index[token] = len(self.steps)
            self.steps.append((fetch, parent, key))
            self.column.append(key if fetch == "item" else None if fetch in ROOTS else self.column[parent])
            self.vector.append(self.column[-1] is not None)
            self._checkers.clear()
        return self._index[token]

    def expect(self, slot: int, check: str, value: Any) -> None:
        """Set the check of a slot: 'is', 'type' or 'holds' (the types in a small container)."""
        self._checkers.clear()
        if check == "is" or slot not in self.checks or self.checks[slot][0] == "type":
            self.checks[slot] = (check, value)

    def require(self, value: Any, fetch: str, parent: Any, key: Any = None) -> int:
        """Return the slot of a step that must lead to this object."""
        slot = self.note(fetch, parent, key)
        self.expect(slot, "is", value)
        return slot

    def hold(self, functions: Functions, columns: Any, without: int | None = None) -> list[Any] | None:
        """Return the objects of all steps, or None if a check fails.

        Args:
            functions: the site's functions by role.
            columns: the columns of items.
            without: a column of modules to skip, with the checks of PyTorch, because they were checked
                already.
        """
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
                if how == "is" and not many:  # inline tests for the two most frequent checks
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
    """Return a class attribute without running descriptors. Raises AttributeError."""
    found = on_class(kind, name)
    if found is MISSING:
        raise AttributeError(name)
    return found


# The functions between the call of a module and its forward.
_CALLING = ("__call__", "_wrapped_call_impl", "_compiled_call_impl", "_call_impl", "_slow_forward")
_calling = operator.attrgetter(*_CALLING, "__getattribute__")
_AS_PYTORCH = _calling(nn.Module)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_OWN_WAYS = frozenset({"forward", *_CALLING[1:]})


def called_plainly(kind: Any) -> Any:
    """Return the class's `__getattr__` if calls of such modules reach forward as in nn.Module; else None."""
    return kind.__getattr__ if all(map(operator.is_, _calling(kind), _AS_PYTORCH)) else None


def bare(module: Any) -> bool:
    """Return whether a module has no hooks, and no `forward` or call functions set on the instance."""
    own = module.__dict__
    return _OWN_WAYS.isdisjoint(own) and not any(own.get(hooks, True) for hooks in _HOOKS)


_has_objects = operator.attrgetter("dtype.hasobject")
_read: Any = object.__getattribute__  # bypasses a user's `__getattr__`


def own_fields(objects: Sequence[Any], name: str) -> list[Any]:
    """Return a field of each object.

    Reading `__dict__` instead would create a dictionary for each object, which makes the objects slower from
    then on.
    """
    return list(map(_read, objects, itertools.repeat(name)))


def have_own(objects: Sequence[Any], name: str) -> list[bool]:
    """Return for each object whether it has a field of that name that hides the class's attribute."""
    found = on_class(type(objects[0]), name)
    method, fixed = isinstance(found, types.FunctionType), isinstance(found, staticmethod)
    if found is MISSING or (hasattr(type(found), "__get__") and not method and not fixed):
        # Reading it would run a descriptor such as `cached_property`.
        return [name in held.__dict__ for held in objects]
    shared, reads = found.__func__ if fixed else found, own_fields(objects, name)
    return [
        (read.__func__ is not found or read.__self__ is not held)
        if method and type(read) is types.MethodType
        else read is not shared
        for read, held in zip(reads, objects, strict=True)
    ]


def is_as(how: str, expected: Any, value: Any) -> bool:
    """Return whether an object passes a check."""
    if how == "is":
        return value is expected
    if how == "holds":
        return type(value) is expected[0] and held_types(value) <= expected[1]
    return type(value) is expected and (expected is not np.ndarray or not value.dtype.hasobject)


def all_are(how: str, expected: Any, values: Any) -> bool:
    """Return whether all items pass a check."""
    if how == "is":
        return all(map(operator.is_, values, itertools.repeat(expected)))
    if how == "holds":
        return all(is_as(how, expected, value) for value in values)
    if type(values) is np.ndarray:  # the items are rows or NumPy scalars
        kind = np.ndarray if values.ndim > 1 else values.dtype.type
        return not values.dtype.hasobject and expected is kind
    if type(values) is range:
        return expected is int
    if not isinstance(values, (list, tuple)):
        return type(values) is expected
    if list(map(type, values)).count(expected) != len(values):
        return False
    return expected is not np.ndarray or not any(map(_has_objects, values))


def held_types(container: Any) -> frozenset[Any]:
    """Return the types in a small container, keys included; {'anything'} for a large one."""
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
