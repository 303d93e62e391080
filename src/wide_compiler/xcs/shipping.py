"""Send a proven body to another process: its code, and exactly what it reads, as it is here and now.

Nothing of the user's is imported there: not the main script, so nothing of it runs twice, and no other module,
which may be another on disk than it is here by now. Functions travel as code with the globals they name, and
modules as stand-ins with the attributes that are named. By name goes only what another process certainly has
(see `references`). What cannot be made there exactly as it is here stays here: `NotSendable`.
"""

import builtins
import functools
import io
import marshal
import pickle
import re
import types
from collections.abc import Iterable
from typing import Any

import numpy as np

from .names import names_of
from .process_state import SEEDED, SETS, compares_identity, global_names, makes_set, taken_over
from .references import NAMED, at, by_name, digest, place_of

Reference = tuple[str, str, str | None]


class NotSendable(Exception):
    """Why a body cannot run in another process."""


class _Part:
    """Of a module what one function may read of it."""

    def __init__(self, module: types.ModuleType, reader: "_Reader"):
        self.held = {name: vars(module)[name] for name in reader.names & vars(module).keys()}
        self.name = module.__name__
        self.reader = reader


class _Reader:
    """A function that names attributes of modules, which may hold each other."""

    def __init__(self, code: types.CodeType):
        self.names = names_of(code)
        self.parts: dict[str, _Part] = {}

    def of(self, value: Any) -> Any:
        """The value, or what is read of it if it is a module."""
        if type(value) is not types.ModuleType or _of_torch(value):
            return value
        if value.__name__ not in self.parts:
            self.parts[value.__name__] = _Part(value, self)
        return self.parts[value.__name__]


class _Pickler(pickle.Pickler):
    """Functions and modules by value, libraries by name; what would be something else there is refused."""

    def __init__(self, file: Any, digests: dict[int, str]):
        super().__init__(file, protocol=5)
        self.digests = digests  # of functions of libraries, made once for all chunks

    def persistent_id(self, obj: Any) -> Reference | None:
        """Asked for every object, so also for those that travel without being asked about below."""
        kind = type(obj)
        if kind in SETS:
            raise NotSendable("a set, which would come out in another order")
        if kind is float or kind is complex:
            if obj != obj:
                raise NotSendable("a NaN, which is equal to itself only where it is the same object")
        elif kind is object:
            raise NotSendable("an object that is only known by being itself")
        elif isinstance(obj, NAMED) and obj not in OWN:
            return self._reference(obj)
        return None

    def _reference(self, obj: Any) -> Reference | None:
        """By name, or None: by value, which only functions of Python and methods can be."""
        if _of_torch(obj):
            raise NotSendable("PyTorch, whose modes and defaults are those of this process")
        if isinstance(obj, (type, types.BuiltinFunctionType)) and obj in SEEDED:
            raise NotSendable("sets or hashes, which are others in another process")
        if isinstance(obj, types.BuiltinFunctionType) and isinstance(obj.__self__, _OWNERS):
            return None  # a method of a list or a string
        place = place_of(obj)
        if isinstance(obj, types.FunctionType):
            if place is None or not _known(obj):
                return None
        elif place is None or (isinstance(obj, type) and not by_name(obj)):
            named = getattr(obj, "__qualname__", obj)
            raise NotSendable(f"{named}: what another process has under that name may be something else")
        if isinstance(obj, (types.BuiltinFunctionType, np.ufunc)):
            return (*place, None)
        if id(obj) not in self.digests:
            self.digests[id(obj)] = digest(obj)
        return (*place, self.digests[id(obj)])

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if _of_torch(obj):
            raise NotSendable("PyTorch, whose modes and defaults are those of this process")
        if kind is types.FunctionType:
            return NotImplemented if obj in OWN else self._function(obj)
        if kind is types.MethodType:
            return bound, (obj.__func__, obj.__self__)
        if kind is _Part:
            return StandIn, (obj.name,), {name: obj.reader.of(value) for name, value in obj.held.items()}
        if isinstance(obj, types.ModuleType):
            raise NotSendable(f"module {obj.__name__}, handed on as a value")
        if kind is np.ndarray and (obj.dtype.hasobject or not _in_one_piece(obj)):
            raise NotSendable("an array of objects, or one whose numbers lie in memory otherwise there")
        return NotImplemented

    def _function(self, function: types.FunctionType) -> Any:
        """In two steps, so that functions may name themselves and each other."""
        jitted = getattr(function, "__xcs__", None)
        function = jitted.original if jitted is not None else function
        code = function.__code__
        if makes_set(code):
            raise NotSendable("sets or hashes, which are others in another process")
        space = {**function.__builtins__, **function.__globals__}  # type: ignore[attr-defined]
        if compares_identity(code, space):
            raise NotSendable("it asks whether something is the same object, and copies never are")
        try:
            held = [cell.cell_contents for cell in function.__closure__ or ()]
        except ValueError:
            raise NotSendable("a closure that is not filled yet") from None
        reader = _Reader(code)
        state = {
            "space": {n: reader.of(space[n]) for n in global_names(code) if n in space},
            "held": [reader.of(value) for value in held],
            "fields": {n: v for n, v in vars(function).items() if n != "__xcs__"},
        } | {n: getattr(function, n) for n in _FACTS}
        return rebuilt, (marshal.dumps(code), function.__name__, len(held)), state, None, None, filled


_FACTS = ("__defaults__", "__kwdefaults__", "__doc__", "__module__", "__qualname__")
_OWNERS = (list, dict, tuple, str, bytes, int, float, complex, bytearray, range)


def _of_torch(obj: Any) -> bool:
    named = obj.__name__ if isinstance(obj, types.ModuleType) else getattr(obj, "__module__", None)
    return isinstance(named, str) and named.split(".")[0] == "torch"


@functools.cache
def _whitelisted() -> set[Any]:
    from . import pure_numpy, pure_tables  # not in workers: these import PyTorch

    return {f for f in (*pure_tables.FUNCTIONS, *pure_numpy.NUMPY_FUNCTIONS) if isinstance(f, NAMED)}


def _known(function: types.FunctionType) -> bool:
    """Functions of a library that need no look at their text: what comes out of them is new, and the same
    anywhere. All others travel by value, as those of the user do."""
    maker = function.__module__.split(".")[0] in ("numpy", "copyreg") or function is re._compile  # type: ignore[attr-defined]
    return maker or function in _whitelisted()


class StandIn(types.ModuleType):
    """Holds what a function reads of a module. Whatever else it is asked for, there is an answer elsewhere."""

    def __getattr__(self, name: str) -> Any:
        missed.append(name)
        raise AttributeError(name)


missed: list[str] = []


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
    for name in _FACTS:
        setattr(function, name, state[name])


def bound(function: Any, owner: Any) -> types.MethodType:
    return types.MethodType(function, owner)


OWN = (StandIn, rebuilt, filled, bound)  # of this module, which workers have


def packed(value: Any, digests: dict[int, str] | None = None) -> bytes:
    out = io.BytesIO()
    try:
        _Pickler(out, {} if digests is None else digests).dump(value)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError, ValueError) as error:
        raise NotSendable(f"{type(error).__name__}: {error}") from None
    return out.getvalue()


class _Unpickler(pickle.Unpickler):
    """`digests` of what was looked up before, of a process that nobody else uses."""

    def __init__(self, payload: bytes, digests: dict[tuple[str, str], str]):
        super().__init__(io.BytesIO(payload))
        self.digests = digests

    def persistent_load(self, reference: Reference) -> Any:
        module, path, wanted = reference
        held = at(module, path)
        if wanted is not None:
            if (module, path) not in self.digests:
                self.digests[module, path] = digest(held)
            if self.digests[module, path] != wanted:
                raise NotSendable(f"{module}.{path} is another one there")
        return held

    def received(self) -> set[int]:
        """The identities of all objects that were made, but numbers and texts."""
        return set(map(id, self.memo.copy().values()))  # type: ignore[attr-defined]


PLAIN = (int, float, complex, str, bytes, bool, type(None))


def _in_one_piece(array: np.ndarray) -> bool:
    return array.flags.c_contiguous or array.flags.f_contiguous


def returnable(value: Any, received: set[int], depth: int = 0) -> bool:
    """Made of built-in values and arrays only, and all of it new: what comes back from a pickle as it was.
    A NaN is only equal to itself where it is the same object, which it may or may not have been here."""
    if type(value) in PLAIN or isinstance(value, np.generic):
        return not isinstance(value, (float, complex, np.inexact)) or bool(value == value)
    if depth > 6 or (id(value) in received and value != ()):
        return False
    if type(value) in (list, tuple):
        return _all_returnable(value, received, depth)
    if type(value) is dict:
        return _all_returnable((*value.keys(), *value.values()), received, depth)
    if type(value) is not np.ndarray or value.dtype.hasobject:
        return False
    return value.base is None and value.flags.writeable and _in_one_piece(value)


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
