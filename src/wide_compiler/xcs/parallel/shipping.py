"""Send a proven body to another process: its code, and exactly what it reads, as it is here and now.

Nothing of the user's is imported there: not the main script, so nothing of it runs twice, and no module: on
disk it may be another than it is here by now. Functions travel as code with the globals they name; modules,
classes and objects as stand-ins with the attributes that are named. By name goes only what another process
certainly has (see `references`). What cannot be made exactly as it is here is not sent: `NotSendable`.
"""

import functools
import io
import marshal
import pickle
import re
import types
from typing import Any

import numpy as np

from ..text.names import codes_of, names_of
from ..text.source import written
from . import receiving
from .process_state import SEEDED, SETS, compares_identity, global_names, makes_set
from .references import NAMED, by_name, digest, of_library, place_of
from .user_classes import NotSendable, class_parts, fields

Reference = tuple[str, str, str | None]
CATCHES = "try"  # among the names of the code: an error of a missing attribute may be caught by something


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

    def __init__(self, file: Any, digests: dict[int, str], names: set[str]):
        super().__init__(file, protocol=5)
        self.digests = digests
        self.names = names

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
        elif isinstance(obj, np.generic) and not receiving.travels(obj.dtype):
            raise NotSendable(f"a number of type {type(obj).__name__}, which would come out as another one")
        elif isinstance(obj, NAMED) and obj not in receiving.MAKERS:
            return self._reference(obj)
        return None

    def _reference(self, obj: Any) -> Reference | None:
        """By name, or None: by value, as functions and classes of the user's go, and methods."""
        if _of_torch(obj):
            raise NotSendable("PyTorch, whose modes and defaults are those of this process")
        if obj is getattr or obj is hasattr:
            self.names.add(CATCHES)
        if isinstance(obj, (type, types.BuiltinFunctionType)) and obj in SEEDED:
            raise NotSendable("sets or hashes, which are others in another process")
        if isinstance(obj, types.BuiltinFunctionType) and isinstance(obj.__self__, _OWNERS):
            return None  # a method of a list or a string
        place = place_of(obj)
        if isinstance(obj, types.FunctionType) and (place is None or not _known(obj)):
            return None
        if isinstance(obj, type) and place is None:
            return None
        if place is None or (isinstance(obj, type) and not by_name(obj)):
            named = getattr(obj, "__qualname__", obj)
            raise NotSendable(f"{named}: what another process has under that name may be something else")
        if isinstance(obj, (types.BuiltinFunctionType, np.ufunc)):
            return (*place, None)
        if id(obj) not in self.digests:
            self.digests[id(obj)] = digest(obj)
        return (*place, self.digests[id(obj)])

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if isinstance(obj, NAMED) and obj in receiving.MAKERS:
            return NotImplemented
        if _of_torch(obj):
            raise NotSendable("PyTorch, whose modes and defaults are those of this process")
        if kind is types.FunctionType:
            return self._function(obj)
        if kind is types.MethodType:
            return receiving.bound, (obj.__func__, obj.__self__)
        if kind is _Part:
            return (
                receiving.stand_in,
                (obj.name, CATCHES in self.names),
                {name: obj.reader.of(value) for name, value in obj.held.items()},
            )
        if isinstance(obj, types.ModuleType):
            raise NotSendable(f"module {obj.__name__}, handed on as a value")
        if kind is np.ndarray and (obj.dtype.hasobject or not receiving.in_one_piece(obj)):
            raise NotSendable("an array of objects, or one whose numbers lie in memory otherwise there")
        if isinstance(obj, type):
            return self._class(obj)
        if kind in (property, staticmethod, classmethod):
            return kind, (obj.fget if kind is property else obj.__func__,)
        if not of_library(kind.__module__):
            state = fields(obj, self.names)
            return receiving.object_rebuilt, (kind,), state, None, None, receiving.object_filled
        return NotImplemented

    def _class(self, kind: type) -> Any:
        state = class_parts(kind, self.names)
        return (
            receiving.class_rebuilt,
            (kind.__name__, kind.__bases__),
            state,
            None,
            None,
            receiving.class_filled,
        )

    def _function(self, function: types.FunctionType) -> Any:
        """In two steps, so that functions may name themselves and each other."""
        function = written(function)
        code = function.__code__
        self.names |= names_of(code)
        if any(inner.co_exceptiontable for inner in codes_of(code)):
            self.names.add(CATCHES)
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
            "fields": _fields(function),
        } | {n: getattr(function, n) for n in receiving.FACTS}
        facts = (marshal.dumps(code), function.__name__, len(held))
        return receiving.rebuilt, facts, state, None, None, receiving.filled


def _fields(function: types.FunctionType) -> dict[str, Any]:
    """What lies on a function, but for what `jit` has put there or `functools.wraps` has copied."""
    held = dict(vars(function))
    jitted = held.pop("__xcs__", None)
    return {n: v for n, v in held.items() if type(v) is not types.MethodType or v.__self__ is not jitted}


_OWNERS = (list, dict, tuple, str, bytes, int, float, complex, bytearray, range)


def _of_torch(obj: Any) -> bool:
    named = obj.__name__ if isinstance(obj, types.ModuleType) else getattr(obj, "__module__", None)
    return isinstance(named, str) and named.split(".")[0] == "torch"


_MAKERS = ("copyreg", "numpy._core.numeric", "numpy.core.numeric")  # used by pickle


@functools.cache
def _whitelisted() -> set[Any]:
    from ..proof import pure_numpy, pure_tables  # not in workers: these import PyTorch

    return {f for f in (*pure_tables.FUNCTIONS, *pure_numpy.NUMPY_FUNCTIONS) if isinstance(f, NAMED)}


def _known(function: types.FunctionType) -> bool:
    """Functions of a library that need no look at their text: what comes out of them is new, and the same
    anywhere. All others travel by value, as those of the user do."""
    return function in _whitelisted() or function.__module__ in _MAKERS or function is re._compile  # type: ignore[attr-defined]


class Packer:
    """Packs one thing after another, such as chunks with one body. What is named anywhere in the code decides
    what is sent of objects: so again, if names were found on the way."""

    def __init__(self) -> None:
        self.digests: dict[int, str] = {}  # of functions of libraries
        self.names: set[str] = set()

    def __call__(self, value: Any) -> bytes:
        before = -1
        while before < len(self.names):
            before, out = len(self.names), io.BytesIO()
            try:
                _Pickler(out, self.digests, self.names).dump(value)
            except (pickle.PicklingError, TypeError, AttributeError, RecursionError, ValueError) as error:
                raise NotSendable(f"{type(error).__name__}: {error}") from None
        return out.getvalue()


def packed(value: Any) -> bytes:
    return Packer()(value)
