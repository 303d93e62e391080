"""The plain numbers a function reads: a recording of it holds them, so a change must be seen."""

import types
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

_PLAIN = (bool, int, float, str, type(None))


def fingerprint(function: Callable[..., Any], depth: int = 3) -> tuple[Any, ...]:
    """Closure, defaults, globals that the code names, and a module's own settings, as far as they are plain.

    >>> beta = 0.5
    >>> def loss(y): return beta * y
    >>> before = fingerprint(loss); beta = 0.7
    >>> before == fingerprint(loss)
    False
    """
    if isinstance(function, types.MethodType):
        return fingerprint(function.__func__, depth) + _of_object(function.__self__)
    if not isinstance(function, types.FunctionType):
        return _of_object(function)
    code = function.__code__
    seen: list[Any] = [function.__defaults__ if _all_plain(function.__defaults__) else None]
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    named = [(name, _content(cell)) for name, cell in cells]
    named += [(name, function.__globals__[name]) for name in code.co_names if name in function.__globals__]
    for name, value in named:
        if isinstance(value, _PLAIN):
            seen.append((name, value))
        elif isinstance(value, Tensor):
            seen.append((name, value.data_ptr() if value.is_cuda else (id(value), value._version)))
        elif isinstance(value, nn.Module):
            seen.append((name, _of_object(value)))
        elif depth and isinstance(value, (types.FunctionType, types.MethodType)):
            seen.append((name, fingerprint(value, depth - 1)))
    return tuple(seen)


def _of_object(value: Any) -> tuple[Any, ...]:
    parts = value.modules() if isinstance(value, nn.Module) else (value,)
    own = [item for part in parts for item in getattr(part, "__dict__", {}).items()]
    return tuple((name, v) for name, v in own if isinstance(v, _PLAIN))


def _all_plain(values: tuple | None) -> bool:
    return all(isinstance(v, _PLAIN) for v in values or ())


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None
