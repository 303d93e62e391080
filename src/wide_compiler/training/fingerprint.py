"""The plain numbers a function reads: a recording of it holds them, so a change must be seen."""

import functools
import operator
import types
from typing import Any

from torch import Tensor, nn

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
# How far to follow functions, objects and containers: a loss is seldom made of more.
DEPTH = 4


def fingerprint(value: Any, depth: int = DEPTH) -> Any:
    """What `value` depends on, as far as it is plain: numbers, tensors' places, and whatever holds them.

    Of a function: its closure, defaults and the globals that its code names. Of an object: its attributes.

    >>> beta = 0.5
    >>> def loss(y): return beta * y
    >>> before = fingerprint(loss); beta = 0.7
    >>> before == fingerprint(loss)
    False
    """
    if isinstance(value, _PLAIN):
        return value
    if isinstance(
        value, Tensor
    ):  # read on the GPU it may change; read on the CPU its numbers are in the graph
        return value.data_ptr() if value.is_cuda else (id(value), value._version)
    if not depth or isinstance(value, (type, types.ModuleType, types.BuiltinFunctionType)):
        return id(value)
    below = functools.partial(fingerprint, depth=depth - 1)
    if isinstance(value, (list, tuple)):
        return tuple(map(below, value))
    if isinstance(value, dict):
        return tuple((below(k), below(v)) for k, v in value.items())
    if isinstance(value, types.FunctionType):
        return tuple((name, below(v)) for name, v in _read_by(value).items())
    if isinstance(value, types.MethodType):
        return below(value.__func__), below(value.__self__)
    if isinstance(value, functools.partial):
        return below(value.func), below(value.args), below(value.keywords)
    if isinstance(value, nn.Module):
        return tuple((name, below(v)) for part in value.modules() for name, v in _settings(part))
    # Of what cannot be called, Python makes up a new `__call__` at every look.
    own = [below(type(value).__call__)] if callable(value) else []
    return id(value), *own, *_attributes(value, below)


class SameReads:
    """Whether a function still reads the very objects that it read: two fingerprints compared, but faster.

    >>> beta = 0.5
    >>> def loss(y): return beta * y
    >>> reads = SameReads.of(loss)
    >>> before = reads.hold(); beta = 0.7
    >>> before, reads.hold()
    (True, False)
    """

    def __init__(self) -> None:
        self.globals: list[tuple[dict[str, Any], str]] = []
        self.cells: list[types.CellType] = []
        self.functions: list[types.FunctionType] = []
        self.read: list[Any] = []

    @staticmethod
    def of(function: Any) -> "SameReads | None":
        """Of a function that reads only what cannot change in its place; None for any other."""
        reads = SameReads()
        try:
            settled = isinstance(function, types.FunctionType) and reads._follow(function, DEPTH)
            reads.read = reads._now()
        except ValueError:  # a cell that is not assigned yet
            return None
        return reads if settled else None

    def hold(self) -> bool:
        try:
            return all(map(operator.is_, self._now(), self.read))
        except ValueError:
            return False

    def _now(self) -> list[Any]:
        found = [table.get(name, _ABSENT) for table, name in self.globals]
        found += [cell.cell_contents for cell in self.cells]
        for function in self.functions:
            found += (function.__code__, function.__defaults__, function.__kwdefaults__)
        return found

    def _follow(self, value: Any, depth: int) -> bool:
        """Note what is read from here on; whether all of it is settled."""
        if isinstance(value, (*_PLAIN, type, types.ModuleType, types.BuiltinFunctionType)):
            return True
        if not depth:
            return not isinstance(value, Tensor)
        if isinstance(value, tuple):
            return all(self._follow(v, depth - 1) for v in value)
        if not isinstance(value, types.FunctionType) or value.__kwdefaults__:
            return False
        self.functions.append(value)
        self.globals += [(value.__globals__, name) for name in value.__code__.co_names]
        self.cells += value.__closure__ or ()
        return all(self._follow(v, depth - 1) for v in _read_by(value).values())


_ABSENT = object()


def _read_by(function: types.FunctionType) -> dict[str, Any]:
    code = function.__code__
    found: dict[str, Any] = {
        name: function.__globals__[name] for name in code.co_names if name in function.__globals__
    }
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            found[name] = None
    return {**found, "defaults": function.__defaults__, "keywords": function.__kwdefaults__}


def _settings(module: nn.Module) -> list[tuple[str, Any]]:
    """A module's own attributes, without the machinery that every module has."""
    own = [(k, v) for k, v in vars(module).items() if not k.startswith("_") or isinstance(v, _PLAIN)]
    return own + list(module._parameters.items()) + list(module._buffers.items())


def _attributes(value: Any, below: Any) -> list[Any]:
    return [(name, below(v)) for name, v in getattr(value, "__dict__", {}).items()]
