"""The plain numbers a function reads: a recording of it holds them, so a change must be seen."""

import functools
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
