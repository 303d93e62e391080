"""Methods, attributes and functions of arrays on lanes. An axis of an item is the next one of the lanes."""

import functools
import operator
from typing import Any

import numpy as np

from ..work import Bail
from .lane import COMPUTING, Lane, Trace, bail, computed
from .lane_errors import alike
from .lane_numpy import matmul, rank_of
from .lane_reductions import REDUCTIONS, norm, reduce
from .lane_tape import AlignedUfunc, aligned


def dot(trace: Trace | None, a: Any, b: Any) -> Lane:
    return matmul(a, b, trace)


def inner(trace: Trace | None, a: Any, b: Any) -> Lane:
    """Of vectors, where it is the product; of others it turns the second around, and `vdot` makes one row."""
    parts = [x.data if type(x) is Lane else np.asarray(x) for x in (a, b)]
    ranks = [x.rank if type(x) is Lane else np.ndim(x) for x in (a, b)]
    if ranks != [1, 1] or any(p.dtype.kind == "c" for p in parts):
        raise bail("an inner product of other than real vectors", trace)
    return matmul(a, b, trace)


def clip(trace: Trace | None, x: Any, a_min: Any = None, a_max: Any = None) -> Lane:
    """By the function itself: of two zeros it chooses otherwise than `minimum` and `maximum`."""
    if a_min is None or a_max is None or type(x) is not Lane or x.kind not in ("array", "np"):
        raise bail("clip with one limit", trace)
    inputs = (x, a_min, a_max)
    if any(type(limit) is Lane and limit.kind in ("float", "int", "bool") for limit in inputs[1:]):
        raise bail("clip with limits of each item that are numbers of Python", trace)
    ranks = [rank_of(v, trace) for v in inputs]
    approx = any(type(v) is Lane and v.approx for v in inputs)
    limits = any(type(v) is Lane for v in inputs[1:]) or max(ranks) > ranks[0]
    kind = "array" if max(ranks) else "np"
    out = computed(AlignedUfunc(np.clip, ranks), inputs, kind, trace, approx=approx)
    if approx and not limits:
        out.error = alike(x, lambda error: error)
    return out


def where(trace: Trace | None, condition: Any, a: Any, b: Any) -> Lane:
    inputs = (condition, a, b)
    if any(type(x) is Lane and x.kind != "array" for x in inputs):
        raise bail("where of numbers", trace)
    if type(condition) is Lane and condition.approx:
        raise bail("the truth of rounded numbers", trace)
    ranks = [rank_of(x, trace) for x in inputs]
    if max(ranks) == 0:
        raise bail("where of numbers", trace)

    def chosen(*data: Any) -> np.ndarray:
        return np.where(*[aligned(d, rank, max(ranks)) for d, rank in zip(data, ranks, strict=True)])

    approx = any(type(x) is Lane and x.approx for x in inputs)
    return computed(chosen, inputs, "array", trace, approx=approx)


def concatenate(trace: Trace | None, parts: Any, axis: int = 0) -> Lane:
    if type(axis) is not int or not all(type(p) is Lane and p.kind == "array" for p in parts):
        raise bail("joining arrays that are not all per item", trace)
    if len({p.rank for p in parts}) != 1 or not -parts[0].rank <= axis < parts[0].rank:
        raise bail("joining arrays along an axis that is not there", trace)
    where_ = axis + 1 if axis >= 0 else axis

    def joined(*data: np.ndarray) -> np.ndarray:
        return np.concatenate(data, where_)

    return computed(joined, tuple(parts), "array", trace, approx=any(p.approx for p in parts))


def outer(trace: Trace | None, a: Any, b: Any) -> Lane:
    if not (type(a) is Lane and type(b) is Lane and a.rank == b.rank == 1):
        raise bail("an outer product with something shared", trace)
    return computed(
        lambda x, y: x[:, :, None] * y[:, None, :], (a, b), "array", trace, approx=a.approx or b.approx
    )


def like(value: Any) -> Any:
    def make(trace: Trace | None, x: Any) -> Lane:
        if type(x) is not Lane or x.kind != "array":
            raise bail("an array like a number", trace)
        return computed(lambda d: np.full_like(d, value), (x,), "array", trace)

    return make


def cumulate(function: Any) -> Any:
    def run(trace: Trace | None, x: Any, axis: Any = None) -> Lane:
        if type(x) is not Lane or x.rank != 1 or axis not in (None, 0, -1):
            raise bail("a running sum of several axes", trace)
        approx = x.approx or x.data.dtype.kind in "fc"
        return computed(functools.partial(function, axis=1), (x,), "array", trace, approx=approx)

    return run


def sort(trace: Trace | None, x: Any, axis: int = -1) -> Lane:
    if type(x) is not Lane or x.rank != 1 or axis not in (-1, 0) or x.approx:
        raise bail("sorting rounded numbers, or several axes", trace)
    return computed(np.sort, (x,), "array", trace)


def reshape(trace: Trace | None, x: Lane, *shape: Any) -> Lane:
    wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
    if not all(type(s) is int for s in wanted):
        raise bail("a shape that is not plain", trace)
    size = int(np.prod(x.data.shape[1:], dtype=np.int64))
    known = int(np.prod([s for s in wanted if s != -1], dtype=np.int64))
    if not wanted or (list(wanted).count(-1) == 0 and known != size) or list(wanted).count(-1) > 1:
        raise bail("a shape that does not fit", trace)
    if -1 in wanted and (known == 0 or size % known):
        raise bail("a shape that does not fit", trace)
    full = [size // known if s == -1 else s for s in wanted]
    return computed(lambda d: d.reshape(len(d), *full), (x,), "array", trace, x.fresh, x.approx)


def ravel(trace: Trace | None, x: Lane) -> Lane:
    """A copy where the numbers of an item do not lie in one row, which `reshape` would view in steps."""
    if len(x.data) and x.data[0].flags.c_contiguous:
        return reshape(trace, x, -1)
    return flat(trace, x)


def transpose(trace: Trace | None, x: Lane) -> Lane:
    axes = (0, *range(x.rank, 0, -1))
    return computed(lambda d: d.transpose(axes), (x,), "array", trace, x.fresh, x.approx)


def astype(trace: Trace | None, x: Lane, dtype: Any) -> Lane:
    wanted = np.dtype(dtype)
    if wanted.char not in COMPUTING or (x.approx and wanted.kind not in "fc"):
        raise bail("a change of type of rounded numbers, or to other than numbers", trace)
    if x.data.dtype.kind == "c" and wanted.kind != "c":
        raise bail("a change of type that loses half of each number", trace)
    if x.data.dtype.kind != "f" or wanted.kind not in "iu":
        return computed(lambda d: d.astype(wanted), (x,), x.kind, trace, approx=x.approx)
    if not _held_by(wanted, x.data):
        raise bail(OUT_OF_RANGE, trace)
    return computed(functools.partial(_to_integers, wanted), (x,), x.kind, trace)


OUT_OF_RANGE = "numbers out of the range of the integers they are turned into"


def _held_by(wanted: np.dtype, data: np.ndarray) -> bool:
    """What integers cannot hold becomes anything, and not the same for one number as for many."""
    limits = np.iinfo(wanted)
    return bool(((data > limits.min - 1.0) & (data < limits.max + 1.0)).all())


def _to_integers(wanted: np.dtype, data: np.ndarray) -> np.ndarray:
    if not _held_by(wanted, data):
        raise Bail(OUT_OF_RANGE)
    return data.astype(wanted)


def copied(trace: Trace | None, x: Lane) -> Lane:
    if x.kind != "array":
        raise bail("a copy of a number, which is an array without dimensions", trace)
    return computed(np.copy, (x,), x.kind, trace, approx=x.approx)


def flat(trace: Trace | None, x: Lane) -> Lane:
    return computed(lambda d: d.copy().reshape(len(d), -1), (x,), "array", trace, approx=x.approx)


def as_python(trace: Trace | None, x: Lane) -> Lane:
    """`.item()`, `float()` and the like of a NumPy scalar: the same number, Python's type."""
    kinds = {"f": "float", "i": "int", "u": "int", "b": "bool"}
    if x.kind == "array" or x.data.dtype.kind not in kinds or x.data.dtype == np.uint64:
        raise bail("a Python number from an array", trace)
    kind = kinds[x.data.dtype.kind]
    wanted = {"float": np.float64, "int": np.int64, "bool": np.bool_}[kind]
    # The same memory will do: no number is ever written in place.
    return recast(trace, x, kind, wanted)


def recast(trace: Trace | None, x: Lane, kind: str, wanted: Any) -> Lane:
    """The same numbers as another kind."""
    run = functools.partial(np.asarray, dtype=wanted)
    return computed(run, (x,), kind, trace, True, x.approx, alike(x, run), x.nonnegative)


FUNCTIONS: dict[Any, Any] = {
    np.linalg.norm: norm, np.dot: dot, np.clip: clip, np.where: where, np.concatenate: concatenate,
    np.outer: outer,
    np.zeros_like: like(0), np.ones_like: like(1), np.cumsum: cumulate(np.cumsum), np.sort: sort,
    np.copy: copied,
    np.inner: inner, np.vdot: inner,
}  # fmt: skip
for _name, _function in REDUCTIONS.items():
    FUNCTIONS[_function] = lambda trace, x, axis=None, _name=_name, **options: reduce(
        _name, x, trace, axis, **options
    )
FUNCTIONS[np.amax], FUNCTIONS[np.amin] = FUNCTIONS[np.max], FUNCTIONS[np.min]


def apply_function(function: Any, args: tuple, kwargs: dict[str, Any], trace: Trace | None) -> Any:
    found = FUNCTIONS.get(function)
    if found is None:
        raise bail(f"np.{function.__name__}", trace)
    return _called(function.__name__, found, trace, args, kwargs)


def _called(name: str, function: Any, trace: Trace | None, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Options that are not known here are no error of the user's."""
    try:
        return function(trace, *args, **kwargs)
    except TypeError as error:
        raise bail(f"{name}: {error}", trace) from None


METHODS: dict[str, Any] = {
    "dot": dot, "clip": clip, "reshape": reshape, "astype": astype, "copy": copied, "flatten": flat,
    "cumsum": cumulate(np.cumsum), "transpose": transpose, "item": as_python, "ravel": ravel,
}  # fmt: skip


def attribute(x: Lane, name: str) -> Any:
    if x.kind in ("array", "np") and hasattr(np.ndarray, name):
        if name in REDUCTIONS and name not in ("median",) and x.kind == "array":
            return lambda axis=None, **options: reduce(name, x, x.trace, axis, **options)
        if name in METHODS and (x.kind == "array" or name in ("item", "astype")):
            return lambda *args, **kwargs: _called(name, METHODS[name], x.trace, (x, *args), kwargs)
        if name == "shape":
            return x.data.shape[1:]
        if name == "ndim":
            return x.rank
        if name == "size":
            return int(np.prod(x.data.shape[1:], dtype=np.int64))
        if name == "dtype":
            return x.data.dtype
        if name == "T" and x.kind == "array":
            return transpose(x.trace, x)
    raise x.stop(f".{name}")


def _index(x: Lane, index: Any) -> tuple[Any, ...]:
    parts = index if type(index) is tuple else (index,)
    if x.kind != "array" or not all(type(p) in (int, slice) or p is None for p in parts):
        raise x.stop("an index that is not plain")
    counted = [p for p in parts if p is not None]
    if len(counted) > x.rank:
        raise x.stop("too many indices")
    for p, size in zip(counted, x.data.shape[1:], strict=False):
        if type(p) is int and not -size <= p < size:
            raise x.stop("an index out of range")
        if type(p) is slice and not all(type(s) in (int, type(None)) for s in (p.start, p.stop, p.step)):
            raise x.stop("a slice that is not plain")
    return (slice(None), *parts)


def item(x: Lane, index: Any) -> Lane:
    inside = _index(x, index)
    run = operator.itemgetter(inside)
    error = alike(x, run) if x.approx else None
    if x.data[inside].ndim == 1:
        return computed(lambda d: d[inside].copy(), (x,), "np", x.trace, approx=x.approx, error=error)
    return computed(run, (x,), "array", x.trace, x.fresh, x.approx, error)


def set_item(x: Lane, index: Any, value: Any) -> None:
    where_ = _index(x, index)
    if not x.fresh:
        raise x.stop("an array changed in place")
    if x.trace is not None:
        x.trace.wrote(type(value) is Lane and value.approx)
    target = x.data[where_]
    if type(value) is Lane:
        if value.data.dtype != x.data.dtype or value.data.shape != target.shape:
            raise x.stop("storing something of another type or shape")
        target = value.data
    elif type(value) in (int, float) and x.data.dtype.kind == "f":
        target = value
    else:
        raise x.stop("storing something of another type")
    x.data[where_] = target
