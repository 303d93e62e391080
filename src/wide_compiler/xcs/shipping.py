"""Send a proven body to another process: its code, and exactly the names that the proof saw it read.

The user's main script is never imported there, so nothing of it runs twice. Functions travel as code with the
globals they read; modules by name; classes by reference, if another process can import them; all else
pickled.
"""

import builtins
import importlib
import io
import marshal
import pickle
import sys
import types
from typing import Any

import numpy as np

from .names import names_of
from .process_state import SEEDED, SETS, depends_on_hashes, taken_over


class NotSendable(Exception):
    """Why a body cannot run in another process."""


class _Pickler(pickle.Pickler):
    """Functions by value, modules by name; anything of the main script but functions is refused."""

    def __init__(self, file: Any):
        super().__init__(file, protocol=5)
        self.sent: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> None:
        """Asked for every object, so also for those that travel without being asked about below."""
        if type(obj) in SETS:
            raise NotSendable("a set, which would come out in another order")

    def reducer_override(self, obj: Any) -> Any:
        if _of_torch(obj):
            raise NotSendable("PyTorch, whose modes and defaults are those of this process")
        if isinstance(obj, (type, types.BuiltinFunctionType)) and obj in SEEDED:
            raise NotSendable("sets or hashes, which are others in another process")
        if isinstance(obj, types.ModuleType):
            return importlib.import_module, (obj.__name__,)
        if isinstance(obj, types.FunctionType) and not _importable(obj):
            return self._function(obj)
        if isinstance(obj, type) and not _importable(obj):
            raise NotSendable(f"class {obj.__qualname__} cannot be imported by another process")
        return NotImplemented

    def _function(self, function: types.FunctionType) -> Any:
        jitted = getattr(function, "__xcs__", None)
        function = jitted.original if jitted is not None else function
        if depends_on_hashes(function):
            raise NotSendable("sets or hashes, which are others in another process")
        space = {n: function.__globals__[n] for n in names_of(function.__code__) if n in function.__globals__}
        try:
            held = [cell.cell_contents for cell in function.__closure__ or ()]
        except ValueError:
            raise NotSendable("a closure that is not filled yet") from None
        code = marshal.dumps(function.__code__)
        recursive = [n for n, value in space.items() if value is function or _same_jitted(value, function)]
        for name in recursive:
            del space[name]
        facts = (
            code,
            function.__name__,
            space,
            function.__defaults__,
            held,
            function.__kwdefaults__,
            recursive,
        )
        return rebuilt, facts


def _of_torch(obj: Any) -> bool:
    named = obj.__name__ if isinstance(obj, types.ModuleType) else getattr(obj, "__module__", None)
    return isinstance(named, str) and named.split(".")[0] == "torch"


def _same_jitted(value: Any, function: Any) -> bool:
    return getattr(getattr(value, "__xcs__", None), "original", None) is function


def _importable(obj: Any) -> bool:
    """Would another process find this very object under its name, without running the main script?"""
    module, path = getattr(obj, "__module__", None), getattr(obj, "__qualname__", "<locals>")
    if module in (None, "__main__", "__mp_main__") or "<locals>" in path or "<lambda>" in path:
        return False
    top = module.split(".")[0]
    known = top in ("numpy", "wide_compiler") or top in sys.stdlib_module_names
    if not known and isinstance(obj, types.FunctionType):
        return False  # by value: importing a user's module elsewhere might do something
    try:
        held: Any = importlib.import_module(module) if top != "builtins" else builtins
        for part in path.split("."):
            held = getattr(held, part)
    except (ImportError, AttributeError):
        return False
    return held is obj


def rebuilt(
    code: bytes,
    name: str,
    space: dict[str, Any],
    defaults: Any,
    held: list[Any],
    keywords: Any,
    recursive: list[str],
) -> types.FunctionType:
    """A function again, in globals of its own."""
    cells = tuple(types.CellType(value) for value in held)
    space = {"__builtins__": builtins, **space}
    function = types.FunctionType(marshal.loads(code), space, name, defaults, cells)
    function.__kwdefaults__ = keywords
    for own in recursive:
        space[own] = function
    return function


def packed(value: Any) -> bytes:
    out = io.BytesIO()
    try:
        _Pickler(out).dump(value)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError, ValueError) as error:
        raise NotSendable(f"{type(error).__name__}: {error}") from None
    return out.getvalue()


def mutable_ids(value: Any, found: set[int], depth: int = 0) -> set[int]:
    """Mutable objects reachable from a value: a result that holds one of them would come back as a copy."""
    if isinstance(value, (int, float, complex, str, bytes, type(None), np.generic)) or depth > 6:
        return found
    if id(value) in found:
        return found
    if not isinstance(value, tuple):
        found.add(id(value))
    if isinstance(value, np.ndarray) and value.base is not None:
        found.add(id(value.base))
    if isinstance(value, dict):
        for inner in (*value.keys(), *value.values()):
            mutable_ids(inner, found, depth + 1)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for inner in value:
            mutable_ids(inner, found, depth + 1)
    return found


PLAIN = (int, float, complex, str, bytes, bool, type(None))


def plain_result(value: Any, depth: int = 0) -> bool:
    """Made of built-in values and arrays only: what comes back from a pickle as it was."""
    if type(value) in PLAIN or isinstance(value, np.generic):
        return True
    if depth > 6:
        return False
    if type(value) in (list, tuple):
        return all(plain_result(v, depth + 1) for v in value)
    if type(value) is dict:
        return all(plain_result(k, depth + 1) and plain_result(v, depth + 1) for k, v in value.items())
    return type(value) is np.ndarray and value.base is None and not value.dtype.hasobject


def run_chunk(payload: bytes) -> bytes:
    """In the other process: unpack body and rows, run them, pack the values; any trouble is just 'no'."""
    try:
        state, body, cond, rows = pickle.loads(payload)
        with taken_over(state) as noticed:
            values = _values(body, cond, rows)
        return pickle.dumps(None if noticed else values, protocol=5)
    except Exception:  # whatever it is, the plain loop will meet it too, and raise it where it belongs
        return pickle.dumps(None)


def _values(body: Any, cond: Any, rows: list[Any]) -> list[list[Any]] | None:
    """What each row adds; None if anything of it would come back as something else."""
    shared = mutable_ids([c.cell_contents for c in body.__closure__ or ()], set())
    shared |= mutable_ids(list(body.__globals__.values()), set())
    out: list[list[Any]] = []
    for row in rows:
        if cond is not None and not cond(*row):
            out.append([])
            continue
        value = body(*row)
        inputs = mutable_ids(row, set(shared))
        if not plain_result(value) or mutable_ids(value, set()) & inputs:
            return None
        out.append([value])
    return out
