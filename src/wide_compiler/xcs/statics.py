"""Statics: the static fields of a module, as the part of a tree's structure that PyTorch and JAX compare."""

import dataclasses
import hashlib
from typing import Any

import numpy as np
import torch


class Statics(tuple[Any, ...]):
    """The values of static fields, in order. Compared by type and value, arrays by their contents: their own
    `==` gives an array, and their text leaves out most of a long one."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        try:
            return isinstance(other, tuple) and _key(tuple(self)) == _key(tuple(other))
        except Exception:  # two objects that cannot be compared
            return False

    def __ne__(self, other: object) -> bool:  # a tuple has its own
        return not self == other

    def __hash__(self) -> int:
        return hash(_key(tuple(self)))

    def __repr__(self) -> str:
        return repr(_shown(tuple(self)))


def _key(value: Any) -> Any:
    """Something with a hash that is equal where the value is; what has none is equal to itself alone."""
    kind = type(value)
    if isinstance(value, (np.ndarray, torch.Tensor)):
        return _contents(value)
    if isinstance(value, (list, tuple)):
        return kind, tuple(map(_key, value))
    if isinstance(value, dict):
        return kind, frozenset((_key(name), _key(part)) for name, part in value.items())
    if isinstance(value, set):
        return kind, frozenset(value)
    if kind.__hash__ is None and dataclasses.is_dataclass(value):
        return kind, _key(vars(value))
    return kind, id(value) if kind.__hash__ is None else value


def _contents(array: Any) -> tuple[Any, ...]:
    """Stands for an array or tensor: equal where all of its bits are."""
    if isinstance(array, torch.Tensor):
        flat = array.detach().resolve_conj().resolve_neg().reshape(-1)
        held: Any = id(array) if array.is_meta else flat.view(torch.uint8).cpu().numpy().tobytes()
    else:
        held = _key(array.tolist()) if array.dtype.hasobject else array.tobytes()
    digest = hashlib.sha256(held).hexdigest()[:16] if isinstance(held, bytes) else held
    return type(array), str(array.dtype), str(getattr(array, "device", "")), tuple(array.shape), digest


def _shown(value: Any) -> Any:
    """The value with a digest of all of its contents in place of each array."""
    if isinstance(value, (np.ndarray, torch.Tensor)):
        return _contents(value)
    if type(value) in (list, tuple):
        return type(value)(map(_shown, value))
    return {name: _shown(part) for name, part in value.items()} if type(value) is dict else value
