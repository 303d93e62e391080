"""Rules for NumPy functions on lanes: axis k of an item is axis k + 1 of the lanes.

A rule returns `NotImplemented` for arguments it does not support. These, and functions without a rule, are
called item by item, so that one such call does not keep a whole body in the plain loop.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from ..proof.numpy_tables import ARRAY_METHODS, NUMPY_FUNCTIONS
from ..work import Bail
from .arithmetic import REAL, matmul, on_aligned, rank_of
from .gather import by_item
from .lane import COMPUTING, Lane, Objects, computed, data_of, lanes_in

_SUMS = (np.sum, np.mean, np.std, np.var, np.prod)
# Functions along an axis, with their default axis; None means the flattened item.
ALONG: dict[Any, int | None] = {
    **dict.fromkeys((*_SUMS, np.max, np.min, np.ptp, np.argmax, np.argmin, np.any, np.all, np.median), None),
    **dict.fromkeys((np.cumsum, np.cumprod, np.count_nonzero, np.percentile, np.quantile), None),
    **dict.fromkeys((np.diff, np.sort, np.argsort, np.fft.fft, np.fft.ifft, np.fft.rfft, np.fft.irfft), -1),
    **dict.fromkeys((np.roll, np.flip), None),
}  # fmt: skip
_KEEP_SHAPE = (np.roll, np.flip)
_FIRST_AXIS_ADDED = (np.percentile, np.quantile)
# Functions that NumPy computes matrix by matrix on a stack of matrices.
OF_MATRICES = (np.linalg.det, np.linalg.inv, np.linalg.cholesky, np.linalg.eigvalsh)


def _is_array(x: Any) -> bool:
    return type(x) is Lane and x.kind == "array"


def along(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Apply a function along one axis, or to the flattened items."""
    names = _names(function)
    given: dict[str, Any] = {**dict(zip(names, args, strict=False)), **kwargs}
    x, axis = given.pop(names[0]), given.pop("axis", ALONG[function])
    if not _is_array(x) or any(map(lanes_in, given.values())):
        return NotImplemented
    if 0 in x.data.shape:
        raise Bail(f"{function.__name__} of an empty array, of which NumPy may warn")
    if axis is None:
        fits = x.rank == 1 or not (function in _KEEP_SHAPE or given.get("keepdims"))
    else:
        fits = type(axis) is int and -x.rank <= axis < x.rank
    added = np.ndim(given["q"]) if function in _FIRST_AXIS_ADDED else 0
    if not fits or added > 1 or "dtype" in given or "out" in given:
        return NotImplemented
    if given.get("ddof", 0) >= (x.data[0].size if axis is None else x.data.shape[1:][axis]):
        raise Bail(f"{function.__name__} of too few numbers for its ddof, of which NumPy warns")
    rows: np.ndarray = x.data
    where: Any = tuple(range(1, rows.ndim)) if axis is None else axis + (axis >= 0)
    # NumPy chooses the order of summation for numbers that are not contiguous or are converted.
    whole = rows.dtype.kind in "iub" and function in (np.sum, np.prod)
    if function in _SUMS and not whole and not (x.in_rows and rows.dtype in REAL):
        few = (min(len(rows), 16), *rows.shape[1:])
        if rows.dtype not in REAL or not _added_alike(function, axis, where, few, rows.strides, rows.dtype):
            return NotImplemented
    elif axis is None:
        rows, where = rows.reshape(len(rows), -1), 1
    out = function(rows, axis=where, **given)
    out = np.ascontiguousarray(np.moveaxis(out, 0, 1)) if added else out
    return Lane(out, "array" if out.ndim > 1 else "np")


@functools.lru_cache(maxsize=256)
def _added_alike(function: Any, axis: Any, where: Any, shape: Any, strides: Any, dtype: Any) -> bool:
    """Return whether a sum over stacked items gives the same bits as over single items.

    Tested once per layout.
    """
    if min(strides) <= 0 or any(stride % dtype.itemsize for stride in strides):
        return False
    size = sum((k - 1) * s for k, s in zip(shape, strides, strict=True)) // dtype.itemsize + 1
    numbers = np.random.default_rng(0).normal(size=size).astype(dtype)
    data = np.lib.stride_tricks.as_strided(numbers, shape, strides)
    alone = np.array([function(row, axis=axis) for row in data])
    return bool(function(data, axis=where).tobytes() == alone.tobytes())


@functools.cache
def _names(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """Return the 2-norm of a vector, or the Frobenius norm of a matrix."""
    plain = _is_array(x) and x.data.dtype in REAL and x.in_rows and hasattr(np, "vecdot")
    if not plain or ord is not None or keepdims or not (axis is None or (x.rank == 1 and axis in (0, -1))):
        return NotImplemented
    rows = x.data.reshape(len(x.data), -1)
    return Lane(np.sqrt(np.vecdot(rows, rows)), "np")


def solve(a: Any, b: Any) -> Any:
    ranks = [rank_of(x, any_order=True) for x in (a, b)]
    if ranks not in ([2, 1], [2, 2]) or any(data_of(x).dtype not in REAL for x in (a, b)):
        return NotImplemented
    if ranks[1] == 2:
        return computed(np.linalg.solve, (a, b), "array")
    return computed(lambda m, v: np.linalg.solve(m, v[..., None])[..., 0], (a, b), "array")


def of_matrices(function: Any, x: Any) -> Any:
    if type(x) is not Lane or x.rank != 2 or x.data.dtype not in REAL:
        return NotImplemented
    return computed(function, (x,))


def dot(a: Any, b: Any) -> Any:
    return a * b if 0 in (rank_of(a, any_order=True), rank_of(b, any_order=True)) else matmul(a, b)


def _by_number(function: Any, *inputs: Any) -> Any:
    """Apply an elementwise function to lanes and shared arrays of any rank."""
    if any(isinstance(x, (Objects, type(None))) or (type(x) is Lane and x.kind != "array") for x in inputs):
        return NotImplemented
    ranks = list(map(rank_of, inputs))
    return computed(functools.partial(on_aligned, function, ranks), inputs, "array")


def clip(x: Any, a_min: Any = None, a_max: Any = None) -> Any:
    """Uses np.clip itself, which treats signed zeros differently from `minimum` and `maximum`."""
    return _by_number(np.clip, x, a_min, a_max) if _is_array(x) else NotImplemented


def where(condition: Any, a: Any = None, b: Any = None) -> Any:
    return _by_number(np.where, condition, a, b)


def made_array(value: Any, dtype: Any = None) -> Any:
    """Return `np.array` of nested lists of lanes and numbers."""
    if type(value) is Lane:
        made = copied(value)
    elif type(value) in (list, tuple) and value:
        parts = [made_array(part) if type(part) in (list, tuple) else part for part in value]
        if not all(type(p) is Lane or type(p) in (float, int, bool, np.float64) for p in parts):
            raise Bail("np.array of values that are not numbers")
        if len({p.rank if type(p) is Lane else 0 for p in parts}) != 1:
            raise Bail("np.array of values of different shapes")
        n, data = lanes_in(parts), list(map(data_of, parts))
        made = Lane(np.stack([np.broadcast_to(d, (n, *np.shape(d)[1:])) for d in data], 1), "array")
    else:
        raise Bail(f"np.array of a {type(value).__name__}")
    return made if dtype is None else astype(made, dtype)


def histogram(a: Any, bins: Any = 10, range: Any = None, **options: Any) -> Any:
    """Rule for a fixed range and number of bins, so that all items have the same edges."""
    if isinstance(a, Lane) and a.data.dtype == bool:
        raise Bail("a histogram of booleans, of which NumPy warns")
    plain = _is_array(a) and a.data.dtype in REAL and type(bins) is int and bins > 0
    if not plain or options or type(range) is not tuple or lanes_in(range):
        return NotImplemented
    edges = np.histogram_bin_edges(np.zeros(0, a.data.dtype), bins, range)
    rows = a.data.reshape(len(a.data), -1)
    place = np.searchsorted(edges, rows, side="right") - 1
    place[rows == edges[-1]] = bins - 1
    inside = (place >= 0) & (place < bins)
    place += (np.arange(len(rows)) * bins)[:, None]
    counts = np.bincount(place[inside], minlength=len(rows) * bins).reshape(len(rows), bins)
    return Lane(counts, "array"), Lane(np.tile(edges, (len(rows), 1)), "array")


def reshape(x: Lane, *shape: Any) -> Lane:
    wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
    if not wanted or not all(type(s) is int for s in wanted) or not x.in_rows:
        raise Bail("reshape of an array that is not contiguous, or to a shape that is not made of ints")
    full = np.empty(x.data.shape[1:], bool).reshape(wanted).shape  # raises if the shape does not fit
    return Lane(x.data.reshape(len(x.data), *full), "array", x.fresh)


def transpose(x: Lane) -> Lane:
    return Lane(x.data.transpose(0, *range(x.rank, 0, -1)), "array", x.fresh)


def copied(x: Lane) -> Lane:
    if x.kind != "array":
        raise Bail("a copy of a number, which is an array with 0 dimensions")
    return computed(np.copy, (x,), "array")


def astype(x: Lane, dtype: Any) -> Lane:
    wanted, own, data = np.dtype(dtype), x.data.dtype, x.data
    if wanted.char not in COMPUTING or (own.kind == "c" and wanted.kind != "c"):
        raise Bail(f"conversion from {own} to {wanted}")
    if own.kind == "f" and wanted.kind in "iu":
        limits = np.iinfo(wanted)
        # The conversion of numbers out of range is undefined, and differs between scalars and arrays.
        if not ((data > limits.min - 1.0) & (data < limits.max + 1.0)).all():
            raise Bail(f"numbers out of the range of {wanted}")
    return Lane(data.astype(wanted), x.kind)


_PYTHON_KINDS = {"f": "float", "i": "int", "u": "int", "b": "bool"}
_PYTHON_TYPES = {"float": np.float64, "int": np.int64, "bool": np.bool_}


def as_python(x: Lane) -> Lane:
    """Convert a NumPy scalar to a Python number: `.item()`, `float()`, ..."""
    kind = _PYTHON_KINDS.get(x.data.dtype.kind)
    if x.kind == "array" or kind is None or x.data.dtype == np.uint64:
        raise Bail("conversion of an array to a Python number")
    return Lane(np.asarray(x.data, _PYTHON_TYPES[kind]), kind)


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    **{function: functools.partial(along, function) for function in ALONG},
    **{function: functools.partial(of_matrices, function) for function in OF_MATRICES},
    np.linalg.norm: norm, np.linalg.solve: solve, np.dot: dot, np.clip: clip, np.where: where,
    np.copy: copied, np.histogram: histogram, np.array: made_array,
}  # fmt: skip
FUNCTIONS[np.amax], FUNCTIONS[np.amin] = FUNCTIONS[np.max], FUNCTIONS[np.min]
_BOTH = (*_SUMS, np.cumsum, np.cumprod, np.argsort, np.any, np.all, np.argmax, np.argmin, np.clip)
METHODS: dict[str, Callable[..., Any]] = {
    **{function.__name__: FUNCTIONS[function] for function in _BOTH},
    "max": FUNCTIONS[np.max], "min": FUNCTIONS[np.min], "dot": dot, "reshape": reshape, "astype": astype,
    "copy": copied, "transpose": transpose, "item": as_python, "ravel": lambda x: reshape(x, -1),
}  # fmt: skip


def apply_function(function: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Apply a NumPy function by its rule, or item by item."""
    new = NUMPY_FUNCTIONS.get(function) == "new"
    return _applied(FUNCTIONS.get(function), function, new, args, kwargs)


def _applied(rule: Any, function: Any, new: bool, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Apply a rule if it supports the arguments, otherwise call the function item by item.

    A TypeError means that the rule does not have such an option; the plain loop then decides.
    """
    found = NotImplemented
    if rule is not None:
        try:
            found = rule(*args, **kwargs)
        except TypeError as error:
            raise Bail(f"{function.__name__}: {error}") from None
    if found is not NotImplemented:
        return found
    if "out" in kwargs or "ddof" in kwargs:
        raise Bail(f"{function.__name__} with out= or ddof=")
    return by_item(function, args, new, **kwargs)


def attribute(x: Lane, name: str) -> Any:
    if x.kind in ("array", "np") and hasattr(np.ndarray, name):
        rule = METHODS.get(name) if x.kind == "array" or name in ("item", "astype") else None
        if rule is not None or ARRAY_METHODS.get(name) in ("new", "list"):
            method = getattr(np.ndarray if x.kind == "array" else x.stands_for, name)
            return lambda *args, **kwargs: _applied(rule, method, True, (x, *args), kwargs)
        if name == "shape":
            return x.data.shape[1:]
        if name in ("ndim", "size"):
            return x.rank if name == "ndim" else int(np.prod(x.data.shape[1:], dtype=np.int64))
        if name == "dtype":
            return x.data.dtype
        if name == "T" and x.kind == "array":
            return transpose(x)
    raise Bail(f"the attribute .{name} has no rule for lanes")
