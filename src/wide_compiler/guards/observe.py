"""Run a call once and record everything its Python code reads, before the call can change it.

A profile function, set for the current thread only, is called for every Python function that is entered. The
function's bytecode lists the globals and attributes it may read. These are looked up on the arguments and on
objects that outlive the call, and their values are recorded. Objects created during the call are skipped.
"""

import abc
import array
import builtins
import collections
import contextlib
import contextvars
import dataclasses
import decimal
import functools
import gc
import importlib.util
import inspect
import logging
import operator
import os
import random
import sys
import threading
import types
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointFunction, checkpoint

from .code_names import Names, names_of, owner_of
from .reads import (
    ATOMS,
    Array,
    Attribute,
    Bytes,
    ClassEntry,
    ClassOf,
    Entry,
    Flag,
    HeldTensor,
    Keys,
    Read,
    SequenceItems,
    Set,
    State,
    Table,
    Variable,
    is_atom,
)
from .snapshot import Snapshot

_RANDOM = (random.Random, np.random.Generator, np.random.RandomState)
_MOVING = (*_RANDOM, torch.Generator, types.GeneratorType)
_SKIPPED = frozenset((*ATOMS, types.CodeType, types.FrameType))
# Objects of these standard library modules never affect a result: loggers, locks, pools.
_INERT = ("logging", "threading", "multiprocessing", "concurrent", "asyncio", "io", "_io", "re", "pathlib")
_FUNCTION_FIELDS = ("__code__", "__defaults__", "__kwdefaults__")
# The tables of nn.Module, and the weight lists that recurrent layers maintain themselves.
MODULE_TABLES = frozenset({*vars(nn.Module()), "_flat_weights", "_flat_weight_refs"} - {"training"})
_CAPTURING = ("wide_compiler.capture.", "wide_compiler.widen.", "wide_compiler.measure.")
# Private attributes of routers; no result of a forward depends on them.
_OUR_STATE, _CACHE = "_router_", "_router_cache"
# PyTorch functions that set or read the random generator, by code object.
_SEEDING = {
    inspect.unwrap(function).__code__: function.__name__
    for function in (
        *(torch.manual_seed, torch.seed, torch.initial_seed, torch.get_rng_state, torch.set_rng_state),
        *(torch.random.fork_rng, torch.cuda.manual_seed, torch.cuda.manual_seed_all),
    )
}
_FIND_AND_LOAD = ("_find_and_load", "<frozen importlib._bootstrap>")
_REGISTER_HOOK = Tensor.register_hook.__code__
_ASKS_TRACING = {torch.compiler.is_compiling.__code__, torch.compiler.is_exporting.__code__}
_CALL_MODULE = nn.Module._wrapped_call_impl.__code__
_CHECKPOINT = inspect.unwrap(checkpoint).__code__
# `Function.apply` is a Python function up to PyTorch 2.14 and a C function in later versions.
_APPLY = getattr(getattr(torch.autograd.Function.apply, "__func__", None), "__code__", None)
# C functions that return a setting of the process, by module and prefix of the name. `_KEYED` lists the
# exceptions: settings that are in every program's cache key, and the autocast cache flag, which autocast
# reads on entry and which does not change results.
_SETTINGS = ("torch", "torch._C", "sys")
_ASKS = ("get_", "_get_", "is_", "are_", "getrecursionlimit")
_KEYED = {"is_grad_enabled", "is_autocast_enabled", "get_default_dtype", "get_autocast_dtype"}
_KEYED |= {"is_autocast_cache_enabled"}
_TENSOR_NAMES = frozenset(dir(Tensor))
# Caches that `functools.singledispatch` keeps in closure cells.
_MEMO = {"dispatch_cache", "cache_token", "_clear_cache"}


def _noting(kind: type[Read]) -> Callable[..., None]:
    """Return a visitor that records the content of an object as one read."""

    def visit(self: "Observer", value: Any, code: types.CodeType, path: str) -> None:
        self.reads.note(kind, value, path=path)

    return visit


def _is_checkpointed(call: types.FrameType) -> bool:
    """Return whether a module is called directly under `checkpoint`, with no other module call in between."""
    frame = call.f_back
    while frame is not None and frame.f_code is not _CALL_MODULE:
        if frame.f_code is _CHECKPOINT:
            return True
        frame = frame.f_back
    return False


def _profile_again(profiler: Any) -> None:
    """Restore the previous profiler; cProfile's is not a function and has to be enabled again."""
    sys.setprofile(profiler if callable(profiler) else None)
    if profiler is not None and not callable(profiler):
        profiler.enable()


class Observer:
    """Records what a call reads, and the effects that a graph of the call could not repeat.

    Args:
        roots: the modules that the call runs.
        owned: ids of objects that are private to the caller (a private copy of a model). They are recorded,
            so that a change by the forward is detected, but captures do not depend on them.
        calls: functions and other callables that the call runs.

    Attributes:
        effects: messages that say why a graph would not be equivalent to the call.
        functions: classes of custom autograd functions that were applied.
        asks_grad_mode: True if code outside PyTorch read the grad mode.
        asks_tracing: True if it asked whether PyTorch is compiling or exporting.
        imported: True if a module was loaded during the call. Loading may have changed values that the call
            itself does not change, so the call should be observed again.
        checkpointed: paths of modules that were passed to `torch.utils.checkpoint` (directly, as a bound
            method or as the first argument of a partial), and of modules called directly under it.
    """

    def __init__(
        self,
        roots: Iterable[nn.Module],
        owned: Collection[int] = (),
        calls: Iterable[Callable[..., Any]] = (),
    ):
        self.reads = Snapshot()
        self.owned = owned
        self.effects: list[str] = []
        self.functions: list[type] = []
        self.asks_grad_mode = self.asks_tracing = False
        self.imported = False
        self.checkpointed: set[str] = set()
        self._alive: list[Any] = []  # keeps visited objects alive, so that their ids are not reused
        self._persistent: set[int] = set()
        self._running: set[int] = set()  # ids of the modules in `roots`, whose tensors the caller tracks
        self._visited: set[tuple[int, int]] = set()
        self._classes: set[tuple[type, types.CodeType]] = set()
        self._methods: set[tuple[type, types.CodeType]] = set()
        self._dynamic: set[types.CodeType] = set()  # code that reads through `attrgetter`
        self._entered: set[types.CodeType] = set()
        self._users: set[types.CodeType] = set()  # the part of `_entered` that is user code
        self._functions_of: dict[types.CodeType, list[types.FunctionType]] = collections.defaultdict(list)
        self._paths: dict[int, str] = {}
        self._importing: list[tuple[types.CodeType, dict[str, Any]]] = []
        self._paused: types.FrameType | None = None  # nothing is recorded until this frame returns
        for call in calls:
            self._keep(call)
            self._visit_function(call, getattr(call, "__qualname__", type(call).__name__))
        for root in roots:
            for path, module in root.named_modules():
                self._keep(module)
                self._running.add(id(module))
                self._paths[id(module)] = path or type(module).__name__
                if _CACHE in vars(module):  # written by one tower and read by others
                    where = f"the cache of {self._paths[id(module)]}"
                    self.reads.note(Table, vars(module)[_CACHE], path=where)
                for table in (module._forward_hooks, module._forward_pre_hooks):
                    for hook in table.values():
                        self._visit_function(hook, f"a hook of {path or type(module).__name__}")

    def run(self, call: Callable[[], Any], put_back: bool = True) -> Any:
        """Return the result of `call`.

        Changes to anything that was read are recorded in `effects`, and undone if `put_back`.
        """
        before = sys.getprofile()
        sys.setprofile(self._event)
        try:
            return call()
        finally:
            _profile_again(before)
            for code, table in self._importing:
                self._visit_imports(table, code)
            self._find_closures()
            changed = self.reads.changes(self.stores)
            if changed:
                self.effects.append(f"its forward changes {changed[0].path}")
            for read in reversed(changed if put_back else []):
                read.put_back()

    @property
    def stores(self) -> frozenset[str] | None:
        """The names that code of the call assigns; None if any name may be assigned."""
        stores = [names_of(code).stores for code in self._entered]
        return frozenset().union(*stores) if all(names is not None for names in stores) else None  # type: ignore[arg-type]

    # Events of the profiler.

    def _event(self, frame: types.FrameType, event: str, argument: Any) -> None:
        try:
            self._note_event(frame, event, argument)
        except Exception as error:  # reading an object's attributes may raise anything
            sys.setprofile(None)
            where = f"{frame.f_code.co_qualname}: {type(error).__name__}: {error}"
            self.effects.append(f"the reads of its Python code cannot be recorded ({where})")

    def _note_event(self, frame: types.FrameType, event: str, argument: Any) -> None:
        if self._paused is not None:
            if event == "return" and frame is self._paused:
                self._paused = None
        elif event == "call":
            # This function loads a module that was not loaded before.
            if (frame.f_code.co_name, frame.f_code.co_filename) == _FIND_AND_LOAD:
                self.imported, self._paused = True, frame
            elif self._is_interlude(frame):
                self._paused = frame
            else:
                self._enter(frame)
        elif event == "c_call":
            self._enter_builtin(frame, argument)
        elif event == "return" and id(argument) in self._persistent and frame.f_back is not None:
            self._visit(argument, frame.f_back.f_code, self._paths.get(id(argument), "a result"))

    def _is_interlude(self, frame: types.FrameType) -> bool:
        """Return whether the frame is a callback of the garbage collector, or a nested router's capture."""
        module = frame.f_globals.get("__name__") or ""
        return module.startswith(_CAPTURING) or any(
            frame.f_code is getattr(callback, "__code__", None) for callback in gc.callbacks
        )

    def _enter(self, frame: types.FrameType) -> None:
        code = frame.f_code
        owner = owner_of(frame.f_globals.get("__name__") or "")
        if owner == "torch":
            self._enter_torch(frame, code)
            return
        if owner == "library" and frame.f_globals.get("__name__", "").startswith("wide_compiler"):
            return
        if code not in self._entered:
            self._entered.add(code)
            if owner == "user":
                self._users.add(code)
            if owner != "library":
                self._visit_globals(frame.f_globals, code)
            for function in list(self._functions_of[code]):
                self._note_function(function)
        values = frame.f_locals
        if code.co_argcount and code.co_varnames[0] in values:
            self._note_method(values[code.co_varnames[0]], code)
        for name, value in values.items():
            if id(value) in self._persistent:
                self._visit(value, code, self._paths.get(id(value), name))
            elif owner_of(type(value).__module__) == "user":  # a new object of an existing class
                self._visit_class(type(value), self._names(code), code)

    def _enter_torch(self, frame: types.FrameType, code: types.CodeType) -> None:
        if code is _APPLY:
            self._note_autograd_function(frame.f_locals["cls"])
        elif code is _CHECKPOINT:
            function = frame.f_locals["function"]
            own = [getattr(function, "__self__", None), *getattr(function, "args", ())[:1], function]
            self.checkpointed |= {self._paths[id(one)] for one in own if id(one) in self._running}
        elif code is _CALL_MODULE:
            if _is_checkpointed(frame):
                self.checkpointed.add(self._paths.get(id(frame.f_locals["self"]), ""))
        elif code in _ASKS_TRACING:
            self.asks_tracing |= not _called_by_torch(frame)
        elif code in _SEEDING and not _called_by_torch(frame):
            self.effects.append(f"its forward calls torch's {_SEEDING[code]}, which a graph would freeze")
        elif code is _REGISTER_HOOK and not _called_by_torch(frame):
            self.effects.append("its forward registers a gradient hook on a tensor, which a graph would lose")

    def _note_autograd_function(self, cls: type) -> None:
        known = owner_of(cls.__module__) == "torch" and cls is not CheckpointFunction
        if not known and cls not in self.functions:
            self.functions.append(cls)

    def _enter_builtin(self, frame: types.FrameType, function: Any) -> None:
        owner = owner_of(frame.f_globals.get("__name__") or "")
        if function.__name__ == "apply" and _is_autograd_function(getattr(function, "__self__", None)):
            self._note_autograd_function(function.__self__)
        elif function is torch.is_grad_enabled:
            self.asks_grad_mode |= owner == "user"
        elif owner == "user" and isinstance(getattr(function, "__self__", None), torch.Generator):
            if function.__self__ in (torch.default_generator, *torch.cuda.default_generators):
                what = f"{function.__name__} of PyTorch's generator"
                self.effects.append(f"its forward calls {what}, which a graph would lose")
        elif function is torch.is_inference_mode_enabled and owner == "user":
            self.effects.append("its forward reads the inference mode, which is off during a capture")
        elif (
            owner in ("user", "torch")
            and function.__module__ in _SETTINGS
            and function.__name__.startswith(_ASKS)
            and function.__name__ not in _KEYED
            and (owner == "user" or not _called_by_torch(frame))
        ):
            with contextlib.suppress(TypeError):  # a function that takes arguments is not a setting
                self.reads.note(Flag, function, path=f"the result of {function.__name__}()")

    # Recording of reads, by kind of object.

    def _visit_globals(self, table: dict[str, Any], code: types.CodeType) -> None:
        module, names = table.get("__name__", "?"), names_of(code)
        owner = owner_of(module)
        wanted = names.globals | (names.strings & table.keys() if "globals" in names.globals else set())
        if any(isinstance(table.get(name), _GETTERS) for name in wanted):
            self._dynamic.add(code)
        for name in wanted:
            path = f"the global {name} of {module}"
            if name in table:
                if owner == "user" or isinstance(table[name], types.ModuleType):
                    self.reads.note(Entry, table, name, path=path)
                    self._keep_visit(table[name], code, path)
            elif owner == "user":
                self.reads.note(Entry, table, name, path=path)
                self.reads.note(Entry, vars(builtins), name, path=f"the builtin {name}")
        if owner == "user":
            for name in names.attributes & (_TENSOR_NAMES | vars(Tensor).keys()):
                self.reads.note(ClassEntry, Tensor, name, path=f"Tensor.{name}")
            if names.imports:
                self._importing.append((code, table))
                self._visit_imports(table, code)

    def _visit_imports(self, table: dict[str, Any], code: types.CodeType) -> None:
        """Record the modules that `import` statements inside `code` find.

        Modules not loaded yet are recorded when the call has ended.
        """
        for level, name in names_of(code).imports:
            full = "." * level + name
            package = table.get("__package__") or ""
            full = importlib.util.resolve_name(full, package) if level and package else full
            parts = full.split(".")
            for module in (".".join(parts[: i + 1]) for i in range(len(parts))):
                if module in sys.modules:
                    if owner_of(module) == "user":
                        self.reads.note(Entry, sys.modules, module, path=f"the module {module}")
                    self._keep_visit(sys.modules[module], code, module)

    def _note_method(self, first: Any, code: types.CodeType) -> None:
        """Record the class entry that holds the method with this code."""
        cls = first if isinstance(first, type) else type(first)
        if (cls, code) in self._methods:
            return
        self._methods.add((cls, code))
        for kind in (cls, type(cls)) if cls is first else (cls,):
            for base in kind.__mro__:
                entry = vars(base).get(code.co_name)
                if any(getattr(part, "__code__", None) is code for part in _opened(entry)):
                    self._note_class_entry(kind, base, code.co_name, code)

    def _names(self, code: types.CodeType) -> Names:
        names = names_of(code)
        return dataclasses.replace(names, dynamic=True) if code in self._dynamic else names

    def _keep_visit(self, value: Any, code: types.CodeType, path: str) -> None:
        self._keep(value)
        self._visit(value, code, path)

    def _keep(self, value: Any) -> None:
        if not is_atom(value) and id(value) not in self._persistent:
            self._persistent.add(id(value))
            self._alive.append(value)

    def _visit(self, value: Any, code: types.CodeType, path: str) -> None:
        """Record what `code` reads from `value`, an object that outlives the call."""
        kind = type(value)
        if kind in _SKIPPED:
            return
        key = (id(value), id(code))
        if key in self._visited:
            return
        self._visited.add(key)
        self._paths.setdefault(id(value), path)
        visitor = _VISITORS.get(kind)
        if visitor is None:
            known = (visit for base, visit in _VISITORS.items() if isinstance(value, base))
            visitor = next(known, Observer._visit_object)
            if visitor in _CONTENT and owner_of(kind.__module__) == "user":
                self._visit_object(value, code, path)
        visitor(self, value, code, path)

    def _visit_object(self, value: Any, code: types.CodeType, path: str) -> None:
        if type(value).__module__.partition(".")[0] in _INERT and not isinstance(value, threading.local):
            return
        if isinstance(value, Iterator) and owner_of(type(value).__module__) == "library":
            self.reads.note(State, value, path=path)
            return
        names = self._names(code)
        self._note_kind(value, path)
        self._visit_class(type(value), names, code)
        own = getattr(value, "__dict__", None)
        slots = _slots(type(value))  # type: ignore[arg-type]
        present = {*(own or ()), *slots} if isinstance(own, dict) else set(slots)
        wanted = present if names.dynamic or _looks_up_by_itself(type(value)) else present & names.attributes
        local = isinstance(value, threading.local)
        if local:
            wanted |= {name for name in names.attributes if not callable(getattr(type(value), name, len))}
            wanted |= {name for name in names.optional if not hasattr(value, name)}
        elif isinstance(own, dict):
            self._note_unshadowed(type(value), own, names, path)
        for name in wanted:
            field = f"{path}.{name}"
            self.reads.note(Variable if local else Attribute, value, name, path=field)
            content = getattr(value, name, None) if local else _stored(value, name)
            self._keep_visit(content, code, field)

    def _note_kind(self, value: Any, path: str) -> None:
        if owner_of(type(value).__module__) in ("user", "layers"):
            self.reads.note(ClassOf, value, path=f"{path}.__class__")

    def _note_unshadowed(self, cls: type, own: dict[str, Any], names: Names, path: str) -> None:
        """Record that names found on the class, or nowhere, are absent from the object's own dictionary."""
        for base in cls.__mro__:
            if owner_of(base.__module__) == "user":
                for name in vars(base).keys() & names.attributes - own.keys():
                    self.reads.note(Entry, own, name, path=f"{path}.{name}")
        for name in (names.optional | (names.stores or set())) - own.keys():
            self.reads.note(Entry, own, name, path=f"{path}.{name}")
        if names.dynamic or names.stores is None:
            self.reads.note(Keys, own, path=f"the attributes of {path}")

    def _visit_module(self, module: nn.Module, code: types.CodeType, path: str) -> None:
        names, table = self._names(code), vars(module)
        self._note_kind(module, path)
        if id(module) not in self._running:
            for name in _LIVING_TABLES:
                self.reads.note(Table, table[name], path=f"{path}.{name}")
            for child in module._modules.values():
                self._keep(child)
        self._visit_class(type(module), names, code)
        self._note_unshadowed(type(module), table, names, path)
        self.reads.note(Entry, table, "forward", path=f"{path}.forward")
        for name in table.keys() - MODULE_TABLES:
            if name.startswith(_OUR_STATE):
                continue
            if names.dynamic or name in names.attributes or name == "training":
                self.reads.note(Entry, table, name, path=f"{path}.{name}")
                if not isinstance(table[name], Tensor):
                    self._keep_visit(table[name], code, f"{path}.{name}")
        for name, child in module._modules.items():
            if names.dynamic or name in names.attributes or isinstance(module, _CONTAINERS):
                self._keep_visit(child, code, f"{path}.{name}")

    def _visit_class(self, cls: type, names: Names, code: types.CodeType) -> None:
        if (cls, code) in self._classes or cls.__module__ == "builtins":
            return
        self._classes.add((cls, code))
        self._keep(cls)
        bases = [base for base in cls.__mro__ if owner_of(base.__module__) == "user"]
        if bases:
            self.reads.note(Attribute, cls, "__mro__", path=f"the bases of {cls.__qualname__}")
        found: set[str] = set()
        for base in bases:
            for name in vars(base).keys() & (names.attributes | _ASKED_FOR) - found:
                found.add(name)
                self._note_class_entry(cls, base, name, code)
            for name in names.optional - vars(base).keys():
                self.reads.note(ClassEntry, base, name, path=f"{base.__qualname__}.{name}")

    def _note_class_entry(self, cls: type, base: type, name: str, code: types.CodeType) -> None:
        """Note that `cls` finds the method `name` in `base`: an override in a nearer class is a change."""
        for nearer in cls.__mro__[: cls.__mro__.index(base) + 1]:
            if owner_of(nearer.__module__) in ("user", "layers"):
                self.reads.note(ClassEntry, nearer, name, path=f"{nearer.__qualname__}.{name}")
        for inner in _opened(vars(base)[name]):
            self._keep_visit(inner, code, f"{base.__qualname__}.{name}")

    def _visit_type(self, cls: type, code: types.CodeType, path: str) -> None:
        names = self._names(code)
        if isinstance(cls, abc.ABCMeta):  # `register` can add subclasses
            self.reads.note(Flag, abc.get_cache_token, path="the classes registered with abstract ones")
        if cls is decimal.Decimal:
            self._note_decimals()
        self._visit_class(cls, names, code)
        self._visit_class(type(cls), names, code)
        if _AS_A_WHOLE & (names.globals | names.attributes) and owner_of(cls.__module__) == "user":
            self.reads.note(Keys, cls, path=f"the attributes of {path}")
            for name, value in vars(cls).items():
                if is_atom(value):
                    self.reads.note(ClassEntry, cls, name, path=f"{path}.{name}")

    def _visit_python_module(self, module: types.ModuleType, code: types.CodeType, path: str) -> None:
        if owner_of(module.__name__) != "user":
            self._visit_library(module, names_of(code), path)
            return
        names, table = self._names(code), vars(module)
        for name in names.optional - table.keys():
            self.reads.note(Entry, table, name, path=f"{path}.{name}")
        for name in table.keys() & names.attributes if not names.dynamic else list(table):
            self.reads.note(Entry, table, name, path=f"{path}.{name}")
            # `getattr` may read any entry, but only entries named in the code are visited recursively.
            if name in names.attributes or name in code.co_consts:
                self._keep_visit(table[name], code, f"{path}.{name}")

    def _visit_library(self, module: types.ModuleType, names: Names, path: str) -> None:
        """Record state of library modules that may change: replaced functions, lists, `os.environ`, random
        generators, decimal context, current thread."""
        table = vars(module)
        for name in table.keys() & names.attributes:
            self.reads.note(Entry, table, name, path=f"{path}.{name}")
            if isinstance(table[name], list):
                self.reads.note(SequenceItems, table[name], path=f"{path}.{name}")
        if module.__name__ == "os" and names.attributes & {"environ", "getenv"}:
            self._note_environment()
        elif module.__name__ in ("decimal", "_decimal"):
            self._note_decimals()
        elif module.__name__ == "threading" and names.attributes & {f.__name__ for f in _ASK_FOR_THREAD}:
            self._note_thread()
        elif module.__name__ == "random":
            self.reads.note(State, random._inst, path="Python's own random numbers")  # type: ignore[attr-defined]
        elif module.__name__ in ("numpy", "numpy.random") and names.attributes & {"random", *_DRAWS}:
            self.reads.note(State, np.random.mtrand._rand, path="NumPy's random numbers")  # type: ignore[attr-defined]

    def _note_environment(self) -> None:
        self.reads.note(Table, os.environ._data, path="os.environ")  # type: ignore[attr-defined]

    def _note_decimals(self) -> None:
        self.reads.note(Flag, _decimal_context, path="the context of decimal numbers")

    def _note_thread(self) -> None:
        self.reads.note(Flag, _thread, path="the thread that calls")

    def _visit_decimal(self, value: decimal.Decimal, code: types.CodeType, path: str) -> None:
        self._note_decimals()

    def _visit_logger(self, logger: logging.Logger | None, code: types.CodeType, path: str) -> None:
        while logger is not None:
            self.reads.note(Attribute, logger, "level", path=f"the level of the logger {logger.name}")
            logger = logger.parent

    def _visit_builtin(self, function: Any, code: types.CodeType, path: str) -> None:
        if isinstance(function.__self__, _RANDOM):  # for example `from random import random`
            self.reads.note(State, function.__self__, path=path)
        elif function in _ASK_FOR_THREAD:
            self._note_thread()
        elif function is decimal.getcontext:
            self._note_decimals()

    def _visit_function(self, function: Any, path: str) -> None:
        self._visit(function, _NO_CODE, path)

    _visit_moving = _noting(State)
    _visit_array = _noting(Array)
    _visit_bytes = _noting(Bytes)

    def _visit_plain_function(self, function: types.FunctionType, code: types.CodeType, path: str) -> None:
        known = self._functions_of[function.__code__]
        if not any(function is other for other in known):
            known.append(function)
            self._keep(function)
            if function.__code__ in self._entered:
                self._note_function(function)
        if function is os.getenv:
            self._note_environment()
        elif function in _ASK_FOR_THREAD:
            self._note_thread()
        names = self._names(code)
        for name in names.optional - vars(function).keys():
            self.reads.note(Entry, vars(function), name, path=f"{path}.{name}")
        for name, value in vars(function).items():  # includes `__wrapped__`
            if names.dynamic or name in names.attributes:
                self.reads.note(Entry, vars(function), name, path=f"{path}.{name}")
            if name not in _MEMO:
                self._keep_visit(value, code, path)

    def _visit_remembered(self, wrapper: Any, code: types.CodeType, path: str) -> None:
        """Record what a function under `lru_cache` would read; a cache hit does not enter it."""
        function = wrapper.__wrapped__
        if isinstance(function, types.FunctionType) and owner_of(function.__module__ or "") == "user":
            self._keep(function)
            self._note_function(function)
            if function.__code__ not in self._entered:
                self._entered.add(function.__code__)
                self._visit_globals(function.__globals__, function.__code__)

    def _note_function(self, function: types.FunctionType) -> None:
        """Record the closure cells, defaults and code of a function that was entered."""
        code, path = function.__code__, function.__qualname__
        if owner_of(function.__module__ or "") != "user":
            return
        for field in _FUNCTION_FIELDS:
            self.reads.note(Attribute, function, field, path=f"{path}.{field}")
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            if name in _MEMO and code.co_filename == functools.__file__:
                continue
            field = f"the variable {name} around {path}"
            self.reads.note(Attribute, cell, "cell_contents", path=field)
            self._keep_visit(_stored(cell, "cell_contents"), code, field)
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._keep_visit(value, code, f"a default of {path}")
        if function.__kwdefaults__:
            self.reads.note(Table, function.__kwdefaults__, path=f"the defaults of {path}")

    def _visit_parts(self, value: Any, code: types.CodeType, path: str) -> None:
        """Visit the parts of a bound method, partial, weak reference or other wrapper."""
        if isinstance(value, functools.partial):
            self.reads.note(Table, value.keywords, path=f"the keywords of {path}")
        for part in _opened(value):
            self._keep_visit(part, code, path)

    def _visit_view(self, view: Any, code: types.CodeType, path: str) -> None:
        """Visit the dictionary behind a dictionary view."""
        for table in gc.get_referents(view):
            self._keep_visit(table, code, path)

    def _visit_tensor(self, tensor: Tensor, code: types.CodeType, path: str) -> None:
        if id(tensor) in self.owned or _is_fake(tensor):
            return
        self.reads.note(HeldTensor, tensor, path=path)
        names = self._names(code)
        for name in {*vars(tensor), "grad"} & names.attributes:
            if name != "grad" or tensor.is_leaf:
                self.reads.note(Attribute, tensor, name, path=f"{path}.{name}")
                self._keep_visit(getattr(tensor, name), code, f"{path}.{name}")

    def _visit_items(self, items: Any, code: types.CodeType, path: str) -> None:
        if not isinstance(items, tuple):
            self.reads.note(SequenceItems, items, path=path)
        for place, item in enumerate(items):
            if not is_atom(item):
                self._keep_visit(item, code, f"{path}[{place}]")

    def _visit_table(self, table: dict, code: types.CodeType, path: str) -> None:
        self.reads.note(Table, table, path=path)
        for key, item in table.items():
            if not is_atom(item):
                self._keep_visit(item, code, f"{path}[{key!r}]")

    def _visit_set(self, members: Any, code: types.CodeType, path: str) -> None:
        if isinstance(members, set):
            self.reads.note(Set, members, path=path)
        for member in members:
            self._keep_visit(member, code, f"a member of {path}")

    def _visit_variable(self, variable: Any, code: types.CodeType, path: str) -> None:
        self.reads.note(Variable, variable, "", path=path)
        value = variable.get(None)
        self._keep_visit(value, code, path)

    def _find_closures(self) -> None:
        """Record functions with closures that were entered but not visited (called by C functions)."""
        inner = {c for code in self._entered for c in code.co_consts if isinstance(c, types.CodeType)}
        for code in self._users - inner:
            if code.co_freevars and not self._functions_of[code]:
                for function in gc.get_referrers(code):
                    if isinstance(function, types.FunctionType):
                        self._functions_of[code].append(function)
                        self._note_function(function)


# Names that Python reads from a class implicitly. Special methods are recorded when they are entered.
_ASKED_FOR = frozenset({"forward", "__match_args__"})
_AS_A_WHOLE = {"vars", "dir", "__dict__", "__annotations__"}
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
_GETTERS = (operator.attrgetter, operator.methodcaller)
# Recorded for modules that are not in `roots`: children, hooks, and tensors by identity.
_LIVING_TABLES = ("_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks")
_NO_CODE = (lambda: None).__code__
_DRAWS = {name for name in dir(np.random) if name[0].islower()}
_VISITORS: dict[type, Any] = {
    **dict.fromkeys(_MOVING, Observer._visit_moving),
    types.BuiltinFunctionType: Observer._visit_builtin,
    nn.Module: Observer._visit_module,
    Tensor: Observer._visit_tensor,
    np.ndarray: Observer._visit_array,
    **dict.fromkeys((bytearray, array.array, memoryview), Observer._visit_bytes),
    **dict.fromkeys(map(type, ({}.keys(), {}.values(), {}.items())), Observer._visit_view),
    types.MappingProxyType: Observer._visit_view,
    logging.Logger: Observer._visit_logger,
    decimal.Decimal: Observer._visit_decimal,
    functools._lru_cache_wrapper: Observer._visit_remembered,
    **dict.fromkeys((list, tuple, collections.deque), Observer._visit_items),
    dict: Observer._visit_table,
    **dict.fromkeys((set, frozenset), Observer._visit_set),
    types.FunctionType: Observer._visit_plain_function,
    **dict.fromkeys((types.MethodType, functools.partial), Observer._visit_parts),
    **dict.fromkeys((weakref.ref, *weakref.ProxyTypes), Observer._visit_parts),
    **dict.fromkeys((property, staticmethod, classmethod, functools.cached_property), Observer._visit_parts),
    types.ModuleType: Observer._visit_python_module,
    contextvars.ContextVar: Observer._visit_variable,
    type: Observer._visit_type,
}


# User subclasses of these kinds may have attributes in addition to their content.
_CONTENT = (Observer._visit_items, Observer._visit_table, Observer._visit_set, Observer._visit_array)


_ASK_FOR_THREAD = (threading.current_thread, threading.get_ident, threading.get_native_id)


def _decimal_context() -> str:
    return repr(decimal.getcontext())


def _thread() -> tuple[int, str]:
    return threading.get_ident(), threading.current_thread().name


def _opened(value: Any) -> list[Any]:
    """Return the objects inside a wrapper; a list of the value itself if it is not a wrapper."""
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, property):
        return [f for f in (value.fget, value.fset) if f is not None]
    if isinstance(value, (staticmethod, classmethod, functools.cached_property)):
        return [value.func if isinstance(value, functools.cached_property) else value.__func__]
    if isinstance(value, weakref.ref):
        return [value()]
    if type(value) in weakref.ProxyTypes:
        return [value.__repr__.__self__]
    return [value]


def _stored(value: Any, name: str) -> Any:
    try:
        return object.__getattribute__(value, name)
    except (AttributeError, ValueError):
        return None


@functools.lru_cache(maxsize=4096)
def _slots(cls: type) -> tuple[str, ...]:
    found: list[str] = []
    for base in cls.__mro__:
        found += [n for n, v in vars(base).items() if isinstance(v, types.MemberDescriptorType)]
    return tuple(found) if owner_of(cls.__module__) == "user" else ()


def _looks_up_by_itself(cls: type) -> bool:
    """Return whether the class customises attribute lookup."""
    return "__getattr__" in dir(cls) or cls.__getattribute__ is not object.__getattribute__


def _is_fake(tensor: Tensor) -> bool:
    """Return whether the tensor's values are not in this process."""
    return type(tensor).__name__ in ("FakeTensor", "SignalTensor")


def _called_by_torch(frame: types.FrameType) -> bool:
    """Return whether the caller is PyTorch (activation checkpointing, for example) or this library."""
    caller = frame.f_back
    while caller is not None and (caller.f_globals.get("__name__") or "") in _BETWEEN:
        caller = caller.f_back
    module = "" if caller is None else caller.f_globals.get("__name__") or ""
    return owner_of(module) in ("torch", "layers") or module.startswith("wide_compiler.")


# Decorators and helpers between a caller and the PyTorch function.
_BETWEEN = {"contextlib", "torch._compile", "torch._dynamo.eval_frame", "torch.random", "torch.cuda.random"}


def _is_autograd_function(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, torch.autograd.Function)
