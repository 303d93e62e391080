"""In another process: make again what was sent, run it, and see whether the values can go back as they are.

Modules and objects come as stand-ins that hold what the code names of them. If they are asked for anything
else, that is noted in `missed`, and the answer is 'no': the plain loop will know.
"""

import builtins
import io
import marshal
import pickle
import types
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from .process_state import taken_over
from .references import at, digest

missed: list[str] = []
FACTS = ("__defaults__", "__kwdefaults__", "__doc__", "__module__", "__qualname__")  # of a function
PLAIN = (int, float, complex, str, bytes, bool, type(None))

_NAN = (float, complex, np.inexact, np.datetime64, np.timedelta64)  # may differ from themselves


def _miss(name: str) -> Any:
    missed.append(name)
    raise AttributeError(name)


def stand_in(name: str, watched: bool) -> types.ModuleType:
    """For a module. One of Python's own kind, from which attributes are read as fast as from any other; where
    nobody catches what is raised for a missing one, Python itself raises it, and reads faster still."""
    made = types.ModuleType(name)
    if watched:
        made.__getattr__ = _miss  # type: ignore[method-assign]
    return made


class Bare:
    """What classes of the user's inherit from."""

    def __getattr__(self, name: str) -> Any:
        return _miss(name)


def rebuilt(code: bytes, name: str, cells: int) -> types.FunctionType:
    """A function again, with nothing in it yet."""
    held = tuple(types.CellType() for _ in range(cells))
    return types.FunctionType(marshal.loads(code), {"__builtins__": builtins}, name, None, held)


def filled(function: types.FunctionType, state: dict[str, Any]) -> None:
    """Globals of its own, and all else that belongs to a function."""
    function.__globals__.update(state["space"])
    for cell, value in zip(function.__closure__ or (), state["held"], strict=True):
        cell.cell_contents = value
    vars(function).update(state["fields"])
    for name in FACTS:
        setattr(function, name, state[name])


def bound(function: Any, owner: Any) -> types.MethodType:
    return types.MethodType(function, owner)


def class_rebuilt(name: str, bases: tuple[type, ...]) -> type:
    return type(name, tuple(Bare if base is object else base for base in bases), {})


def class_filled(kind: type, state: tuple[dict[str, Any], list[str]]) -> None:
    """Attributes that the code names, and methods that nobody is known to call."""
    named, others = state
    for name, value in named.items():
        setattr(kind, name, value)
    for name in others:
        setattr(kind, name, _uncalled(name))


def _uncalled(name: str) -> Callable[..., Any]:
    return lambda *args, **keywords: _miss(name)


def object_rebuilt(kind: type) -> Any:
    return object.__new__(kind)


def object_filled(made: Any, fields: dict[str, Any]) -> None:
    vars(made).update(fields)


MAKERS = (stand_in, rebuilt, filled, bound, class_rebuilt, class_filled, object_rebuilt, object_filled)


class _Unpickler(pickle.Unpickler):
    """`digests` of what was looked up before, of a process that nobody else uses."""

    def __init__(self, payload: bytes, digests: dict[tuple[str, str], str]):
        super().__init__(io.BytesIO(payload))
        self.digests = digests

    def persistent_load(self, reference: tuple[str, str, str | None]) -> Any:
        module, path, wanted = reference
        held = at(module, path)
        if wanted is not None:
            if (module, path) not in self.digests:
                self.digests[module, path] = digest(held)
            if self.digests[module, path] != wanted:
                raise pickle.UnpicklingError(f"{module}.{path} is another one here")
        return held

    def received(self) -> set[int]:
        """The identities of all objects that were made, but numbers and texts."""
        return set(map(id, self.memo.copy().values()))  # type: ignore[attr-defined]


def in_one_piece(array: np.ndarray) -> bool:
    return (array.flags.c_contiguous or array.flags.f_contiguous) and travels(array.dtype)


def travels(dtype: np.dtype) -> bool:
    """Does a pickle keep it? Of two integers of one size it keeps one."""
    return np.dtype(dtype.str).char == dtype.char


def returnable(value: Any, received: set[int], depth: int = 0) -> bool:
    """Made of built-in values and arrays only, and all of it new: what comes back from a pickle as it was.
    A NaN is only equal to itself where it is the same object, which it may or may not have been here."""
    if type(value) in PLAIN or isinstance(value, np.generic):
        kept = not isinstance(value, np.generic) or travels(value.dtype)
        return kept and (not isinstance(value, _NAN) or bool(value == value))
    if depth > 6 or id(value) in received:
        return False
    if type(value) in (list, tuple):
        return _all_returnable(value, received, depth)
    if type(value) is dict:
        return _all_returnable((*value.keys(), *value.values()), received, depth)
    if type(value) is not np.ndarray or value.dtype.hasobject:
        return False
    return value.base is None and value.flags.writeable and in_one_piece(value)


def _all_returnable(values: Iterable[Any], received: set[int], depth: int) -> bool:
    return all(returnable(v, received, depth + 1) for v in values)


def run_chunk(payload: bytes, digests: dict[tuple[str, str], str] | None = None) -> bytes:
    """In the other process: unpack body and rows, run them, pack the values; any trouble is just 'no'."""
    try:
        unpickler = _Unpickler(payload, {} if digests is None else digests)
        state, body, cond, rows = unpickler.load()
        missed.clear()  # pickle asks, too
        with taken_over(state) as noticed:
            values = _values(body, cond, rows, unpickler.received())
        return pickle.dumps(None if noticed or missed else values, protocol=5)
    except Exception:  # whatever it is, the plain loop will meet it too, and raise it where it belongs
        return pickle.dumps(None)


def _values(body: Any, cond: Any, rows: list[Any], received: set[int]) -> list[list[Any]] | None:
    """What each row adds; None if anything of it would come back as something else."""
    out: list[list[Any]] = []
    for row in rows:
        if cond is not None and not cond(*row):
            out.append([])
            continue
        value = body(*row)
        if not returnable(value, received):
            return None
        out.append([value])
    return out
