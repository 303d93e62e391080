"""Classes and namespaces: are they what they were? Python counts the writes to their tables, so that asking
costs next to nothing until there was one."""

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

# How modules are made, stored and shown, which no call of one comes to: torch.compile replaces the first two.
MAKING = {"__init__", "__setstate__", "__getstate__", "__new__", "__repr__", "register_parameter"}
MISSING = object()
_HEAP_TYPE = 1 << 9  # of a class that was made by a `class` statement: no other can be written to


def bases(classes: Iterable[type]) -> list[type]:
    """The classes and all that they inherit from, each once, without those that nobody can write to."""
    found = dict.fromkeys(base for kind in classes for base in kind.__mro__)
    return [base for base in found if base.__flags__ & _HEAP_TYPE]


def table_of(kind: type) -> dict[str, Any]:
    """The dictionary of a class itself, which `__dict__` only shows."""
    return next(table for table in gc.get_referents(kind.__dict__) if type(table) is dict)


def on_class(kind: type, name: str) -> Any:
    """What lies in a class or one it inherits from, without running descriptors; or `MISSING`."""
    return _first_of(kind.__mro__, name)


def _first_of(classes: Iterable[type], name: str) -> Any:
    return next((kind.__dict__[name] for kind in classes if name in kind.__dict__), MISSING)


def takes_writes(found: Any) -> bool:
    """Does it come before an object's own field of its name, as a property does?"""
    return hasattr(type(found), "__set__") or hasattr(type(found), "__delete__")


class Tables:
    """Some tables; `check` says whether what is wanted of them is still so, asked only after a write."""

    def __init__(self, tables: list[dict[str, Any]]):
        self.tables = tables
        self.guard = TableGuard(tables)

    def holds(self) -> bool:
        if self.guard.holds():
            return True
        guard = TableGuard(self.tables)  # before they are read: a write meanwhile must be seen the next time
        if not self.check():
            return False
        self.guard = guard
        return True

    def check(self) -> bool:
        raise NotImplementedError


class Fields(Tables):
    """What a class has of certain names, which must stay what it is: an object's own field is what a read of
    it gives, unless the class has a descriptor of that name, or reads in a way of its own."""

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
    """The methods, functions and descriptors in some tables, as far as a call of a module may come to them.
    Numbers and names there are data, not behaviour; entries that come later count if they hide others.

    Args:
        names: what else later entries would hide, in classes that nobody can write to.
    """

    def __init__(
        self, classes: Iterable[type], namespaces: Iterable[dict[str, Any]] = (), names: Iterable[str] = ()
    ):
        self.classes = bases(classes)
        super().__init__([*map(table_of, self.classes), *namespaces])
        self.kept = [_behaving(table, i < len(self.classes)) for i, table in enumerate(self.tables)]
        self.names = set(names).union(*self.kept[: len(self.classes)])

    def check(self) -> bool:
        """Is nothing replaced, hidden or gone?"""
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
        """Does a new entry of a class change what a call comes to? Python itself keeps notes in classes, such
        as `__slotnames__`; an inherited function that was replaced and put back lies there from then on."""
        if value is _first_of(kind.__mro__[1:], name) or any(value is own for own in HARMLESS):
            return False
        special = name.startswith("__") and (callable(value) or hasattr(value, "__get__"))
        return name in self.names or special


def _behaving(table: dict[str, Any], of_class: bool) -> dict[str, Any]:
    """A class may hold descriptors of any kind, a namespace anything. Of `torch` only the operators count: no
    layer calls what else is there, such as `torch.compile`, which others replace."""
    if of_class:
        return {n: v for n, v in table.items() if not isinstance(v, IMMUTABLE) and n not in MAKING}
    if table is vars(torch):
        return {n: v for n, v in table.items() if isinstance(v, types.BuiltinFunctionType)}
    return {n: v for n, v in table.items() if callable(v)}


# As they were when this library was imported: what the analysis takes for granted.
NAMESPACES = (vars(torch.nn.functional), vars(torch), vars(nn.modules.module))
PYTORCH = Behaviour([nn.Sequential, *LAYERS, *EVAL_LAYERS], NAMESPACES)
TENSORS = Behaviour([torch.Tensor], names=dir(torch._C.TensorBase))


def modules_are_plain() -> bool:
    """Is PyTorch as it was, and does no hook see all modules?"""
    return PYTORCH.holds() and not foreign_hooks()
