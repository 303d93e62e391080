"""Types that the analysis knows, and marker classes that represent several types."""

from typing import Any

import numpy as np
import torch


class Plain:
    """Represents any immutable built-in value: a number, a string, None."""


class Number(Plain):
    """Represents any number of Python or NumPy."""


class Arrayish:
    """Represents an array without objects in it, or a NumPy scalar: the results of NumPy functions."""


class DataType(Plain):
    """Represents the dtype of an array without objects in it."""


class Opaque:
    """Represents a value that may be passed on but not used."""


class Events:
    """Represents the list to which the body of a loop appends what it puts into containers and totals."""


class Iterator:
    """Represents a zip, enumerate, reversed or generator over analysed values."""


class Bottom:
    """Represents the result of code that does not return, or of a recursion not analysed yet."""


NUMBERS = (int, float, bool, complex)
CONSTANTS = (type(None), *NUMBERS, str, bytes)
IMMUTABLE = (*CONSTANTS, range, slice, type(Ellipsis), torch.dtype, torch.device, torch.Size)
CONTAINERS = (list, tuple, dict, set, frozenset)
CHANGEABLE = (list, dict, set)
HOLDERS = (*CONTAINERS, Iterator)  # containers of other values
SAFE = (Plain, DataType, Bottom, *IMMUTABLE)
_SCALARS = frozenset(np.sctypeDict.values()) - {np.object_, np.void}


def is_numpy_scalar(kind: Any) -> bool:
    """Return whether it is a scalar type of NumPy.

    Subclasses may override operators; records may hold objects.
    """
    return isinstance(kind, type) and issubclass(kind, np.generic) and kind in _SCALARS


def words(text: str) -> list[str]:
    """Split a string into names, for tables."""
    return text.split()
