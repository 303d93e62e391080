"""A product that waits for memory, in two halves: a second core has a road there of its own."""

from typing import Any

import numpy as np

from .config import cores
from .threads import in_worker, pool_of

LARGE = 2**21  # bytes that are not in a core's own cache


def product(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """`x @ y` of rows `[n, k]` with a vector `[k]` or a matrix `[k, m]`."""
    if x.nbytes < LARGE or x.ndim != 2 or x.dtype != y.dtype or cores() < 2 or in_worker():
        return np.matmul(x, y)
    middle, out = len(x) // 2, np.empty((len(x), *y.shape[1:]), x.dtype)
    other = pool_of(1).submit(_part, np.geterr(), x[middle:], y, out[middle:])
    try:
        np.matmul(x[:middle], y, out=out[:middle])
    finally:
        other.result()
    return out


def _part(errors: Any, x: np.ndarray, y: np.ndarray, out: np.ndarray) -> None:
    with np.errstate(**errors):  # which is set for each thread by itself
        np.matmul(x, y, out=out)
