"""Compare members in plain Python (a dropout rate, a sign, a closure); equal members share a capture.

Everything a forward can read is compared: module attributes, hooks, closures, config objects. Objects that
cannot be compared count as different, which costs one more capture and is always correct.
"""

import functools
import types
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .state import slots

_CONTAINERS = {dict, OrderedDict, list, tuple, set}
_ATOMS = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, torch.Size, type)


def group_by_variant(models: Sequence[nn.Module]) -> list[int]:
    """Return the index of each lane's variant; lanes of one variant run the same Python.

    >>> group_by_variant([nn.Dropout(0.1), nn.Dropout(0.2), nn.Dropout(0.1)])
    [0, 1, 0]
    """
    leaders: list[tuple[nn.Module, dict[int, str]]] = []
    variants = []
    for model in models:
        state = _state(model)
        for index, (leader, known) in enumerate(leaders):
            if _ObjectComparison({**known, **state}).alike(leader, model):
                variants.append(index)
                break
        else:
            variants.append(len(leaders))
            leaders.append((model, state))
    return variants


def tensors_apart(a: nn.Module, b: nn.Module) -> dict[int, Tensor] | None:
    """For models that differ only in values of tensors in lists, dicts or objects: id of a's tensor -> b's.

    None if they differ in anything else.
    """
    comparison = _ObjectComparison({**_state(a), **_state(b)})
    comparison.apart = {}
    return comparison.apart if comparison.alike(a, b) else None


def _state(model: nn.Module) -> dict[int, str]:
    """Path by id of every state tensor (its first path) and of every submodule.

    State is stacked per lane, so its values may differ. A submodule that is referenced again (in a plain
    list, say) must be the same one in both models.
    """
    state: dict[int, str] = {}
    for slot in slots(model):
        state.setdefault(id(slot.tensor), slot.path)
    for path, module in model.named_modules():
        state[id(module)] = f"module {path}"
    return state


class _ObjectComparison:
    def __init__(self, state: dict[int, str]):
        self.state = state
        self.apart: dict[int, Tensor] | None = None  # if not None, tensors may differ and are recorded here
        # Pairs being compared, kept alive, because the id of a dead object could be reused.
        self.seen: dict[tuple[int, int], tuple[Any, Any]] = {}

    def alike(self, a: Any, b: Any) -> bool:
        if a is b or (type(a) is type(b) and type(a) in _CONTAINERS and not a and not b):
            return True  # fast path: most containers of a module are empty
        if (id(a), id(b)) in self.seen:
            return True
        if self.state.get(id(a)) != self.state.get(id(b)):
            return False
        if id(a) in self.state and isinstance(a, Tensor):
            return True
        if type(a) is not type(b) and not self._alike_classes(type(a), type(b)):
            return False
        if isinstance(a, _ATOMS):
            return repr(a) == repr(b) if isinstance(a, (float, complex)) else bool(a == b)
        self.seen[id(a), id(b)] = (a, b)
        return self._alike_inside(a, b)

    def _alike_classes(self, a: type, b: type) -> bool:
        """Return whether two classes of one name (of a factory, or a repeated notebook cell) are equal."""
        names = [(cls.__qualname__, cls.__module__, len(cls.__mro__)) for cls in (a, b)]
        if names[0] != names[1]:
            return False
        if (id(a), id(b)) in self.seen:
            return True
        self.seen[id(a), id(b)] = (a, b)
        mine, theirs = _members(a), _members(b)
        pairs = zip(a.__mro__[1:], b.__mro__[1:], strict=True)
        bases = all(x is y or self._alike_classes(x, y) for x, y in pairs)
        return bases and mine.keys() == theirs.keys() and all(self.alike(mine[k], theirs[k]) for k in mine)

    def _alike_inside(self, a: Any, b: Any) -> bool:
        if isinstance(a, dict):
            return list(a) == list(b) and all(map(self.alike, a.values(), b.values()))
        if isinstance(a, np.ndarray):
            return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        if isinstance(a, Tensor):
            if a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
                return False
            if self.apart is None:
                return a.is_meta or torch.equal(a, b)  # meta tensors have no values
            return self.apart.setdefault(id(a), b) is b
        if isinstance(a, (list, tuple)):
            return len(a) == len(b) and all(map(self.alike, a, b))
        if isinstance(a, (set, frozenset)):
            return a == b
        if isinstance(a, weakref.ref):
            return self.alike(a(), b())
        if isinstance(a, types.FunctionType):
            parts = [[f.__defaults__, f.__kwdefaults__, _cells(f), vars(f)] for f in (a, b)]
            return a.__code__ is b.__code__ and all(map(self.alike, *parts))
        if isinstance(a, types.MethodType):
            return a.__func__ is b.__func__ and self.alike(a.__self__, b.__self__)
        if isinstance(a, functools.partial):
            return self.alike((a.func, a.args, a.keywords), (b.func, b.args, b.keywords))
        if isinstance(a, nn.Module):
            return self.alike(_attributes(a), _attributes(b))
        if hasattr(a, "__dict__"):
            return self.alike(vars(a), vars(b))
        try:
            return bool(a == b)
        except Exception:  # comparing may raise anything; counts as different
            return False


def _members(cls: type) -> dict[str, Any]:
    """Return what a class itself defines, with descriptors replaced by their functions."""
    members: dict[str, Any] = {}
    for name, value in vars(cls).items():
        if name in ("__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__firstlineno__"):
            continue
        if isinstance(value, property):
            value = (value.fget, value.fset, value.fdel)
        members[name] = getattr(value, "__func__", value)
    return members


def _attributes(module: nn.Module) -> dict[str, Any]:
    # Hook dicts are keyed by a counter that does not affect results.
    table = vars(module).items()
    return {k: list(v.values()) if "_hooks" in k and isinstance(v, dict) else v for k, v in table}


def _cells(fn: types.FunctionType) -> list[Any]:
    cells = fn.__closure__ or ()
    return [cell.cell_contents if cell != types.CellType() else None for cell in cells]  # None: never set
