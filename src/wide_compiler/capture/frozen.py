"""What a graph would freeze without a word: Python state that moves, Python's own random numbers, hooks."""

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .failure import CaptureFailed

# nn.Module's own bookkeeping, and the weight lists that RNNs keep up to date by themselves.
_INTERNAL = {*vars(nn.Module()), "_flat_weights", "_flat_weight_refs", "_flat_weights_names"} - {"training"}


def python_state(member: nn.Module) -> dict[str, Any]:
    """A picture of all plain attributes, to tell whether a forward has changed one."""
    state: dict[str, Any] = {}
    for path, module in member.named_modules():
        for name, value in vars(module).items():
            if name not in _INTERNAL and name != "forward":
                state[f"{path}.{name}".lstrip(".")] = _picture(value, depth=4)
    return state


def _picture(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return (type(value).__name__, repr(value))
    if isinstance(value, Tensor):
        return ("tensor", id(value), value._version)
    if isinstance(value, nn.Module) or depth == 0:
        return ("object", id(value))
    if isinstance(value, (list, tuple)):
        return tuple(_picture(item, depth - 1) for item in value)
    if isinstance(value, dict):
        return tuple((repr(key), _picture(item, depth - 1)) for key, item in value.items())
    if isinstance(value, (set, frozenset)):
        return frozenset(map(repr, value))
    if isinstance(value, np.ndarray):
        return ("array", value.tobytes())
    if hasattr(value, "__dict__") and not callable(value):
        return tuple((name, _picture(item, depth - 1)) for name, item in vars(value).items())
    return ("object", id(value))


@contextlib.contextmanager
def watch_frozen_effects() -> Iterator[None]:
    """Raise `CaptureFailed` if the forward draws from Python's generators or hooks into a gradient."""
    before = (random.getstate(), repr(np.random.get_state()))
    register_hook = torch.Tensor.register_hook

    def refuse(self: Tensor, hook: Any) -> Any:
        raise CaptureFailed("its forward registers a gradient hook on a tensor, which a graph would lose")

    torch.Tensor.register_hook = refuse  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.Tensor.register_hook = register_hook  # type: ignore[method-assign]
    if before != (random.getstate(), repr(np.random.get_state())):
        raise CaptureFailed("its forward draws from Python's own random numbers, which a graph would freeze")
