"""What a graph would freeze without a word: Python state that moves, Python's own random numbers, hooks."""

import contextlib
import random
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .failure import CaptureFailed

# nn.Module's own bookkeeping, and the weight lists that RNNs keep up to date by themselves.
_INTERNAL = {*vars(nn.Module()), "_flat_weights", "_flat_weight_refs", "_flat_weights_names"} - {"training"}


def python_state(member: nn.Module) -> dict[str, Any]:
    """A picture of all that plain Python holds for a forward, to tell whether it has changed any of it."""
    state: dict[str, Any] = {}
    for path, module in member.named_modules():
        for name, value in vars(module).items():
            if name not in _INTERNAL and name != "forward":
                state[f"{path}.{name}".lstrip(".")] = _picture(value, depth=4)
                state |= _globals_of(value)
        for cls in type(module).__mro__:
            if cls.__module__.split(".")[0] != "torch":
                state |= {f"{cls.__name__}.{k}": _picture(v, 3) for k, v in vars(cls).items() if _is_data(v)}
                state |= _globals_of(vars(cls).get("forward"))
    return state


def _globals_of(function: Any) -> dict[str, Any]:
    """Numbers and containers among the globals that a function names."""
    if not isinstance(function, types.FunctionType):
        return {}
    named = {n: function.__globals__[n] for n in function.__code__.co_names if n in function.__globals__}
    return {f"the global {name}": _picture(value, 3) for name, value in named.items() if _is_data(value)}


def _is_data(value: Any) -> bool:
    return isinstance(value, (bool, int, float, str, list, dict, set, np.ndarray, Tensor))


def _picture(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return (type(value).__name__, repr(value))
    if isinstance(value, Tensor):
        return ("tensor", id(value), value._version)
    if isinstance(value, (nn.Module, type, types.FunctionType, types.ModuleType)) or depth == 0:
        return ("object", id(value))
    if isinstance(value, (list, tuple)):
        return tuple(_picture(item, depth - 1) for item in value)
    if isinstance(value, dict):
        return tuple((repr(key), _picture(item, depth - 1)) for key, item in value.items())
    if isinstance(value, (set, frozenset)):
        return frozenset(map(repr, value))
    if isinstance(value, np.ndarray):
        return ("array", value.tobytes())
    return _picture_by_pickling(value, depth)


def _picture_by_pickling(value: Any, depth: int) -> Any:
    """What pickle would write of an object is its state: counters, queues, iterators, generators."""
    try:
        _, *parts = value.__reduce_ex__(4)
    except Exception:  # an object may refuse in any way; then it has no state that we could see
        return ("object", id(value))
    return tuple(_picture(list(p) if isinstance(p, Iterator) else p, depth - 1) for p in parts)


@contextlib.contextmanager
def watch_frozen_effects() -> Iterator[None]:
    """Raise `CaptureFailed` if the forward draws from Python's generators, sets PyTorch's, or hooks into a
    gradient."""
    before = (random.getstate(), repr(np.random.get_state()))
    register_hook = torch.Tensor.register_hook

    def refuse(self: Tensor, hook: Any) -> Any:
        raise CaptureFailed("its forward registers a gradient hook on a tensor, which a graph would lose")

    generator = torch.random.default_generator
    torch.Tensor.register_hook = refuse  # type: ignore[method-assign]
    torch.random.default_generator = _Unset(generator)  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.Tensor.register_hook = register_hook  # type: ignore[method-assign]
        torch.random.default_generator = generator
    if before != (random.getstate(), repr(np.random.get_state())):
        raise CaptureFailed("its forward draws from Python's own random numbers, which a graph would freeze")


class _Unset:
    """PyTorch's generator, as long as the forward does not set it: a graph would draw on from where it is."""

    def __init__(self, generator: torch.Generator):
        self._generator, self._thread = generator, threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)

    def manual_seed(self, seed: int) -> torch.Generator:
        self._refuse("seeds")
        return self._generator.manual_seed(seed)

    def seed(self) -> int:
        self._refuse("seeds")
        return self._generator.seed()

    def set_state(self, state: Tensor) -> None:
        caller = sys._getframe(2).f_globals.get("__name__", "")
        if caller.split(".")[0] != "torch":  # fork_rng puts back what it has found
            self._refuse("sets the state of")
        self._generator.set_state(state)

    def _refuse(self, does: str) -> None:
        if threading.get_ident() == self._thread:
            raise CaptureFailed(f"its forward {does} PyTorch's random generator, which a graph would not")
