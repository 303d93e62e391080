"""NumPy's functions on lanes: an axis of an item is the next one of the lanes.

A rule gives `NotImplemented` for arguments that it is not for. Then, and for functions without a rule, the
function is called item by item, as written, so that one such call does not keep a whole body in the plain
loop.
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
from .lane import COMPUTING, Lane, Objects, Trace, bail, computed, data_of, holds_lane, settled

_SUMS = (np.sum, np.mean, np.std, np.var, np.prod)
_CHOOSING = (np.argmax, np.argmin, np.argsort, np.any, np.all, np.count_nonzero)
# Functions along an axis, and the axis they take if none is given: None for all numbers of an item in a row.
ALONG: dict[Any, int | None] = {
    **dict.fromkeys((*_SUMS, np.max, np.min, np.ptp, np.argmax, np.argmin, np.any, np.all, np.median), None),
    **dict.fromkeys((np.cumsum, np.cumprod, np.count_nonzero, np.percentile, np.quantile), None),
    **dict.fromkeys((np.diff, np.sort, np.argsort, np.fft.fft, np.fft.ifft, np.fft.rfft, np.fft.irfft), -1),
    **dict.fromkeys((np.roll, np.flip), None),
}  # fmt: skip
_KEEP_SHAPE = (np.roll, np.flip)
_FIRST_AXIS_ADDED = (np.percentile, np.quantile)
# Of stacks of matrices, they are computed matrix by matrix.
OF_MATRICES = (np.linalg.det, np.linalg.inv, np.linalg.cholesky, np.linalg.eigvalsh)


def _is_array(x: Any) -> bool:
    return type(x) is Lane and x.kind == "array"


def _next(axis: int) -> int:
    """The axis of the lanes that stands for this one of an item."""
    return axis + 1 if axis >= 0 else axis


def along(function: Any, trace: Trace, *args: Any, **kwargs: Any) -> Any:
    """A function along an axis, if that is one axis, or all numbers of an item in a row."""
    names = _names(function)
    given: dict[str, Any] = {**dict(zip(names, args, strict=False)), **kwargs}
    x, axis = given.pop(names[0]), given.pop("axis", ALONG[function])
    if not _is_array(x) or any(map(holds_lane, given.values())):
        return NotImplemented
    if 0 in x.data.shape:
        raise bail(f"{function.__name__} of nothing, of which NumPy may warn by Python's means", trace)
    if axis is None:
        fits = x.rank == 1 or not (function in _KEEP_SHAPE or given.get("keepdims"))
    else:
        fits = type(axis) is int and -x.rank <= axis < x.rank
    added = np.ndim(given["q"]) if function in _FIRST_AXIS_ADDED else 0
    if not fits or added > 1 or "dtype" in given or "out" in given:
        return NotImplemented
    if given.get("ddof", 0) >= (x.data[0].size if axis is None else x.data.shape[1:][axis]):
        raise bail(f"{function.__name__} of too few numbers, of which NumPy warns by Python's means", trace)
    if function in _CHOOSING:
        settled(x)

    def run(data: np.ndarray) -> np.ndarray:
        rows, where = (data.reshape(len(data), -1), 1) if axis is None else (data, _next(axis))
        out = function(rows, axis=where, **given)
        return np.ascontiguousarray(np.moveaxis(out, 0, 1)) if added else out

    def one_by_one(data: np.ndarray) -> np.ndarray:
        return np.array([function(row, axis=axis, **given) for row in data])

    # Numbers that do not lie in a row are added up in another order, and so are those that are converted.
    whole = x.data.dtype.kind in "iub" and function in (np.sum, np.prod)
    exact = function not in _SUMS or whole or (x.in_rows and x.data.dtype in REAL)
    return computed(run, (x,), None, trace, as_written=None if exact else one_by_one)


@functools.cache
def _names(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def norm(trace: Trace, x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """The length of a vector, or of all numbers of a matrix."""
    plain = _is_array(x) and x.data.dtype in REAL and x.in_rows and hasattr(np, "vecdot")
    if not plain or ord is not None or keepdims or not (axis is None or (x.rank == 1 and axis in (0, -1))):
        return NotImplemented

    def length(data: np.ndarray) -> np.ndarray:
        rows = data.reshape(len(data), -1)
        return np.sqrt(np.vecdot(rows, rows))

    return computed(length, (x,), "np", trace)


def solve(trace: Trace, a: Any, b: Any) -> Any:
    ranks = [rank_of(x, trace, any_order=True) for x in (a, b)]
    if ranks not in ([2, 1], [2, 2]) or any(data_of(x).dtype not in REAL for x in (a, b)):
        return NotImplemented
    run: Any = np.linalg.solve
    if ranks[1] == 1:
        run = lambda m, v: np.linalg.solve(m, v[..., None])[..., 0]  # noqa: E731
    return computed(run, (settled(a), settled(b)), "array", trace)


def of_matrices(function: Any, trace: Trace, x: Any) -> Any:
    if type(x) is not Lane or x.rank != 2 or x.data.dtype not in REAL:
        return NotImplemented
    return computed(function, (settled(x),), None, trace)


def dot(trace: Trace, a: Any, b: Any) -> Any:
    if 0 in (rank_of(a, trace, any_order=True), rank_of(b, trace, any_order=True)):
        return a * b
    return matmul(a, b, trace)


def _aligned(function: Any, inputs: tuple[Any, ...], trace: Trace) -> Lane:
    """Number by number, of lanes and shared arrays of any rank."""
    ranks = [rank_of(x, trace) for x in inputs]
    return computed(functools.partial(on_aligned, function, ranks), inputs, "array", trace)


def clip(trace: Trace, x: Any, a_min: Any = None, a_max: Any = None) -> Any:
    """By the function itself: of two zeros it chooses otherwise than `minimum` and `maximum`."""
    inputs = (x, a_min, a_max)
    numbers = any(type(v) is Lane and v.kind in ("float", "int", "bool") for v in inputs)
    if not _is_array(x) or numbers or any(isinstance(v, (Objects, type(None))) for v in inputs):
        return NotImplemented
    return _aligned(np.clip, inputs, trace)


def where(trace: Trace, condition: Any, a: Any = None, b: Any = None) -> Any:
    inputs = (settled(condition), a, b)
    if a is None or b is None or any(type(x) is Lane and x.kind != "array" for x in inputs):
        return NotImplemented
    return _aligned(np.where, inputs, trace)


def joining(function: Any, trace: Trace, parts: Any, axis: int = 0) -> Any:
    """`concatenate` or `stack`, of arrays of each item and those that all share, of one rank."""
    arrays = all(type(p) is np.ndarray or _is_array(p) for p in parts)
    if not arrays or len({rank_of(p, trace) for p in parts}) != 1 or type(axis) is not int:
        return NotImplemented
    rank = rank_of(parts[0], trace) + (function is np.stack)
    if not -rank <= axis < rank:
        return NotImplemented
    inputs = tuple(
        p if type(p) is Lane else Lane(np.broadcast_to(p, (trace.n, *p.shape)), "array", trace, fresh=False)
        for p in parts
    )
    return computed(lambda *d: function(d, _next(axis)), inputs, "array", trace)


def made_array(trace: Trace, value: Any, dtype: Any = None) -> Any:
    """`np.array` of numbers and arrays of each item, in lists."""
    if type(value) is Lane:
        made = copied(trace, value)
    elif type(value) in (list, tuple) and value:
        parts = [made_array(trace, part) if type(part) in (list, tuple) else part for part in value]
        if not all(type(p) is Lane or type(p) in (float, int, bool, np.float64) for p in parts):
            raise bail("an array of other things than numbers of each item", trace)
        if len({p.rank if type(p) is Lane else 0 for p in parts}) != 1:
            raise bail("an array of things of different shapes", trace)
        made = computed(lambda *d: np.stack([np.broadcast_to(x, (trace.n, *np.shape(x)[1:])) for x in d], 1),
                        tuple(parts), "array", trace)  # fmt: skip
    else:
        raise bail("an array of this", trace)
    return made if dtype is None else astype(trace, made, dtype)


def outer(trace: Trace, a: Any, b: Any) -> Any:
    if not (type(a) is Lane and type(b) is Lane and a.rank == b.rank == 1):
        return NotImplemented
    return computed(lambda x, y: x[:, :, None] * y[:, None, :], (a, b), "array", trace)


def like(function: Any, trace: Trace, x: Any) -> Any:
    if not _is_array(x) or not x.in_rows:
        return NotImplemented
    return Lane(function(x.data), "array", trace)


def take_along_axis(trace: Trace, arr: Any, indices: Any, axis: int = -1) -> Any:
    lanes = type(arr) is Lane and type(indices) is Lane and arr.rank == indices.rank
    if not lanes or type(axis) is not int or not -arr.rank <= axis < arr.rank:
        return NotImplemented
    run = lambda d, i: np.take_along_axis(d, i, _next(axis))  # noqa: E731
    return computed(run, (arr, settled(indices)), "array", trace)


def histogram(trace: Trace, a: Any, bins: Any = 10, range: Any = None, **options: Any) -> Any:
    """Of given range and number of bins: then edges are the same for all items."""
    if isinstance(a, Lane) and a.data.dtype == bool:
        raise bail("a histogram of truths, of which NumPy warns by Python's means", trace)
    plain = _is_array(a) and a.data.dtype in REAL and type(bins) is int and bins > 0
    if not plain or options or type(range) is not tuple or holds_lane(range):
        return NotImplemented
    edges = np.histogram_bin_edges(np.zeros(0, a.data.dtype), bins, range)

    def counts(data: np.ndarray) -> np.ndarray:
        rows = data.reshape(len(data), -1)
        place = np.searchsorted(edges, rows, side="right") - 1
        place[rows == edges[-1]] = bins - 1
        inside = (place >= 0) & (place < bins)
        place += (np.arange(len(rows)) * bins)[:, None]
        return np.bincount(place[inside], minlength=len(rows) * bins).reshape(len(rows), bins)

    counted = computed(counts, (settled(a),), "array", trace)
    return counted, Lane(np.tile(edges, (trace.n, 1)), "array", trace)


def reshape(trace: Trace, x: Lane, *shape: Any) -> Lane:
    wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
    if not wanted or not all(type(s) is int for s in wanted) or x.kind != "array":
        raise bail("a shape that is not plain", trace)
    full = np.empty(x.data.shape[1:], bool).reshape(wanted).shape  # or an error: it does not fit
    return computed(lambda d: d.reshape(len(d), *full), (x,), "array", trace, x.fresh)


def ravel(trace: Trace, x: Lane) -> Lane:
    """A copy where the numbers of an item do not lie in one row, which `reshape` would view in steps."""
    return reshape(trace, x, -1) if x.in_rows else flat(trace, x)


def flat(trace: Trace, x: Lane) -> Lane:
    return computed(lambda d: d.copy().reshape(len(d), -1), (x,), "array", trace)


def transpose(trace: Trace, x: Lane) -> Lane:
    axes = (0, *range(x.rank, 0, -1))
    return computed(lambda d: d.transpose(axes), (x,), "array", trace, x.fresh)


def copied(trace: Trace, x: Lane) -> Lane:
    if x.kind != "array":
        raise bail("a copy of a number, which is an array without dimensions", trace)
    return computed(np.copy, (x,), x.kind, trace)


def astype(trace: Trace, x: Lane, dtype: Any) -> Lane:
    wanted = np.dtype(dtype)
    if wanted.char not in COMPUTING or (x.data.dtype.kind == "c" and wanted.kind != "c"):
        raise bail("a change of type that loses half of each number, or to other than numbers", trace)
    if wanted.kind not in "fc":
        settled(x)
    to_integers = x.data.dtype.kind == "f" and wanted.kind in "iu"

    def run(data: np.ndarray) -> np.ndarray:
        """What integers cannot hold becomes anything, and not the same for one number as for many."""
        limits: Any = np.iinfo(wanted) if to_integers else None
        if to_integers and not ((data > limits.min - 1.0) & (data < limits.max + 1.0)).all():
            raise Bail("numbers out of the range of the integers they are turned into")
        return data.astype(wanted)

    return computed(run, (x,), x.kind, trace)


_PYTHON_KINDS = {"f": "float", "i": "int", "u": "int", "b": "bool"}
_PYTHON_TYPES = {"float": np.float64, "int": np.int64, "bool": np.bool_}


def as_python(trace: Trace, x: Lane) -> Lane:
    """`.item()`, `float()` and the like of a NumPy scalar: the same number, Python's type."""
    kind = _PYTHON_KINDS.get(x.data.dtype.kind)
    if x.kind == "array" or kind is None or x.data.dtype == np.uint64:
        raise bail("a Python number from an array", trace)
    return computed(functools.partial(np.asarray, dtype=_PYTHON_TYPES[kind]), (x,), kind, trace)


def rounded(trace: Trace, x: Lane, decimals: int = 0) -> Any:
    if x.kind != "array" or type(decimals) is not int:
        return NotImplemented
    return computed(functools.partial(np.round, decimals=decimals), (settled(x),), "array", trace)


_OF_LISTS = (np.concatenate, np.stack, np.array)
FUNCTIONS: dict[Any, Callable[..., Any]] = {
    **{function: functools.partial(along, function) for function in ALONG},
    **{function: functools.partial(of_matrices, function) for function in OF_MATRICES},
    **{function: functools.partial(joining, function) for function in (np.concatenate, np.stack)},
    **{function: functools.partial(like, function) for function in (np.zeros_like, np.ones_like)},
    np.linalg.norm: norm, np.linalg.solve: solve, np.dot: dot, np.clip: clip, np.where: where,
    np.outer: outer, np.copy: copied, np.take_along_axis: take_along_axis, np.histogram: histogram,
    np.array: made_array, np.round: rounded, np.around: rounded,
}  # fmt: skip
FUNCTIONS[np.amax], FUNCTIONS[np.amin] = FUNCTIONS[np.max], FUNCTIONS[np.min]
_BOTH = (*_SUMS, np.cumsum, np.cumprod, np.argsort, np.any, np.all, np.argmax, np.argmin)
METHODS: dict[str, Callable[..., Any]] = {
    **{function.__name__: FUNCTIONS[function] for function in _BOTH},
    "max": FUNCTIONS[np.max], "min": FUNCTIONS[np.min], "dot": dot, "clip": clip, "reshape": reshape,
    "astype": astype, "copy": copied, "flatten": flat, "transpose": transpose, "item": as_python,
    "ravel": ravel, "round": rounded,
}  # fmt: skip


def apply_function(function: Any, args: tuple, kwargs: dict[str, Any], trace: Trace) -> Any:
    """By its rule, or as written."""
    # A list of numbers or arrays of each item is an array to NumPy.
    if function in FUNCTIONS and function not in _OF_LISTS:
        args = tuple(made_array(trace, a) if type(a) in (list, tuple) and holds_lane(a) else a for a in args)
    new = NUMPY_FUNCTIONS.get(function) == "new"
    return _applied(FUNCTIONS.get(function), function, new, args, kwargs, trace)


def _applied(rule: Any, function: Any, new: bool, args: tuple, kwargs: dict[str, Any], trace: Trace) -> Any:
    """By a rule, if there is one for these arguments. Options that it does not know are no error of the
    user's."""
    found = NotImplemented
    if rule is not None:
        try:
            found = rule(trace, *args, **kwargs)
        except TypeError as error:
            raise bail(f"{function.__name__}: {error}", trace) from None
    if found is not NotImplemented:
        return found
    if "out" in kwargs or "ddof" in kwargs:
        raise bail(f"{function.__name__} into an array, or of which NumPy may warn by Python's means", trace)
    return by_item(function, args, trace, new, **kwargs)


def attribute(x: Lane, name: str) -> Any:
    if x.kind in ("array", "np") and hasattr(np.ndarray, name):
        rule = METHODS.get(name) if x.kind == "array" or name in ("item", "astype") else None
        if rule is not None or ARRAY_METHODS.get(name) in ("new", "list"):
            method = getattr(np.ndarray if x.kind == "array" else x.stands_for, name)
            return lambda *args, **kwargs: _applied(rule, method, True, (x, *args), kwargs, x.trace)
        if name == "shape":
            return x.data.shape[1:]
        if name in ("ndim", "size"):
            return x.rank if name == "ndim" else int(np.prod(x.data.shape[1:], dtype=np.int64))
        if name == "dtype":
            return x.data.dtype
        if name == "T" and x.kind == "array":
            return transpose(x.trace, x)
    raise x.stop(f".{name}")
