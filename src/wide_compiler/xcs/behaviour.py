"""Classes and namespaces: do they still behave as they did? Python counts the writes to their tables, so that
asking costs next to nothing until there was one."""

import gc
import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from ..tuning.guard import TableGuard
from .pure_torch import EVAL_LAYERS, LAYERS
from .values import IMMUTABLE

_HEAP_TYPE = 1 << 9  # of a class that was made by a `class` statement: no other can be written to


class Behaviour:
    """The methods, functions and descriptors in some tables. Numbers and names there are data, not behaviour;
    entries that a namespace (not a class) gets later are nobody's yet."""

    def __init__(self, classes: Iterable[type], namespaces: Iterable[dict[str, Any]] = ()):
        self.tables = [table_of(base) for base in bases(classes)]
        self.classes = len(self.tables)
        self.tables += namespaces
        self.guard = TableGuard(self.tables)
        self.kept = [_behaving(table, i < self.classes) for i, table in enumerate(self.tables)]

    def holds(self) -> bool:
        """Is nothing replaced, added to a class, or gone?"""
        if self.guard.holds():
            return True
        guard = TableGuard(self.tables)  # before they are read: a write meanwhile must be seen the next time
        for i, (table, kept) in enumerate(zip(self.tables, self.kept, strict=True)):
            if i < self.classes and _behaving(table, True).keys() != kept.keys():
                return False
            if not all(map(operator.is_, map(table.get, kept), kept.values())):
                return False
        self.guard = guard
        return True


def bases(classes: Iterable[type]) -> list[type]:
    """The classes and all that they inherit from, each once, without those that nobody can write to."""
    found = dict.fromkeys(base for kind in classes for base in kind.__mro__)
    return [base for base in found if base.__flags__ & _HEAP_TYPE]


def table_of(kind: type) -> dict[str, Any]:
    """The dictionary of a class itself, which `__dict__` only shows."""
    return next(table for table in gc.get_referents(kind.__dict__) if type(table) is dict)


def _behaving(table: dict[str, Any], of_class: bool) -> dict[str, Any]:
    """A class may hold descriptors of any kind, a namespace anything."""
    keeps = _no_data if of_class else callable
    return {name: value for name, value in table.items() if keeps(value)}


def _no_data(value: Any) -> bool:
    return not isinstance(value, IMMUTABLE)


# As they were when this library was imported: what the analysis takes for granted.
NAMESPACES = (vars(torch.nn.functional), vars(torch), vars(nn.modules.module))
PYTORCH = Behaviour([nn.Sequential, *LAYERS, *EVAL_LAYERS], NAMESPACES)
