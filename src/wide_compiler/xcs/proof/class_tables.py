"""Guards for classes and namespaces. They compare dictionary versions, so a check is cheap until a write."""

import gc
import types
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from ...global_hooks import HARMLESS, foreign_hooks
from ...guards.tensors import TableGuard
from .kinds import IMMUTABLE
from .torch_tables import EVAL_LAYERS, LAYERS

# Entries for creation, pickling and printing of modules, which calls do not use; torch.compile replaces some.
MAKING = {"__init__", "__setstate__", "__getstate__", "__new__", "__repr__", "register_parameter"}
MISSING = object()
_HEAP_TYPE = 1 << 9  # flag of classes made by a `class` statement; other classes cannot be changed


def bases(classes: Iterable[type]) -> list[type]:
    """Return the classes and their bases, each once, without classes that cannot be changed."""
    found = dict.fromkeys(base for kind in classes for base in kind.__mro__)
    return [base for base in found if base.__flags__ & _HEAP_TYPE]


def table_of(kind: type) -> dict[str, Any]:
    """Return the dictionary behind a class's `__dict__`, which is a read-only view."""
    return next(table for table in gc.get_referents(kind.__dict__) if type(table) is dict)


def on_class(kind: type, name: str) -> Any:
    """Return a class attribute, own or inherited, without running descriptors; or `MISSING`."""
    return _first_of(kind.__mro__, name)


def _first_of(classes: Iterable[type], name: str) -> Any:
    return next((kind.__dict__[name] for kind in classes if name in kind.__dict__), MISSING)


def takes_writes(found: Any) -> bool:
    """Return whether it is a data descriptor (a property, say), which precedes instance fields."""
    return hasattr(type(found), "__set__") or hasattr(type(found), "__delete__")


class Tables:
    """Guards dictionaries by version. After a write, `check` decides whether it matters."""

    def __init__(self, tables: list[dict[str, Any]]):
        self.tables = tables
        self.guard = TableGuard(tables)

    def holds(self) -> bool:
        if self.guard.holds():
            return True
        # Taken before the check, so that a concurrent write is noticed next time.
        guard = TableGuard(self.tables)
        if not self.check():
            return False
        self.guard = guard
        return True

    def check(self) -> bool:
        raise NotImplementedError


class Fields(Tables):
    """Guards class attributes of certain names, so that reading a field of an instance keeps its meaning.

    An instance's own field is used unless the class has a data descriptor of that name or a
    `__getattribute__`.
    """

    def __init__(self, kind: type, *names: str):
        super().__init__([table_of(base) for base in bases([kind])])
        self.kind, self.mro = kind, kind.__mro__
        self.fixed: dict[str, Any] = {}
        self.fix("__getattribute__", *names)

    def fix(self, *names: str) -> None:
        self.fixed |= {name: on_class(self.kind, name) for name in names}

    def holds(self) -> bool:
        return self.kind.__mro__ is self.mro and super().holds()

    def check(self) -> bool:
        return all(on_class(self.kind, name) is had for name, had in self.fixed.items())


class Behaviour(Tables):
    """Guards the methods, functions and descriptors in classes and namespaces that a module call may use.

    Constants are ignored. New entries count if they hide existing ones.

    Args:
        classes: the classes, with their bases.
        namespaces: further dictionaries.
        names: names in unchangeable classes that new entries could hide.
    """

    def __init__(
        self, classes: Iterable[type], namespaces: Iterable[dict[str, Any]] = (), names: Iterable[str] = ()
    ):
        self.classes = bases(classes)
        super().__init__([*map(table_of, self.classes), *namespaces])
        self.kept = [_behaving(table, i < len(self.classes)) for i, table in enumerate(self.tables)]
        self.names = set(names).union(*self.kept[: len(self.classes)])

    def check(self) -> bool:
        """Return whether nothing was replaced, hidden or removed."""
        if any(t.get(n) is not had for t, kept in zip(self.tables, self.kept, strict=True)
               for n, had in kept.items()):  # fmt: skip
            return False
        return not any(
            self._hides(kind, name, value)
            for kind, table, kept in zip(self.classes, self.tables, self.kept, strict=False)
            for name, value in _behaving(table, True).items()
            if name not in kept
        )

    def _hides(self, kind: type, name: str, value: Any) -> bool:
        """Return whether a new class entry changes what a call uses.

        Harmless are caches of Python itself, such as `__slotnames__`, and an inherited function that was
        patched and restored, which then lies in the subclass.
        """
        if value is _first_of(kind.__mro__[1:], name) or any(value is own for own in HARMLESS):
            return False
        special = name.startswith("__") and (callable(value) or hasattr(value, "__get__"))
        return name in self.names or special


def _behaving(table: dict[str, Any], of_class: bool) -> dict[str, Any]:
    """Return the entries that affect behaviour.

    Of `torch` itself only the operators count: layers do not use other entries, such as `torch.compile`.
    """
    if of_class:
        return {n: v for n, v in table.items() if not isinstance(v, IMMUTABLE) and n not in MAKING}
    if table is vars(torch):
        return {n: v for n, v in table.items() if isinstance(v, types.BuiltinFunctionType)}
    return {n: v for n, v in table.items() if callable(v)}


# Recorded when this library is imported; the analysis assumes this state.
NAMESPACES = (vars(torch.nn.functional), vars(torch), vars(nn.modules.module))
PYTORCH = Behaviour([nn.Sequential, *LAYERS, *EVAL_LAYERS], NAMESPACES)
TENSORS = Behaviour([torch.Tensor], names=dir(torch._C.TensorBase))


PATCHED = "a class or function of PyTorch was patched after wide_compiler was imported"


def modules_are_plain() -> bool:
    """Return whether PyTorch is unpatched and has no global module hooks."""
    return PYTORCH.holds() and not foreign_hooks()
