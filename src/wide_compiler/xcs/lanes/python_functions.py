"""What Python's own functions do with lanes: what the function gives for one item, or a bail-out."""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..proof.python_tables import FUNCTIONS
from .arithmetic import SAFE_INT, arithmetic, python_number
from .array_rules import as_python, made_array
from .gather import by_item
from .lane import Lane, Objects, Trace, bail, computed, own_values, settled

HOLDERS = (list, tuple, zip, enumerate, reversed, iter, dict)  # they only arrange what they are given


def _is_number(x: Any) -> bool:
    return type(x) is Lane and x.kind != "array"


def _float(trace: Trace, x: Any) -> Any:
    if not _is_number(x) or x.data.dtype.kind not in "fiub":
        return NotImplemented
    if x.kind == "float":
        return x
    return computed(lambda d: np.asarray(d, np.float64), (x,), "float", trace)


def _int(trace: Trace, x: Any) -> Any:
    if not _is_number(x):
        return NotImplemented
    number = settled(as_python(trace, x) if x.kind == "np" else x)
    if number.kind == "int":
        return number
    if not np.isfinite(number.data).all() or (np.abs(number.data) >= SAFE_INT).any():
        raise bail("int() of very large numbers", trace)
    return Lane(np.trunc(number.data).astype(np.int64), "int", trace)


def _bool(trace: Trace, x: Any) -> Any:
    return Lane(settled(x).data.astype(bool), "bool", trace) if _is_number(x) else NotImplemented


def _len(trace: Trace, x: Any) -> Any:
    if type(x) is Lane:
        return NotImplemented if _is_number(x) else x.data.shape[1]
    lengths = list(map(len, own_values(x, trace.n))) if type(x) is Objects else [len(x)]
    return lengths[0] if len(set(lengths)) == 1 else Lane(np.array(lengths), "int", trace)


def _extreme(function: Any) -> Callable[..., Any]:
    def run(trace: Trace, *args: Any, **options: Any) -> Any:
        """Of two numbers of one type; of others the one that it is, which may be of either type."""
        kinds = {a.kind if type(a) is Lane else type(a).__name__ for a in args}
        if len(args) != 2 or options or kinds not in ({"float"}, {"int"}):
            return NotImplemented
        if any(np.isnan(a.data if type(a) is Lane else a).any() for a in args):
            raise bail("min() or max() of nan, of which it gives the very object", trace)
        choose = np.less if function is min else np.greater
        return computed(lambda a, b: np.where(choose(b, a), b, a), args, kinds.pop(), trace)

    return run


def _type(trace: Trace, x: Any) -> type:
    if type(x) is Objects:
        return type(own_values(x, trace.n)[0])  # all items are of one type: the guards see to it
    return x.stands_for if type(x) is Lane else type(x)


def _mathematics(function: Any, trace: Trace, *args: Any) -> Any:
    """A function of `math`: by NumPy, which rounds otherwise, and as written where that matters."""
    ufunc = MATH[function]
    if len(args) != ufunc.nin or not all(map(_float_like, args)):
        return NotImplemented
    args = tuple(map(settled, args)) if ufunc in _LEAPING else args

    def run(*data: Any) -> np.ndarray:
        out = ufunc(*[np.asarray(d, np.float64) for d in data])
        if not np.isfinite(out).all():
            raise bail("a function of math out of its range", trace)
        return out

    def one_by_one(*data: Any) -> np.ndarray:
        columns = [d.tolist() if isinstance(d, np.ndarray) else [d] * trace.n for d in data]
        return np.array(list(map(function, *columns)))

    return computed(run, args, "float", trace, as_written=None if function in _EXACT else one_by_one)


def _float_like(x: Any) -> bool:
    if type(x) is Lane and x.kind == "np":
        return x.data.dtype == np.float64
    return python_number(x) and not (type(x) is Lane and x.kind == "int" and (np.abs(x.data) > 2**53).any())


_EXACT = (math.sqrt, math.fabs)
_LEAPING = (np.sqrt, np.log, np.log2, np.log10, np.log1p, np.arctan2, np.arcsin, np.arccos, np.tan)
MATH: dict[Any, np.ufunc] = {
    math.sqrt: np.sqrt, math.fabs: np.fabs, math.exp: np.exp, math.log: np.log, math.log2: np.log2,
    math.log10: np.log10, math.log1p: np.log1p, math.expm1: np.expm1, math.sin: np.sin, math.cos: np.cos,
    math.tan: np.tan, math.tanh: np.tanh, math.sinh: np.sinh, math.cosh: np.cosh, math.atan: np.arctan,
    math.atan2: np.arctan2, math.asin: np.arcsin, math.acos: np.arccos, math.hypot: np.hypot,
    math.radians: np.deg2rad, math.degrees: np.rad2deg,
}  # fmt: skip


def _as_np(kind: Any, trace: Trace, x: Any) -> Any:
    if not _is_number(x):
        raise bail("a NumPy scalar of an array", trace)
    return computed(lambda d: d.astype(kind), (x,), "np", trace)


SHADOWS: dict[Any, Any] = {
    float: _float, int: _int, bool: _bool, len: _len, min: _extreme(min), max: _extreme(max), type: _type,
    abs: lambda trace, x: arithmetic(np.absolute, (x,), trace),
    isinstance: lambda trace, x, kinds: issubclass(_type(trace, x), kinds),
    **{kind: functools.partial(_as_np, kind) for kind in (np.float64, np.float32)}, np.array: made_array,
    np.asarray: lambda trace, x: x if type(x) is Lane else made_array(trace, x),
    **{function: functools.partial(_mathematics, function) for function in MATH},
}  # fmt: skip


def builtin_call(function: Any, args: tuple[Any, ...], options: dict[str, Any], trace: Trace) -> Any:
    """A function of Python, of `math` or a type, called with lanes or with what holds some: by a rule that
    is for these arguments, or item by item as written."""
    if function in SHADOWS:
        try:
            found = SHADOWS[function](trace, *args, **options)
        except TypeError as error:
            raise bail(f"{function.__name__}: {error}", trace) from None
        if found is not NotImplemented:
            return found
    if function in HOLDERS or (isinstance(function, type) and issubclass(function, BaseException)):
        return function(*args, **options)
    if function in FUNCTIONS:
        return by_item(function, args, trace, **options)
    raise bail(f"{getattr(function, '__name__', function)} of all items at once", trace)
