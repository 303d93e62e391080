"""Statics: the static fields of a module, as the part of a tree's structure that PyTorch and JAX compare."""

import hashlib
from typing import Any

import numpy as np
import torch

from ..errors import WrongTypeError


class Statics(tuple[Any, ...]):
    """The values of static fields, in order. A tuple, but equal and hashable also where it holds arrays,
    whose own `==` gives no truth. Shown with a digest of an array's content: who compares structures by
    their text must see that two long arrays differ."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, tuple) or len(self) != len(other):
            return False
        if all(a is b for a, b in zip(self, other, strict=True)):
            return True
        try:
            return bool(_key(tuple(self)) == _key(tuple(other)))
        except Exception:  # two objects that cannot be compared
            return False

    def __ne__(self, other: object) -> bool:  # a tuple has its own
        return not self == other

    def __hash__(self) -> int:
        return hash(_key(tuple(self)))

    def __repr__(self) -> str:
        return _shown(tuple(self))


class _Held:
    """A value that cannot stand in a key itself: an array, or what has no hash."""

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held) and _same(self.value, other.value)

    def __hash__(self) -> int:
        return hash(type(self.value))  # the content may change


def _key(value: Any) -> Any:
    """Something with a hash that is equal where the value is."""
    kind = type(value)
    if kind in (tuple, Statics):
        return (tuple, *[_key(part) for part in value])
    if kind is list:
        return (list, *[_key(part) for part in value])
    if kind is dict:
        return (dict, frozenset((name, _key(part)) for name, part in value.items()))
    if isinstance(value, (np.ndarray, torch.Tensor)):
        return _Held(value)
    try:
        hash(value)
    except TypeError:
        return _Held(value)
    return value


def _same(a: Any, b: Any) -> bool:
    """Arrays of one type by dtype, shape and content, to the last bit; others by `==`. What cannot be
    compared is the same only if it is one object."""
    if a is b or type(a) is not type(b):
        return a is b
    try:
        if type(a) is np.ndarray:
            return a.dtype == b.dtype and a.shape == b.shape and _content(a) == _content(b)
        if isinstance(a, torch.Tensor):
            alike = a.dtype == b.dtype and a.shape == b.shape and a.device == b.device
            return alike and torch.equal(_bytes(a), _bytes(b))
        return bool(a == b)
    except Exception:
        return False


def _content(array: np.ndarray) -> Any:
    return _key(array.tolist()) if array.dtype.hasobject else array.tobytes()


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().resolve_neg().reshape(-1).view(torch.uint8)


def _shown(value: Any) -> str:
    kind = type(value)
    if kind is list:
        return f"[{', '.join(map(_shown, value))}]"
    if kind is tuple:
        return f"({', '.join(map(_shown, value))}{',' * (len(value) == 1)})"
    if kind is dict:
        return "{" + ", ".join(f"{name!r}: {_shown(part)}" for name, part in value.items()) + "}"
    try:
        if isinstance(value, torch.Tensor):
            return _digest(value, _bytes(value).cpu().numpy().tobytes())
        if kind is np.ndarray and not value.dtype.hasobject:
            return _digest(value, value.tobytes())
    except Exception:  # a tensor without content of its own
        return f"<{kind.__qualname__} at {id(value):#x}>"
    return repr(value)


def _digest(array: Any, content: bytes) -> str:
    digest = hashlib.sha256(content).hexdigest()[:16]
    return f"<{type(array).__qualname__} {array.dtype}{list(array.shape)} {digest}>"


def dumpable(value: Any) -> Any:
    """A static value as JSON can hold it, so that `loaded` gives the same one. Raises TypeError on others."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is list:
        return [dumpable(part) for part in value]
    if kind in (tuple, Statics):
        return {"tuple": [dumpable(part) for part in value]}
    if kind is dict:
        return {"dict": [[dumpable(name), dumpable(part)] for name, part in value.items()]}
    raise WrongTypeError(f"a {kind.__qualname__} cannot be written as JSON")


def loaded(value: Any) -> Any:
    """What `dumpable` was given."""
    if isinstance(value, list):
        return [loaded(part) for part in value]
    if not isinstance(value, dict):
        return value
    ((kind, parts),) = value.items()
    if kind == "tuple":
        return tuple(loaded(part) for part in parts)
    return {loaded(name): loaded(part) for name, part in parts}
