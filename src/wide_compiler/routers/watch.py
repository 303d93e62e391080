"""Has anything changed that a forward reads? Asked of living modules at every call, so it must be cheap."""

import operator
import types
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..capture.state import is_uninitialized
from ..training.fingerprint import fingerprint
from ..tuning.guard import TableGuard
from .label import Label
from .surroundings import Place, places

_ATOMS = (
    int,
    float,
    complex,
    str,
    bytes,
    bool,
    type(None),
    torch.dtype,
    torch.device,
    torch.Size,
    type,
    Label,
)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_TABLES = (*_HOOKS, "_modules", "_parameters", "_buffers")
# nn.Module's own tables, which are watched as such, and weight lists that RNNs keep up to date themselves.
_SKIPPED = {*vars(nn.Module()), "_flat_weights", "_flat_weight_refs"} - {"training"}
# What routers keep for themselves, of which no forward's result depends.
ROUTER_STATE = "_router_"


class Watch:
    """Notices a change in modules: train flags, attributes, children, hooks, tensors of another kind, and
    settings that stand in their classes or among the globals they name.

    The numbers in the tensors may change freely.
    """

    def __init__(self, roots: Sequence[nn.Module]):
        modules = [module for root in roots for module in root.modules()]
        self.tables = [vars(module) for module in modules]
        readers = [(_Reader(table), table) for table in self.tables]
        self.reads = [(reader.read, table) for reader, table in readers]
        self.values = [_copied(read(table)) for read, table in self.reads]
        self.sizes = list(map(len, self.tables))
        self.inner = self._inner_tables()
        self.loose = [(table, name) for reader, table in readers for name in reader.loose]
        self.loose_values = _copied([table[name] for table, name in self.loose])
        self.deep: list[Place] = [(table, name) for reader, table in readers for name in reader.deep]
        self.deep += places(modules)
        self.fingerprints = self._fingerprints()
        self.families = [module._modules for module in modules]
        self.children = self._children()
        hooks = [table[name] for table in self.tables for name in _HOOKS]
        self.hooks = [table for table in hooks if table]
        self.hooked = [list(table.values()) for table in self.hooks]
        homes = [home for module in modules for home in (module._parameters, module._buffers)]
        self.homes = [home for home in homes if home]
        # Tables that were empty must stay so; asked of all at once.
        self.empty = [table for table in (*hooks, *homes, *self.families) if not table]
        self.constants = [(table, name) for reader, table in readers for name in reader.tensors]
        self.generation = 0  # grows whenever a tensor, or the place of its numbers, has changed
        self._remember(self._tensors())
        # If nobody has written to these, only what lies behind their values can have changed.
        self.written = TableGuard([*self.tables, *filter(None, self.families), *self.homes, *self.hooks])

    def same(self) -> bool:
        """Is everything as it was?"""
        if self._untouched():
            return _looks(self.real) == self.looks or self._tensors_same()
        if not (self._python_same() and self._tensors_same()):
            return False
        self.written.remember()
        return True

    def _untouched(self) -> bool:
        try:
            return (
                self.written.holds()
                and not any(self.empty)
                and (not self.loose or tuple([t[name] for t, name in self.loose]) == self.loose_values)
                and (not self.deep or self._fingerprints() == self.fingerprints)
            )
        except (KeyError, ValueError, RuntimeError):  # a global has gone, or cannot be compared
            return False

    def _python_same(self) -> bool:
        try:
            return (
                [read(table) for read, table in self.reads] == self.values
                and self._children() == self.children
                and list(map(len, self.tables)) == self.sizes
                and all(map(operator.is_, self._inner_tables(), self.inner))
                and not any(self.empty)
                and [list(table.values()) for table in self.hooks] == self.hooked
                and (not self.deep or self._fingerprints() == self.fingerprints)
            )
        except (KeyError, ValueError, RuntimeError):  # an attribute has gone, or cannot be compared
            return False

    def _inner_tables(self) -> list[Any]:
        return [table[name] for table in self.tables for name in _TABLES]

    def _children(self) -> list[Any]:
        return [child for family in self.families for child in family.values()]

    def _tensors_same(self) -> bool:
        now = self._tensors()
        if len(now) != len(self.tensors):
            return False
        if all(map(operator.is_, now, self.tensors)) and _looks(self.real) == self.looks:
            return True
        # Another tensor, or one that lies elsewhere; of the same kind it may stand in for the old one.
        if _kinds(now) != self.kinds:
            return False
        self._remember(now)
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

    def _fingerprints(self) -> list[Any]:
        return [fingerprint(table[name]) for table, name in self.deep]


_data_ptr, _learns = Tensor.data_ptr, operator.attrgetter("requires_grad")


def _looks(tensors: list[Tensor]) -> tuple[list[int], list[bool]]:
    """Where each tensor lies (another place may mean another dtype, shape or device), and if it learns."""
    return [*map(_data_ptr, tensors)], [*map(_learns, tensors)]


def _kinds(tensors: list[Any]) -> list[Any]:
    """What each tensor is, and which of them are one object."""
    first: dict[int, int] = {}
    return [
        None
        if tensor is None or is_uninitialized(tensor)
        else (
            *(tensor.dtype, tensor.shape, tensor.device, tensor.requires_grad),
            first.setdefault(id(tensor), i),
        )
        for i, tensor in enumerate(tensors)
    ]


class _Reader:
    """Which entries of a module's `__dict__` to look at, and how closely."""

    def __init__(self, table: dict[str, Any]):
        self.deep: list[str] = []
        self.loose: list[str] = []  # with entries that may change in place
        self.tensors: list[str] = []
        names = []
        for name in readable(table):
            value = table[name]
            if isinstance(value, Tensor):
                self.tensors.append(name)
            elif _is_shallow(value):
                names.append(name)
                if isinstance(value, (list, dict, set)):
                    self.loose.append(name)
            else:
                self.deep.append(name)
        # Two names at least, so that the getter gives a tuple.
        self.read = operator.itemgetter("training", "training", *[n for n in names if n != "training"])


def readable(table: dict[str, Any]) -> list[str]:
    """The attributes in a module's `__dict__` that a forward may read, without nn.Module's machinery."""
    return [name for name in table if name not in _SKIPPED and not name.startswith(ROUTER_STATE)]


def is_atomic(value: Any) -> bool:
    """A number, a word, or a tuple of them: its worth is all there is to it."""
    if type(value) is tuple:
        return all(map(is_atomic, value))
    return isinstance(value, _ATOMS) and not isinstance(value, Label)


def _is_shallow(value: Any) -> bool:
    """Can `==` with a copy tell any change?"""
    if isinstance(value, (*_ATOMS, types.BuiltinFunctionType, nn.Module)):
        return True
    if isinstance(value, types.FunctionType):
        return value.__module__.split(".")[0] == "torch"
    if type(value) in (list, tuple, set):
        return all(isinstance(item, _ATOMS) for item in value)
    if isinstance(value, dict):
        return all(isinstance(item, _ATOMS) for item in value.values())
    return False


def _copied(values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(value.copy() if isinstance(value, (list, dict, set)) else value for value in values)
