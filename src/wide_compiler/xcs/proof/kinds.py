"""Kinds of values: types that the analysis knows, and what stands for several of them."""

from typing import Any

import numpy as np
import torch


class Plain:
    """Stands for any immutable built-in value: a number, a string, None."""


class Number(Plain):
    """Stands for any number of Python or NumPy."""


class Arrayish:
    """Stands for an array without objects in it, or a NumPy scalar: what NumPy functions return."""


class DataType(Plain):
    """Stands for the dtype of an array without objects in it."""


class Opaque:
    """Stands for a value that may be passed on, but not looked at."""


class Iterator:
    """Stands for a zip, enumerate, reversed or generator over analysed values."""


class Bottom:
    """The value of a call that does not return, or not yet: of a recursion."""


NUMBERS = (int, float, bool, complex)
CONSTANTS = (type(None), *NUMBERS, str, bytes)
IMMUTABLE = (*CONSTANTS, range, slice, type(Ellipsis), torch.dtype, torch.device, torch.Size)
CONTAINERS = (list, tuple, dict, set, frozenset)
CHANGEABLE = (list, dict, set)
HOLDERS = (*CONTAINERS, Iterator)  # of other values
SAFE = (Plain, DataType, Bottom, *IMMUTABLE)
_SCALARS = frozenset(np.sctypeDict.values()) - {np.object_, np.void}


def is_numpy_scalar(kind: Any) -> bool:
    """One of NumPy's own: somebody's subclass has operators of its own, a record may hold objects."""
    return isinstance(kind, type) and issubclass(kind, np.generic) and kind in _SCALARS


def words(text: str) -> list[str]:
    """The names in a text, for tables."""
    return text.split()
