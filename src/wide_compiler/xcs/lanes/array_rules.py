"""NumPy's functions on lanes: an axis of an item is the next one of the lanes.

What is in no table is called item by item, as written, so that one such call does not keep a whole body in
the plain loop.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from ..proof.numpy_tables import ARRAY_METHODS, NUMPY_FUNCTIONS
from ..work import Bail
from .lane import COMPUTING, Lane, Objects, Trace, bail, by_item, computed, data_of, holds_lane, settled
from .ufunc_rules import REAL, aligned, matmul, rank_of

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


def along(function: Any, trace: Trace, *args: Any, **kwargs: Any) -> Any:
    """A function along an axis, if that is one axis, or all numbers of an item in a row."""
    names = _names(function)
    given: dict[str, Any] = {**dict(zip(names, args, strict=False)), **kwargs}
    x, axis = given.pop(names[0]), given.pop("axis", ALONG[function])
    plain = type(x) is Lane and x.kind == "array" and not any(map(holds_lane, given.values()))
    if not plain or 0 in x.data.shape or not (axis is None or type(axis) is int):
        return _as_written(function, trace, *args, **kwargs)
    if axis is not None and not -x.rank <= axis < x.rank:
        raise bail(f"{function.__name__} over an axis that is not there", trace)
    if axis is None and x.rank > 1 and (function in _KEEP_SHAPE or given.get("keepdims")):
        return _as_written(function, trace, *args, **kwargs)
    q = np.ndim(given["q"]) if function in _FIRST_AXIS_ADDED else 0
    count = x.data[0].size if axis is None else x.data.shape[1:][axis]
    if given.get("ddof", 0) >= count:  # of which NumPy warns by Python's own means
        raise bail(f"{function.__name__} with as many degrees of freedom as numbers", trace)
    if q > 1 or "dtype" in given or "out" in given:
        return _as_written(function, trace, *args, **kwargs)
    if function in _CHOOSING:
        settled(x)
    run = functools.partial(_shifted, function, axis, bool(q), given)
    # Numbers that do not lie in a row are added up in another order, and so are those that are converted.
    whole = x.data.dtype.kind in "iub" and function in (np.sum, np.prod)
    exact = function not in _SUMS or whole or (x.in_rows and x.data.dtype in REAL)
    written = None if exact else functools.partial(_rows, function, axis, given)
    return computed(run, (x,), None, trace, as_written=written)


@functools.cache
def _names(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def _shifted(
    function: Any, axis: int | None, added: bool, given: dict[str, Any], data: np.ndarray
) -> np.ndarray:
    if axis is None:
        data, where_ = data.reshape(len(data), -1), 1
    else:
        where_ = axis + 1 if axis >= 0 else axis
    out = function(data, axis=where_, **given)
    return np.ascontiguousarray(np.moveaxis(out, 0, 1)) if added else out


def _rows(function: Any, axis: int | None, given: dict[str, Any], data: np.ndarray) -> np.ndarray:
    return np.array([function(row, axis=axis, **given) for row in data])


def _as_written(function: Any, trace: Trace, *args: Any, **kwargs: Any) -> Any:
    if "out" in kwargs:
        raise bail(f"{function.__name__} into an array", trace)
    return by_item(function, args, trace, NUMPY_FUNCTIONS.get(function) == "new", **kwargs)


def norm(trace: Trace, x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """The length of a vector, or of all numbers of a matrix."""
    plain = type(x) is Lane and x.kind == "array" and x.data.dtype in REAL and x.in_rows
    if (
        not plain
        or ord is not None
        or keepdims
        or not hasattr(np, "vecdot")
        or (axis is not None and x.rank > 1)
    ):
        return _as_written(np.linalg.norm, trace, x, ord=ord, axis=axis, keepdims=keepdims)
    if axis not in (None, 0, -1):
        raise bail("a norm over an axis that is not there", trace)
    return computed(_length, (x,), "np", trace)


def _length(data: np.ndarray) -> np.ndarray:
    rows = data.reshape(len(data), -1)
    return np.sqrt(np.vecdot(rows, rows))


def solve(trace: Trace, a: Any, b: Any) -> Any:
    ranks = [rank_of(x, trace, any_order=True) for x in (a, b)]
    if ranks[0] != 2 or ranks[1] not in (1, 2) or any(data_of(x).dtype not in REAL for x in (a, b)):
        return _as_written(np.linalg.solve, trace, a, b)
    a, b = settled(a), settled(b)
    if ranks[1] == 1:
        return computed(lambda m, v: np.linalg.solve(m, v[..., None])[..., 0], (a, b), "array", trace)
    return computed(np.linalg.solve, (a, b), "array", trace)


def of_matrices(function: Any, trace: Trace, x: Any) -> Any:
    if type(x) is not Lane or x.rank != 2 or x.data.dtype not in REAL:
        return _as_written(function, trace, x)
    return computed(function, (settled(x),), None, trace)


def dot(trace: Trace, a: Any, b: Any) -> Any:
    if 0 in (rank_of(a, trace, any_order=True), rank_of(b, trace, any_order=True)):
        return a * b
    return matmul(a, b, trace)


def inner(function: Any, trace: Trace, a: Any, b: Any) -> Any:
    """Of vectors, where it is the product; of others it turns the second around, and `vdot` makes one row."""
    plain = [rank_of(x, trace, any_order=True) for x in (a, b)] == [1, 1]
    return matmul(a, b, trace) if plain else _as_written(function, trace, a, b)


def clip(trace: Trace, x: Any, a_min: Any = None, a_max: Any = None) -> Any:
    """By the function itself: of two zeros it chooses otherwise than `minimum` and `maximum`."""
    inputs = (x, a_min, a_max)
    plain = (
        type(x) is Lane
        and x.kind == "array"
        and not any(isinstance(v, (Objects, type(None))) for v in inputs)
    )
    if not plain or any(type(limit) is Lane and limit.kind in ("float", "int", "bool") for limit in inputs):
        return _as_written(np.clip, trace, *inputs)
    return computed(
        functools.partial(_aligned, np.clip, [rank_of(v, trace) for v in inputs]), inputs, "array", trace
    )


def where(trace: Trace, condition: Any, a: Any = None, b: Any = None) -> Any:
    inputs = (settled(condition), a, b)
    if a is None or b is None or any(type(x) is Lane and x.kind != "array" for x in inputs):
        return _as_written(np.where, trace, *[x for x in inputs if x is not None])
    ranks = [rank_of(x, trace) for x in inputs]
    return computed(functools.partial(_aligned, np.where, ranks), inputs, "array", trace)


def _aligned(function: Any, ranks: list[int], *data: Any) -> np.ndarray:
    return function(*[aligned(d, rank, max(ranks)) for d, rank in zip(data, ranks, strict=True)])


def _with_lanes(parts: Any, trace: Trace) -> tuple[Any, ...]:
    """Arrays of each item, and those that all share, of one rank."""
    if not all(type(p) is np.ndarray or (type(p) is Lane and p.kind == "array") for p in parts):
        raise bail("joining other things than arrays", trace)
    if len({rank_of(p, trace) for p in parts}) != 1:
        raise bail("joining arrays of different ranks", trace)
    return tuple(
        p if type(p) is Lane else Lane(np.broadcast_to(p, (trace.n, *p.shape)), "array", trace, fresh=False)
        for p in parts
    )


def concatenate(trace: Trace, parts: Any, axis: int = 0) -> Lane:
    inputs = _with_lanes(parts, trace)
    if type(axis) is not int or not -inputs[0].rank <= axis < inputs[0].rank:
        raise bail("joining arrays along an axis that is not there", trace)
    return computed(lambda *d: np.concatenate(d, axis + 1 if axis >= 0 else axis), inputs, "array", trace)


def stack(trace: Trace, parts: Any, axis: int = 0) -> Any:
    if any(type(p) is Lane and p.kind != "array" for p in parts):
        return made_array(trace, list(parts))
    inputs = _with_lanes(parts, trace)
    if type(axis) is not int or not -inputs[0].rank - 1 <= axis <= inputs[0].rank:
        raise bail("stacking arrays along an axis that is not there", trace)
    return computed(lambda *d: np.stack(d, axis + 1 if axis >= 0 else axis), inputs, "array", trace)


def hstack(trace: Trace, parts: Any) -> Any:
    return concatenate(trace, parts, 0 if all(rank_of(p, trace) == 1 for p in parts) else 1)


def vstack(trace: Trace, parts: Any) -> Any:
    return stack(trace, parts) if all(rank_of(p, trace) == 1 for p in parts) else concatenate(trace, parts)


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
        return _as_written(np.outer, trace, a, b)
    return computed(lambda x, y: x[:, :, None] * y[:, None, :], (a, b), "array", trace)


def like(value: Any) -> Callable[..., Any]:
    def make(trace: Trace, x: Any) -> Lane:
        if type(x) is not Lane or x.kind != "array" or not x.in_rows:
            raise bail("an array like a number, or like one that does not lie in rows", trace)
        return Lane(np.full_like(x.data, value), "array", trace)

    return make


def take_along_axis(trace: Trace, arr: Any, indices: Any, axis: int = -1) -> Any:
    lanes = type(arr) is Lane and type(indices) is Lane and arr.rank == indices.rank
    if not lanes or type(axis) is not int or not -arr.rank <= axis < arr.rank:
        return _as_written(np.take_along_axis, trace, arr, indices, axis=axis)
    where_ = axis + 1 if axis >= 0 else axis
    return computed(lambda d, i: np.take_along_axis(d, i, where_), (arr, settled(indices)), "array", trace)


def histogram(trace: Trace, a: Any, bins: Any = 10, range: Any = None, **options: Any) -> Any:
    """Of given range and number of bins: edges are the same for all items, and decide where a number
    belongs."""
    plain = type(a) is Lane and a.kind == "array" and a.data.dtype in REAL and type(bins) is int and bins > 0
    if not plain or options or type(range) is not tuple or holds_lane(range):
        return _as_written(np.histogram, trace, a, bins=bins, range=range, **options)
    edges = np.histogram_bin_edges(np.zeros(0), bins, range)
    counts = computed(functools.partial(_counts, edges), (settled(a),), "array", trace)
    return counts, Lane(np.tile(edges, (trace.n, 1)), "array", trace)


def _counts(edges: np.ndarray, data: np.ndarray) -> np.ndarray:
    rows, bins = data.reshape(len(data), -1), len(edges) - 1
    place = np.searchsorted(edges, rows, side="right") - 1
    place[rows == edges[-1]] = bins - 1
    inside = (place >= 0) & (place < bins)
    place += (np.arange(len(rows)) * bins)[:, None]
    return np.bincount(place[inside], minlength=len(rows) * bins).reshape(len(rows), bins)


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
    if x.data.dtype.kind == "f" and wanted.kind in "iu":
        return computed(functools.partial(_to_integers, wanted), (x,), x.kind, trace)
    return computed(lambda d: d.astype(wanted), (x,), x.kind, trace)


def _to_integers(wanted: np.dtype, data: np.ndarray) -> np.ndarray:
    """What integers cannot hold becomes anything, and not the same for one number as for many."""
    limits = np.iinfo(wanted)
    if not ((data > limits.min - 1.0) & (data < limits.max + 1.0)).all():
        raise Bail("numbers out of the range of the integers they are turned into")
    return data.astype(wanted)


def as_python(trace: Trace, x: Lane) -> Lane:
    """`.item()`, `float()` and the like of a NumPy scalar: the same number, Python's type."""
    kinds = {
        "f": ("float", np.float64),
        "i": ("int", np.int64),
        "u": ("int", np.int64),
        "b": ("bool", np.bool_),
    }
    if x.kind == "array" or x.data.dtype.kind not in kinds or x.data.dtype == np.uint64:
        raise bail("a Python number from an array", trace)
    kind, wanted = kinds[x.data.dtype.kind]
    return computed(functools.partial(np.asarray, dtype=wanted), (x,), kind, trace)


def rounded(trace: Trace, x: Lane, decimals: int = 0) -> Any:
    if x.kind != "array" or type(decimals) is not int:
        return _as_written(np.round, trace, x, decimals=decimals)
    return computed(functools.partial(np.round, decimals=decimals), (settled(x),), "array", trace)


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    **{function: functools.partial(along, function) for function in ALONG},
    **{function: functools.partial(of_matrices, function) for function in OF_MATRICES},
    np.linalg.norm: norm, np.linalg.solve: solve, np.dot: dot, np.inner: functools.partial(inner, np.inner),
    np.vdot: functools.partial(inner, np.vdot), np.clip: clip, np.where: where, np.concatenate: concatenate,
    np.stack: stack, np.hstack: hstack, np.vstack: vstack, np.outer: outer, np.zeros_like: like(0),
    np.ones_like: like(1), np.copy: copied, np.take_along_axis: take_along_axis, np.histogram: histogram,
    np.array: made_array, np.round: rounded, np.around: rounded,
}  # fmt: skip
FUNCTIONS[np.amax], FUNCTIONS[np.amin] = FUNCTIONS[np.max], FUNCTIONS[np.min]

METHODS: dict[str, Callable[..., Any]] = {
    **{f.__name__: FUNCTIONS[f] for f in (*_SUMS, np.cumsum, np.cumprod, np.argsort, np.any, np.all,
    np.argmax,
                                          np.argmin)},
    "max": FUNCTIONS[np.max], "min": FUNCTIONS[np.min], "dot": dot, "clip": clip, "reshape": reshape,
    "astype": astype, "copy": copied, "flatten": flat, "transpose": transpose, "item": as_python, "ravel":
    ravel,
    "round": rounded,
}  # fmt: skip


def apply_function(function: Any, args: tuple, kwargs: dict[str, Any], trace: Trace) -> Any:
    """By its rule, or as written."""
    found = FUNCTIONS.get(function)
    if found is None:
        return _as_written(function, trace, *args, **kwargs)
    # A list of numbers or arrays of each item is an array to NumPy.
    if function not in _OF_LISTS:
        args = tuple(made_array(trace, a) if type(a) in (list, tuple) and holds_lane(a) else a for a in args)
    return _called(function.__name__, found, trace, args, kwargs)


_OF_LISTS = (np.concatenate, np.stack, np.hstack, np.vstack, np.array)


def _called(name: str, function: Any, trace: Trace, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Options that are not known here are no error of the user's."""
    try:
        return function(trace, *args, **kwargs)
    except TypeError as error:
        raise bail(f"{name}: {error}", trace) from None


def attribute(x: Lane, name: str) -> Any:
    if x.kind in ("array", "np") and hasattr(np.ndarray, name):
        if name in METHODS and (x.kind == "array" or name in ("item", "astype")):
            return lambda *args, **kwargs: _called(name, METHODS[name], x.trace, (x, *args), kwargs)
        if name == "shape":
            return x.data.shape[1:]
        if name in ("ndim", "size"):
            return x.rank if name == "ndim" else int(np.prod(x.data.shape[1:], dtype=np.int64))
        if name == "dtype":
            return x.data.dtype
        if name == "T" and x.kind == "array":
            return transpose(x.trace, x)
        if ARRAY_METHODS.get(name) in ("new", "list"):
            method = getattr(np.ndarray if x.kind == "array" else x.stands_for, name)
            return lambda *args, **kwargs: by_item(method, (x, *args), x.trace, **kwargs)
    raise x.stop(f".{name}")
