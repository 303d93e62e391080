"""Classes and namespaces: do they still behave as they did? Python counts the writes to their tables, so that
asking costs next to nothing until there was one."""

import gc
import operator
import types
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from ...guards.tensors import TableGuard
from .kinds import IMMUTABLE
from .pure_torch import EVAL_LAYERS, LAYERS

# How modules are made, stored and shown, which no call of one comes to: torch.compile replaces the first two.
MAKING = {"__init__", "__setstate__", "__getstate__", "__new__", "__repr__", "register_parameter"}
_HEAP_TYPE = 1 << 9  # of a class that was made by a `class` statement: no other can be written to


class Behaviour:
    """The methods, functions and descriptors in some tables, as far as a call of a module may come to them.
    Numbers and names there are data, not behaviour; entries that come later count if they hide others.
    names: of what else they would hide, in classes that nobody can write to."""

    def __init__(
        self,
        classes: Iterable[type],
        namespaces: Iterable[dict[str, Any]] = (),
        names: Iterable[str] = (),
    ):
        self.tables = [table_of(base) for base in bases(classes)]
        self.classes = len(self.tables)
        self.tables += namespaces
        self.guard = TableGuard(self.tables)
        self.kept = [_behaving(table, i < self.classes) for i, table in enumerate(self.tables)]
        self.names = set(names).union(*self.kept[: self.classes])

    def holds(self) -> bool:
        """Is nothing replaced, hidden or gone?"""
        if self.guard.holds():
            return True
        guard = TableGuard(self.tables)  # before they are read: a write meanwhile must be seen the next time
        for i, (table, kept) in enumerate(zip(self.tables, self.kept, strict=True)):
            later = _behaving(table, True).keys() - kept.keys() if i < self.classes else ()
            if any(self._hides(name, table[name]) for name in later):
                return False
            if not all(map(operator.is_, map(table.get, kept), kept.values())):
                return False
        self.guard = guard
        return True

    def _hides(self, name: str, value: Any) -> bool:
        """Python itself keeps notes in classes, such as `__slotnames__` when an object is copied."""
        return name in self.names or (
            name.startswith("__") and (callable(value) or hasattr(value, "__get__"))
        )


def bases(classes: Iterable[type]) -> list[type]:
    """The classes and all that they inherit from, each once, without those that nobody can write to."""
    found = dict.fromkeys(base for kind in classes for base in kind.__mro__)
    return [base for base in found if base.__flags__ & _HEAP_TYPE]


def table_of(kind: type) -> dict[str, Any]:
    """The dictionary of a class itself, which `__dict__` only shows."""
    return next(table for table in gc.get_referents(kind.__dict__) if type(table) is dict)


def _behaving(table: dict[str, Any], of_class: bool) -> dict[str, Any]:
    """A class may hold descriptors of any kind, a namespace anything. Of `torch` only the operators count: no
    layer calls what else is there, such as `torch.compile`, which others replace."""
    if of_class:
        return {name: value for name, value in table.items() if _no_data(value) and name not in MAKING}
    if table is vars(torch):
        return {name: value for name, value in table.items() if isinstance(value, types.BuiltinFunctionType)}
    return {name: value for name, value in table.items() if callable(value)}


def _no_data(value: Any) -> bool:
    return not isinstance(value, IMMUTABLE)


# As they were when this library was imported: what the analysis takes for granted.
NAMESPACES = (vars(torch.nn.functional), vars(torch), vars(nn.modules.module))
PYTORCH = Behaviour([nn.Sequential, *LAYERS, *EVAL_LAYERS], NAMESPACES)
TENSORS = Behaviour([torch.Tensor], names=dir(torch._C.TensorBase))
