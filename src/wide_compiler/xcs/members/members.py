"""The members of a wide model: are they still what they were when it was made of them?

A few passes in C over all modules at once: looking must cost less than what one wide call saves.
"""

import itertools
import operator
import types
from typing import Any

import torch
from torch import Tensor, nn

from ...tuning.guard import TensorGuard, versions
from ..proof.behaviour import NAMESPACES, PYTORCH, Behaviour
from ..proof.kinds import IMMUTABLE
from ..work import Bail

FIXED = (*IMMUTABLE, types.FunctionType, types.BuiltinFunctionType, type, types.ModuleType)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
TABLES = ("_parameters", "_buffers", "_modules")
INTERNAL = frozenset(vars(nn.Module())) - {"training"}  # what PyTorch itself keeps in every module
_parts = operator.itemgetter(*HOOKS, *TABLES)
_flat = itertools.chain.from_iterable


class Members:
    """What distinct modules held: their classes, submodules, plain attributes, and the numbers of their
    tensors."""

    def __init__(self, models: list[nn.Module]):
        self.models = models
        trees = [list(model.modules()) for model in models]
        self.modules = [m for tree in trees for m in tree]
        self.kinds = list(map(type, self.modules))
        self.behaviour = Behaviour(set(self.kinds), NAMESPACES)
        if not PYTORCH.holds():
            raise Bail("a class or function of PyTorch was replaced")
        owns = list(map(vars, self.modules))
        self.plain = _plain_attributes(self.modules)
        self.lists = [v for own in owns for v in own.values() if type(v) is list]
        self.copies = list(map(list, self.lists))
        self.sizes = list(map(len, owns))
        tables = self._tables()[1]
        if not all(type(table) is dict for table in tables):
            raise Bail("a module that keeps its parameters or submodules in a table of its own kind")
        self.lengths = list(map(len, tables))
        self.keys = list(_flat(tables))
        held = list(_flat(map(dict.values, tables)))
        self.is_tensor = [isinstance(h, Tensor) for h in held]
        self.is_other = [not t for t in self.is_tensor]
        self.others = list(itertools.compress(held, self.is_other))
        lane_of_module = [lane for lane, tree in enumerate(trees) for _ in tree]
        lane_of_table = lane_of_module * len(TABLES)
        lanes = [lane for lane, n in zip(lane_of_table, self.lengths, strict=True) for _ in range(n)]
        self.lanes = list(itertools.compress(lanes, self.is_tensor))
        self.filled: list[
            dict[str, Any]
        ] = []  # tables of parameters, buffers and submodules, if any are in it
        self.empty: list[dict[Any, Any]] = []  # those without, and the hooks
        self.written: list[int] = []  # the versions of all tables when they were last read
        self.note(self._tensors_in(held))

    def note(self, tensors: list[Tensor]) -> None:
        """These are the tensors whose numbers the wide model has."""
        memory = list(map(_memory, tensors))  # raises `Bail` before anything is noted
        self.layouts = list(map(_layout, tensors))
        self.guard = TensorGuard(tensors)
        self.tensors, self.memory, self.numbers = tensors, memory, list(map(bytearray, memory))

    def now(self) -> list[Tensor] | None:
        """Their tensors, if nothing but tensors has changed."""
        if list(map(type, self.modules)) != self.kinds or not self.behaviour.holds():
            return None
        # Python counts the writes to a table: what nobody has written to is as it was read.
        if (
            versions(itertools.chain(map(vars, self.modules), self.filled)) != self.written
            and not self._read()
        ):
            return None
        return None if any(self.empty) or self.lists != self.copies else self.found

    def _read(self) -> bool:
        """Look at all that the modules hold."""
        filled = [table for table in self._tables()[1] if table]
        owns = list(map(vars, self.modules))
        written = versions(
            [*owns, *filled]
        )  # before they are read: a write meanwhile is seen by the next look
        hooks, tables = self._tables()
        if not all(map(operator.is_, filled, filter(None, tables))) or {*map(type, tables)} != {dict}:
            return False
        if list(map(len, owns)) != self.sizes or list(map(len, tables)) != self.lengths:
            return False
        for pick, which, values in self.plain:
            if not all(map(_same, _flat(map(pick, itertools.compress(owns, which))), values)):
                return False
        held = list(_flat(map(dict.values, tables)))
        if list(_flat(tables)) != self.keys or not all(
            map(operator.is_, itertools.compress(held, self.is_other), self.others)
        ):
            return False
        tensors = self._tensors_in(held)
        if not all(isinstance(t, Tensor) for t in tensors):
            return False
        same = all(map(operator.is_, tensors, self.tensors))
        self.filled, self.empty = filled, [*hooks, *(table for table in tables if not table)]
        self.found = self.tensors if same else tensors
        self.written = written
        return True

    def _tables(self) -> tuple[list[Any], list[Any]]:
        """All tables of hooks; all tables of parameters, then of buffers, then of submodules."""
        parts = list(_flat(map(_parts, map(vars, self.modules))))
        step = len(HOOKS) + len(TABLES)
        by_name = [parts[i::step] for i in range(step)]
        return list(_flat(by_name[: len(HOOKS)])), list(_flat(by_name[len(HOOKS) :]))

    def _tensors_in(self, held: list[Any]) -> list[Tensor]:
        return list(itertools.compress(held, self.is_tensor))

    def unchanged(self, tensors: list[Tensor]) -> bool:
        """The very tensors, where they were, and every number in them: versions do not tell of writes through
        `.data` or NumPy. Compared as bytes, by lists of `bytearray` and `memoryview`, without a copy."""
        return (
            (tensors is self.tensors or all(map(operator.is_, tensors, self.tensors)))
            and self.guard.holds(tensors)
            and self.numbers == self.memory
        )

    def changed(self, tensors: list[Tensor]) -> list[int] | None:
        """The lanes whose numbers are others than those noted; None if more than numbers has changed."""
        if list(map(_layout, tensors)) != self.layouts:
            return None
        before = zip(self.tensors, self.guard.addresses, self.memory, self.numbers, strict=True)
        different = {
            lane for lane, now, was in zip(self.lanes, tensors, before, strict=True) if _other(now, *was)
        }
        return sorted(different)


def _other(now: Tensor, tensor: Tensor, address: int, memory: memoryview, numbers: bytearray) -> bool:
    return now is not tensor or now.data_ptr() != address or numbers != memory


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    return type(tensor), tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def _memory(tensor: Tensor) -> memoryview:
    """The bytes of a tensor, where they lie."""
    try:
        if tensor.device.type == "cpu" and tensor.is_contiguous():
            memory: Any = tensor.detach().view(-1).view(torch.uint8).numpy()
            return memoryview(memory)
    except RuntimeError:  # sparse, or a conjugate that is not computed yet
        pass
    raise Bail("a parameter whose numbers cannot be watched: not plainly in the memory of the CPU")


def _plain_attributes(modules: list[nn.Module]) -> list[tuple[Any, list[bool], list[Any]]]:
    """Numbers, names and functions that modules hold, for all modules with the same ones at once: how to pick
    them, from which modules, and what they are."""
    names = [tuple(n for n in vars(m) if n not in INTERNAL) for m in modules]
    for module, own in zip(modules, names, strict=True):
        for name in own:
            value = vars(module)[name]
            parts = value if type(value) is tuple else (value,)
            if not all(isinstance(p, FIXED) for p in parts) and not _whole_numbers(value):
                kind = type(value).__name__
                raise Bail(f"{type(module).__name__}.{name} is a {kind} that could change unseen")
    groups = []
    for wanted in sorted(set(names)):
        which = [own == wanted for own in names]
        pick = operator.itemgetter(*wanted, *wanted[:1]) if wanted else _nothing  # always a tuple
        groups.append((pick, which, list(_flat(pick(vars(m)) for m in itertools.compress(modules, which)))))
    return groups


def _nothing(own: dict[str, Any]) -> tuple[()]:
    return ()


def _whole_numbers(value: Any) -> bool:
    """Lists of them are compared at every look."""
    return type(value) is list and all(type(v) is int for v in value)


def _same(now: Any, before: Any) -> bool:
    """The same object, or a plain value that cannot be told from it."""
    if now is before:
        return True
    return type(now) is type(before) and type(now) is not list and now == before and repr(now) == repr(before)
