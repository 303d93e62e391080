"""What Python's own functions do with lanes: what the function gives for one item, or a bail-out."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..proof.python_tables import FUNCTIONS
from .array_rules import as_python, made_array
from .lane import Lane, Objects, Trace, bail, by_item, computed, holds_lane, own_values, settled
from .number_rules import SAFE_INT, python_number
from .ufunc_rules import arithmetic

HOLDERS = (list, tuple, zip, enumerate, reversed, iter, dict)  # they only arrange what they are given


def _float(trace: Trace, x: Any) -> Any:
    if type(x) is not Lane or x.kind == "array" or x.data.dtype.kind not in "fiub":
        return by_item(float, (x,), trace)
    if x.kind == "float":
        return x
    return computed(lambda d: np.asarray(d, np.float64), (x,), "float", trace)


def _int(trace: Trace, x: Any) -> Any:
    if type(x) is not Lane or x.kind == "array":
        return by_item(int, (x,), trace)
    number = settled(as_python(trace, x) if x.kind == "np" else x)
    if number.kind == "int":
        return number
    if not np.isfinite(number.data).all() or (np.abs(number.data) >= SAFE_INT).any():
        raise bail("int() of very large numbers", trace)
    return Lane(np.trunc(number.data).astype(np.int64), "int", trace)


def _bool(trace: Trace, x: Any) -> Any:
    if type(x) is not Lane or x.kind == "array":
        return by_item(bool, (x,), trace)
    return Lane(settled(x).data.astype(bool), "bool", trace)


def _len(trace: Trace, x: Any) -> Any:
    if type(x) is Lane:
        if x.kind != "array":
            raise bail("len() of a number", trace)
        return x.data.shape[1]
    lengths = list(map(len, own_values(x, trace.n))) if type(x) is Objects else [len(x)]
    return lengths[0] if len(set(lengths)) == 1 else Lane(np.array(lengths), "int", trace)


def _abs(trace: Trace, x: Any) -> Any:
    return arithmetic(np.absolute, (x,), trace)


def _extreme(function: Any) -> Callable[..., Any]:
    def run(trace: Trace, *args: Any, **options: Any) -> Any:
        """Of two numbers of one type; of others the one that it is, which may be of either type."""
        kinds = {a.kind if type(a) is Lane else type(a).__name__ for a in args}
        if len(args) != 2 or options or kinds not in ({"float"}, {"int"}):
            return by_item(function, args, trace, **options)
        if any(np.isnan(a.data if type(a) is Lane else a).any() for a in args):
            raise bail("min() or max() of nan, of which it gives the very object", trace)
        choose = np.less if function is min else np.greater
        return computed(lambda a, b: np.where(choose(b, a), b, a), args, kinds.pop(), trace)

    return run


def _isinstance(trace: Trace, x: Any, kinds: Any) -> bool:
    return issubclass(_type(trace, x), kinds)


def _type(trace: Trace, x: Any) -> type:
    if type(x) is Objects:
        return type(own_values(x, trace.n)[0])  # all items are of one type: the guards see to it
    return x.stands_for if type(x) is Lane else type(x)


def mathematics(function: Any, args: tuple[Any, ...], trace: Trace) -> Any:
    """A function of `math`: by NumPy, which rounds otherwise, and as written where that matters."""
    ufunc = MATH.get(function)
    if function is math.sqrt and len(args) == 1 and type(args[0]) is Lane and args[0].kind == "float":
        return computed(lambda d: _finite(np.sqrt(d), trace), (settled(args[0]),), "float", trace)
    if ufunc is None or len(args) != ufunc.nin or not all(map(_float_like, args)):
        return by_item(function, args, trace)
    args = tuple(map(settled, args)) if ufunc in _LEAPING else args

    def run(*data: Any) -> np.ndarray:
        return _finite(ufunc(*[np.asarray(d, np.float64) for d in data]), trace)

    written = None if function in _EXACT else lambda *data: _mapped(function, data)
    return computed(run, args, "float", trace, as_written=written)


def _float_like(x: Any) -> bool:
    if type(x) is Lane and x.kind == "np":
        return x.data.dtype == np.float64
    return python_number(x) and not (type(x) is Lane and x.kind == "int" and (np.abs(x.data) > 2**53).any())


def _finite(data: np.ndarray, trace: Trace) -> np.ndarray:
    if not np.isfinite(data).all():
        raise bail("a function of math out of its range", trace)
    return data


def _mapped(function: Any, data: tuple[Any, ...]) -> np.ndarray:
    n = max(len(d) for d in data if isinstance(d, np.ndarray))
    columns = [d.tolist() if isinstance(d, np.ndarray) else [d] * n for d in data]
    return np.array(list(map(function, *columns)))


_EXACT = (math.sqrt, math.fabs)
_LEAPING = (np.sqrt, np.log, np.log2, np.log10, np.log1p, np.arctan2, np.arcsin, np.arccos, np.tan)
MATH: dict[Any, np.ufunc] = {
    math.sqrt: np.sqrt, math.fabs: np.fabs, math.exp: np.exp, math.log: np.log, math.log2: np.log2,
    math.log10: np.log10, math.log1p: np.log1p, math.expm1: np.expm1, math.sin: np.sin, math.cos: np.cos,
    math.tan: np.tan, math.tanh: np.tanh, math.sinh: np.sinh, math.cosh: np.cosh, math.atan: np.arctan,
    math.atan2: np.arctan2, math.asin: np.arcsin, math.acos: np.arccos, math.hypot: np.hypot,
    math.radians: np.deg2rad, math.degrees: np.rad2deg,
}  # fmt: skip


def _as_np(kind: Any) -> Callable[..., Any]:
    def make(trace: Trace, x: Any) -> Any:
        if type(x) is not Lane or x.kind == "array":
            raise bail("a NumPy scalar of an array", trace)
        return computed(lambda d: d.astype(kind), (x,), "np", trace)

    return make


SHADOWS: dict[Any, Any] = {
    float: _float, int: _int, bool: _bool, len: _len, abs: _abs, min: _extreme(min), max: _extreme(max),
    isinstance: _isinstance, type: _type, np.float64: _as_np(np.float64), np.float32: _as_np(np.float32),
    np.array: made_array, np.asarray: lambda trace, x: x if type(x) is Lane else made_array(trace, x),
}  # fmt: skip


def builtin_call(function: Any, args: tuple[Any, ...], options: dict[str, Any], trace: Trace) -> Any:
    """A function of Python, of `math` or a type, called with lanes or with what holds some."""
    shadow = SHADOWS.get(function)
    if shadow is not None:
        try:
            return shadow(trace, *args, **options)
        except TypeError as error:
            raise bail(f"{function.__name__}: {error}", trace) from None
    if function in HOLDERS or (isinstance(function, type) and issubclass(function, BaseException)):
        return function(*args, **options)
    if getattr(function, "__module__", "") == "math":
        return mathematics(function, args, trace)
    if function in FUNCTIONS and not any(map(holds_lane, options.values())):
        return by_item(function, args, trace, **options)
    raise bail(f"{getattr(function, '__name__', function)} of all items at once", trace)
