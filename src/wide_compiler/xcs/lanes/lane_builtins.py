"""What Python's own functions do with lanes: what the function gives for one item, or a bail-out."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .lane import EXACT_FLOAT, SAFE_INT, Lane, Trace, bail
from .lane_methods import as_python, recast
from .lane_numpy import arithmetic
from .lane_signs import check_edges


def _float(trace: Trace, x: Lane) -> Lane:
    if x.kind == "float":
        return x
    if x.kind in ("int", "bool"):
        return Lane(x.data.astype(np.float64), "float", trace)
    if x.kind == "np" and x.data.dtype.kind in "fiub":
        return recast(trace, x, "float", np.float64)
    raise bail("float() of an array", trace)


def _int(trace: Trace, x: Lane) -> Lane:
    if x.kind == "int":
        return x
    if x.kind == "array":
        raise bail("int() of an array", trace)
    number = as_python(trace, x) if x.kind == "np" else x
    if number.approx or not np.isfinite(number.data).all() or (np.abs(number.data) >= SAFE_INT).any():
        raise bail("int() of rounded or very large numbers", trace)
    return Lane(np.trunc(number.data).astype(np.int64), "int", trace)


def _bool(trace: Trace, x: Lane) -> Lane:
    if x.kind == "array" or (x.approx and x.data.dtype.kind in "fc"):
        raise bail("the truth of an array or of rounded numbers", trace)
    return Lane(x.data.astype(bool), "bool", trace)


def _len(trace: Trace, x: Lane) -> int:
    if x.kind != "array":
        raise bail("len() of a number", trace)
    return x.data.shape[1]


def _abs(trace: Trace, x: Lane) -> Any:
    return arithmetic(np.absolute, (x,), trace)


def _round(trace: Trace, x: Lane, digits: Any = None) -> Lane:
    if x.kind != "float" or digits is not None or x.approx or not (np.abs(x.data) < EXACT_FLOAT).all():
        raise bail("round() to digits, or of rounded numbers", trace)
    return Lane(np.rint(x.data).astype(np.int64), "int", trace)


def _extreme(less: bool) -> Callable[..., Any]:
    def run(trace: Trace, *args: Any, **kwargs: Any) -> Any:
        if len(args) != 2 or kwargs:
            raise bail("min() or max() of more than two", trace)
        first, second = args
        kinds = {a.kind if type(a) is Lane else type(a).__name__ for a in args}
        if len(kinds) > 1 or not kinds <= {"float", "int"}:
            raise bail("min() or max() of different types", trace)
        approx = any(type(a) is Lane and a.approx for a in args)
        a, b = (v.data if type(v) is Lane else v for v in (first, second))
        if np.isnan(a).any() or np.isnan(b).any():
            raise bail("min() or max() of nan, of which it gives the very object", trace)
        take = np.less(b, a) if less else np.greater(b, a)
        return Lane(np.where(take, b, a), kinds.pop(), trace, approx=approx)

    return run


def _isinstance(trace: Trace, x: Any, kinds: Any) -> bool:
    if not isinstance(x, Lane):
        return isinstance(x, kinds)
    return issubclass(x.stands_for, kinds)


def _type(trace: Trace, x: Any) -> type:
    return x.stands_for if isinstance(x, Lane) else type(x)


def mathematics(function: Any, args: tuple[Any, ...], trace: Trace) -> Lane:
    ufunc, exact = MATH[function]
    if len(args) != ufunc.nin or any(type(a) is Lane and a.kind == "array" for a in args):
        raise bail("a function of math on an array, or with other arguments", trace)
    if function is math.trunc and args[0].kind == "np" and args[0].data.dtype != np.float64:
        raise bail("math.trunc of a NumPy scalar, which it refuses", trace)
    data = [np.asarray(a.data if type(a) is Lane else a, dtype=np.float64) for a in args]
    if not all(np.isfinite(d).all() for d in data):
        raise bail("a function of math on infinite numbers", trace)
    approx = any(type(a) is Lane and a.approx for a in args)
    if approx and function is math.atan2:
        raise bail("an angle of rounded numbers", trace)
    if approx:
        check_edges(ufunc, args, trace)
    if function in (math.floor, math.ceil, math.trunc):
        if approx or (np.abs(data[0]) >= EXACT_FLOAT).any():
            raise bail("a whole number from rounded ones", trace)
        return Lane(ufunc(data[0]).astype(np.int64), "int", trace)
    out = ufunc(*data)
    if not np.isfinite(out).all():
        raise bail("a function of math out of its range", trace)
    return Lane(out, "float", trace, approx=approx or not exact)


MATH: dict[Any, tuple[Any, bool]] = {
    math.sqrt: (np.sqrt, True), math.fabs: (np.fabs, True), math.floor: (np.floor, True),
    math.ceil: (np.ceil, True),
    math.trunc: (np.trunc, True), math.exp: (np.exp, False), math.log: (np.log, False),
    math.log2: (np.log2, False),
    math.log10: (np.log10, False), math.log1p: (np.log1p, False), math.expm1: (np.expm1, False),
    math.sin: (np.sin, False), math.cos: (np.cos, False), math.tan: (np.tan, False), math.tanh: (np.tanh,
    False),
    math.sinh: (np.sinh, False), math.cosh: (np.cosh, False), math.atan: (np.arctan, False),
    math.atan2: (np.arctan2, False), math.hypot: (np.hypot, False), math.radians: (np.deg2rad, False),
}  # fmt: skip

SHADOWS: dict[Any, Any] = {
    float: _float, int: _int, bool: _bool, len: _len, abs: _abs, round: _round, min: _extreme(True),
    max: _extreme(False), isinstance: _isinstance, type: _type, np.float64: lambda t, x: _as_np(t, x,
    np.float64),
    np.float32: lambda t, x: _as_np(t, x, np.float32),
}  # fmt: skip
HOLDERS = (list, tuple)


def _as_np(trace: Trace, x: Lane, kind: Any) -> Lane:
    if x.kind == "array":
        raise bail("a NumPy scalar of an array", trace)
    return Lane(x.data.astype(kind), "np", trace, approx=x.approx)
