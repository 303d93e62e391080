"""A guard for modules in use: their structure, hooks and tensors, and what their programs read."""

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .snapshot import Snapshot
from .tensors import TableGuard

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_TABLES = ("_modules", "_parameters", "_buffers", *_HOOKS)


class ModuleGuard:
    """Detects changes in modules: children, hooks, `training` flags, dtype, shape or device of tensors.

    `rest_on` adds what programs made from the modules have read. The values in the tensors may change.

    Attributes:
        generation: incremented whenever a tensor is replaced or its memory moves.
    """

    def __init__(self, roots: Sequence[nn.Module]):
        modules = [module for root in roots for module in root.modules()]
        self.attributes = [vars(module) for module in modules]
        self.flags = [module.training for module in modules]
        tables = [table[name] for table in self.attributes for name in _TABLES]
        self.tables = tables
        self.filled = TableGuard([table for table in tables if table])
        self.entries = [list(table.items()) for table in self.filled.tables]
        # Tables that were empty must stay empty; checked all at once with `any`.
        self.empty = [table for table in tables if not table]
        homes = [home for module in modules for home in (module._parameters, module._buffers)]
        self.homes = [home for home in homes if home]
        self.constants = [(t, n) for t in self.attributes for n, v in t.items() if isinstance(v, Tensor)]
        self.generation = 0
        self._remember(self._tensors())
        self.read = Snapshot()

    def rest_on(self, snapshot: Snapshot) -> None:
        """Also detect changes in the reads of `snapshot`."""
        self.read = self.read.joined([snapshot])

    def holds(self) -> bool:
        """Return whether nothing has changed."""
        try:
            flags = [table["training"] for table in self.attributes]
        except KeyError:
            return False
        if flags != self.flags or any(self.empty) or not self.read.holds():
            return False
        if self.filled.holds() and _looks(self.real) == self.looks and not self.constants:
            return True
        return self._compared()

    def _compared(self) -> bool:
        """Slow check, after a dictionary was written or a tensor moved: True if children and hooks are the
        same objects and all tensors have the same kind. The new state is then remembered."""
        tables = [table.get(name) for table in self.attributes for name in _TABLES]
        if not all(map(operator.is_, tables, self.tables)):
            return False
        for table, before in zip(self.filled.tables, self.entries, strict=True):
            if len(table) != len(before) or any(map(_differ, table.items(), before)):
                return False
        now = self._tensors()
        same = len(now) == len(self.tensors) and all(map(operator.is_, now, self.tensors))
        if not (same and _looks(self.real) == self.looks):
            # A tensor was replaced or moved. One of the same dtype, shape and device is accepted.
            if _kinds(now) != self.kinds:
                return False
            self._remember(now)
        self.filled.remember()
        return True

    def _remember(self, tensors: list[Any]) -> None:
        self.generation += 1
        self.tensors = tensors
        self.real = [tensor for tensor in tensors if tensor is not None]
        self.looks = _looks(self.real)
        self.kinds = _kinds(tensors)

    def _tensors(self) -> list[Any]:
        found = [tensor for home in self.homes for tensor in home.values()]
        return found + [table.get(name) for table, name in self.constants] if self.constants else found


def _differ(now: tuple[str, Any], before: tuple[str, Any]) -> bool:
    """Return whether the name, child or hook is different. Tensors are compared by `_kinds` instead."""
    value, old = now[1], before[1]
    if now[0] != before[0]:
        return True
    return value is not old and not (isinstance(value, Tensor) and isinstance(old, Tensor))


_data_ptr, _learns = Tensor.data_ptr, operator.attrgetter("requires_grad")


def _looks(tensors: list[Tensor]) -> tuple[list[int], list[bool]]:
    """Return the addresses and `requires_grad` flags; another dtype, shape or device changes the address."""
    return [*map(_data_ptr, tensors)], [*map(_learns, tensors)]


def _kinds(tensors: list[Any]) -> list[Any]:
    """Return dtype, shape, device and `requires_grad` of each tensor, and which are the same object."""
    first: dict[int, int] = {}

    def kind(i: int, t: Any) -> Any:
        if t is None or torch.nn.parameter.is_lazy(t):
            return None
        return t.dtype, t.shape, t.device, t.requires_grad, first.setdefault(id(t), i)

    return [kind(i, tensor) for i, tensor in enumerate(tensors)]
