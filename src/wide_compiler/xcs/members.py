"""The members of a wide model: are they still what they were when it was made of them?

A few passes in C over all modules at once: looking must cost less than what one wide call saves.
"""

import itertools
import operator
import types
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..tuning.guard import TableGuard, TensorGuard
from .values import IMMUTABLE
from .work import Bail

FIXED = (*IMMUTABLE, types.FunctionType, types.BuiltinFunctionType, type, types.ModuleType)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
TABLES = ("_parameters", "_buffers", "_modules")
_parts = operator.itemgetter(*HOOKS, *TABLES)
_version = operator.attrgetter("_version")
_flat = itertools.chain.from_iterable


class Members:
    """What distinct modules held: their classes, submodules, plain attributes, and the numbers of their
    tensors."""

    def __init__(self, models: list[nn.Module]):
        self.models = models
        trees = [list(model.modules()) for model in models]
        self.modules = [m for tree in trees for m in tree]
        self.kinds = list(map(type, self.modules))
        owns = list(map(vars, self.modules))
        self.sizes = list(map(len, owns))
        self.plain = _plain_attributes(self.modules)
        self.own_tables: TableGuard | None = None
        self._note_tables(owns)
        self.lengths = list(map(len, self.tables))
        self.keys = list(_flat(self.filled))
        held = list(_flat(map(dict.values, self.filled)))
        self.is_tensor = [isinstance(h, Tensor) for h in held]
        self.is_other = [not t for t in self.is_tensor]
        self.others = list(itertools.compress(held, self.is_other))
        lane_of_module = [lane for lane, tree in enumerate(trees) for _ in tree]
        lane_of_table = lane_of_module * len(TABLES)
        lanes = [lane for lane, n in zip(lane_of_table, self.lengths, strict=True) for _ in range(n)]
        self.lanes = list(itertools.compress(lanes, self.is_tensor))
        self.note(self.tensors_in(held))

    def note(self, tensors: list[Tensor]) -> None:
        """These are the tensors whose numbers the wide model has."""
        if any(t.is_inference() for t in tensors):
            raise Bail("a parameter without a version counter")
        self.tensors = tensors
        self.layouts = list(map(_layout, tensors))
        self.guard = TensorGuard(tensors)
        self.versions = list(map(_version, tensors))
        self.memory = list(map(_memory, tensors))
        self.numbers = list(map(np.ndarray.tobytes, self.memory))

    def now(self) -> list[Tensor] | None:
        """Their tensors, if nothing but tensors has changed."""
        if list(map(type, self.modules)) != self.kinds:
            return None
        if not (self.own_tables is not None and self.own_tables.holds()) and not self._read_tables():
            return None
        if (
            any(self.hooks)
            or list(map(len, self.tables)) != self.lengths
            or list(_flat(self.filled)) != self.keys
        ):
            return None
        held = list(_flat(map(dict.values, self.filled)))
        if not all(map(operator.is_, itertools.compress(held, self.is_other), self.others)):
            return None
        tensors = self.tensors_in(held)
        same = all(map(operator.is_, tensors, self.tensors))
        return tensors if same or all(isinstance(t, Tensor) for t in tensors) else None

    def _read_tables(self) -> bool:
        """Look at what the modules hold themselves: once after each write to it, which Python counts."""
        owns = list(map(vars, self.modules))
        guard = TableGuard(owns)  # before they are read: a write meanwhile must be seen at the next look
        if list(map(len, owns)) != self.sizes:
            return False
        for pick, which, values in self.plain:
            if list(map(pick, itertools.compress(owns, which))) != values:
                return False
        self._note_tables(owns)
        self.own_tables = guard
        return True

    def _note_tables(self, owns: list[dict[str, Any]]) -> None:
        parts = list(_flat(map(_parts, owns)))
        step = len(HOOKS) + len(TABLES)
        self.hooks = [table for i in range(len(HOOKS)) for table in parts[i::step]]
        # All parameter tables, then all buffer tables, then all submodule tables.
        self.tables = [table for i in range(len(HOOKS), step) for table in parts[i::step]]
        self.filled = list(itertools.compress(self.tables, map(len, self.tables)))

    def tensors_in(self, held: list[Any]) -> list[Tensor]:
        return list(itertools.compress(held, self.is_tensor))

    def unchanged(self, tensors: list[Tensor]) -> bool:
        """Versions tell of all writes but those through `.data` or a NumPy view; the numbers, of these."""
        return (
            all(map(operator.is_, tensors, self.tensors))
            and self.guard.holds(tensors)
            and list(map(_version, tensors)) == self.versions
            and list(map(np.ndarray.tobytes, self.memory)) == self.numbers
        )

    def changed(self, tensors: list[Tensor]) -> list[int] | None:
        """The lanes whose numbers are others than those noted; None if more than numbers has changed."""
        if list(map(_layout, tensors)) != self.layouts or any(t.is_inference() for t in tensors):
            return None
        before = zip(
            self.tensors, self.versions, self.guard.addresses, self.memory, self.numbers, strict=True
        )
        different = {
            lane for lane, now, was in zip(self.lanes, tensors, before, strict=True) if _other(now, *was)
        }
        return sorted(different)


def _other(
    now: Tensor, tensor: Tensor, version: int, address: int, memory: np.ndarray, numbers: bytes
) -> bool:
    same = now is tensor and now._version == version and now.data_ptr() == address
    return not same or memory.tobytes() != numbers


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    return type(tensor), tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def _memory(tensor: Tensor) -> np.ndarray:
    """The bytes of a tensor, where they lie."""
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise Bail("a parameter whose numbers cannot be watched: not on the CPU, or not contiguous")
    return tensor.detach().view(-1).view(torch.uint8).numpy()


def _plain_attributes(modules: list[nn.Module]) -> list[tuple[Any, list[bool], list[Any]]]:
    """Numbers, names and functions that modules hold, for all modules with the same ones at once: how to pick
    them, from which modules, and what they are."""
    names = [tuple(n for n in vars(m) if not n.startswith("_")) for m in modules]
    for module, own in zip(modules, names, strict=True):
        for name in own:
            value = vars(module)[name]
            parts = value if type(value) is tuple else (value,)
            if not all(isinstance(p, FIXED) for p in parts):
                kind = type(value).__name__
                raise Bail(f"{type(module).__name__}.{name} is a {kind} that could change unseen")
    groups = []
    for wanted in sorted(set(names)):
        which = [own == wanted for own in names]
        pick = operator.itemgetter(*wanted) if wanted else len
        groups.append((pick, which, [pick(vars(m)) for m in itertools.compress(modules, which)]))
    return groups
