"""Reductions of lanes: over the axes of the items, never over the lanes."""

import functools
import math
from typing import Any

import numpy as np

from .lane import Lane, Trace, bail, computed
from .lane_errors import Bound, alike, of_length, of_spread, of_sum

REDUCTIONS: dict[str, Any] = {
    "sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min, "std": np.std, "var": np.var,
    "prod": np.prod,
    "any": np.any, "all": np.all, "argmax": np.argmax, "argmin": np.argmin, "median": np.median,
    "ptp": np.ptp,
}  # fmt: skip
_EXACT_REDUCTIONS = ("max", "min", "any", "all", "ptp")
_CHOOSING = ("argmax", "argmin", "any", "all", "median")


def reduce(name: str, x: Any, trace: Trace | None, axis: Any = None, **options: Any) -> Lane:
    if type(x) is not Lane or x.kind not in ("array",):
        raise bail(f"{name} of something other than an array", trace)
    extra = set(options) - ({"ddof", "keepdims"} if name in ("std", "var") else {"keepdims"})
    kind = x.data.dtype.kind
    # Of complex numbers the largest is the one with the largest real part, whatever the other is.
    chooses = (kind in "fc" and name in _CHOOSING) or (kind == "c" and name in _EXACT_REDUCTIONS)
    if extra or (x.approx and chooses):
        raise bail(f"{name} with {sorted(extra)}", trace)
    if not (axis is None or type(axis) is int):
        raise bail(f"{name} over several axes", trace)
    if any(n == 0 for n in x.data.shape):
        raise bail(f"{name} of an empty array", trace)
    if axis is not None and not -x.rank <= axis < x.rank:
        raise bail(f"{name} over an axis that is not there", trace)
    if name in ("argmax", "argmin", "median") and axis is None and x.rank > 1:
        raise bail(f"{name} of several axes", trace)
    whole = tuple(range(1, x.data.ndim)) if axis is None else (axis + 1 if axis >= 0 else axis)
    if "ddof" in options:
        count = math.prod(x.data.shape[1:]) if axis is None else x.data.shape[1:][axis]
        if type(options["ddof"]) is not int or options["ddof"] >= count:
            raise bail(f"{name} with as many degrees of freedom as numbers", trace)
    if name in ("argmax", "argmin", "median") and axis is None:
        whole = 1
    # Sums of integers wrap without a word, here as there; means of them are floats.
    whole_numbers = x.data.dtype.kind in "iub" and name not in ("mean", "std", "var")
    run = functools.partial(REDUCTIONS[name], axis=whole, **options)
    approx = x.approx or not (name in _EXACT_REDUCTIONS or whole_numbers)
    error = _error(name, x, axis, whole, options) if approx else None
    # Sums of rows are made as that of one row is, so a spread of equal numbers is nothing, here as there.
    nonnegative = x.nonnegative or (name in ("std", "var") and not x.approx)
    return computed(run, (x,), None, trace, True, approx, error, nonnegative)


def _error(name: str, x: Lane, axis: int | None, whole: Any, options: dict[str, Any]) -> Bound | None:
    if x.data.dtype.kind == "c":
        return None
    if name in ("sum", "mean"):
        count = math.prod(x.data.shape[1:]) if axis is None else x.data.shape[1:][axis]
        return of_sum(x, whole, options.get("keepdims", False), count if name == "mean" else 1.0)
    if name in ("std", "var"):
        return of_spread(x, whole, name == "std", options)
    if name in ("max", "min"):
        return alike(x, functools.partial(np.max, axis=whole, **options))
    return None


def norm(trace: Trace | None, x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Lane:
    """`np.linalg.norm` of vectors, by length."""
    if type(x) is not Lane or ord not in (None, 2) or keepdims or x.rank != 1 or axis not in (None, 0, -1):
        raise bail("a norm other than the length of a vector", trace)
    run = _length if x.data.dtype in _LENGTHS else functools.partial(np.linalg.norm, axis=1)
    nonnegative = x.nonnegative or not x.approx
    return computed(run, (x,), "np", trace, True, True, of_length(x), nonnegative)


def _length(data: np.ndarray) -> np.ndarray:
    return np.sqrt(np.vecdot(data, data))  # the very product that the norm of one vector takes


_LENGTHS = (np.dtype(np.float32), np.dtype(np.float64)) if hasattr(np, "vecdot") else ()  # NumPy 2
