"""What another process has under the same name: of the standard library and of NumPy, and only if it is the
same there.

A library may be patched here: a function of it replaced, or something that a function of it calls. So a
function written in Python goes by name together with a digest of all that its code can come to; the other
process makes the digest of its own, and declines where they differ.
"""

import enum
import functools
import hashlib
import importlib
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..text.names import codes_of

DISPATCHER: type = type(np.mean)  # what most functions of NumPy are: a Python function, dispatched
CACHED: type = functools._lru_cache_wrapper
NAMED = (type, types.FunctionType, types.BuiltinFunctionType, np.ufunc, DISPATCHER, CACHED)
_PLAIN = (int, float, complex, str, bytes, bool, type(None), type(Ellipsis))
_TYPING = ("typing", "typing_extensions")
_FLAT = (list, tuple, set, frozenset, dict)
_SKIPPED = ("__dict__", "__weakref__", "__doc__", "__annotations__", "__module__", "_abc_impl")


def place_of(obj: Any) -> tuple[str, str] | None:
    """The module and path under which a library has this very object; None if it is of no library."""
    module, path = getattr(obj, "__module__", None), getattr(obj, "__qualname__", None)
    if isinstance(obj, np.ufunc):
        module, path = "numpy", obj.__name__
    if not isinstance(module, str) or not isinstance(path, str) or not of_library(module):
        return None
    try:
        return (module, path) if at(module, path) is obj else None
    except (ImportError, AttributeError):
        return None


def of_library(module: str) -> bool:
    top = module.split(".")[0]
    return top == "numpy" or (top in sys.stdlib_module_names and top != "__main__")


def at(module: str, path: str) -> Any:
    held: Any = importlib.import_module(module)
    for part in path.split("."):
        held = getattr(held, part)
    return held


def in_python(kind: type) -> bool:
    """Is anything of this class written in Python?"""
    return any(isinstance(held, types.FunctionType) for base in kind.__mro__ for held in vars(base).values())


def by_name(kind: type) -> bool:
    """Classes that are the same anywhere. What is written in Python could come to anything, so of that only
    what no code is run of: exceptions, which end the matter, and enumerations."""
    return not in_python(kind) or issubclass(kind, (BaseException, enum.Enum))


def digest(root: Any) -> str:
    """Of a function or class, and of everything that its code names: functions, classes, numbers, texts."""
    found = hashlib.sha256()
    seen: dict[int, Any] = {}
    waiting = [root]
    while waiting:
        held = waiting.pop()
        found.update(_token(held).encode(errors="backslashreplace"))
        if type(held) in _PLAIN or id(held) in seen or _describes_types(held):
            continue
        seen[id(held)] = held
        waiting.extend(_reached(held))
    return found.hexdigest()


def _describes_types(held: Any) -> bool:
    """Of `typing`, which computes nothing, and which others patch."""
    named = held.__name__ if isinstance(held, types.ModuleType) else getattr(held, "__module__", None)
    return named in _TYPING or type(held).__module__ in _TYPING


def _token(held: Any) -> str:
    kind = type(held)
    if kind in _PLAIN:
        return f"{kind.__name__} {held!r};"
    if kind is types.CodeType:
        return f"code {held.co_code!r} {held.co_names} {held.co_varnames} {held.co_freevars};"
    if kind in _FLAT:
        parts = [*held.keys(), *held.values()] if kind is dict else held
        flat = [repr(part) for part in parts if type(part) in _PLAIN]
        if len(flat) == len(parts):  # others may be caches
            return f"{kind.__name__} {sorted(flat) if kind in (set, frozenset) else flat};"
    named = (getattr(held, name, None) for name in ("__module__", "__qualname__", "__name__"))
    return f"{kind.__module__}.{kind.__qualname__} {[n for n in named if isinstance(n, str)]};"


def _reached(held: Any) -> Iterator[Any]:
    """What the code of a function or of the methods of a class or object may come to, in a fixed order."""
    if isinstance(held, types.FunctionType):
        yield from (held.__code__, held.__defaults__, *sorted((held.__kwdefaults__ or {}).items()))
        yield from _named(held)
        yield from map(_content, held.__closure__ or ())
    elif isinstance(held, types.CodeType):
        yield from held.co_consts
    elif isinstance(held, type):
        for base in held.__mro__:
            if in_python(base):
                own = sorted(vars(base).items())  # dicts there are caches
                yield from (v for n, v in own if n not in _SKIPPED and type(v) is not dict)
    elif isinstance(held, tuple):
        yield from held
    elif isinstance(held, (staticmethod, classmethod, types.MethodType)):
        yield held.__func__
    elif isinstance(held, property):
        yield from (held.fget, held.fset)
    elif isinstance(held, DISPATCHER):
        yield held._implementation  # type: ignore[attr-defined]
    elif isinstance(held, CACHED):
        yield held.__wrapped__  # type: ignore[attr-defined]
    elif in_python(type(held)):
        yield type(held)
        yield from (v for n, v in sorted(getattr(held, "__dict__", {}).items()) if type(n) is str)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return None


def _named(function: types.FunctionType) -> Iterator[Any]:
    """Globals that a function names; of modules what it names of them."""
    names = sorted({name for code in codes_of(function.__code__) for name in code.co_names})
    for name in names:
        held = function.__globals__.get(name)
        if name not in function.__globals__:
            held = function.__builtins__.get(name)  # type: ignore[attr-defined]
        yield held
        if isinstance(held, types.ModuleType):  # modules inside, such as numpy.ma, may come there later
            inside = (vars(held)[n] for n in names if n in vars(held))
            yield from (value for value in inside if not isinstance(value, types.ModuleType))
