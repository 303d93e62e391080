"""Arithmetic of lanes that stand for Python numbers, with Python's rules: no overflow, no silent infinity."""

import functools
from typing import Any

import numpy as np

from .lane import EXACT_FLOAT, SAFE_INT, Lane, Trace, bail, computed, sure
from .lane_errors import of_ufunc
from .lane_signs import check_edges, nonnegative

COMPARISONS = (np.less, np.less_equal, np.greater, np.greater_equal, np.equal, np.not_equal)
_INTEGER = (
    np.add,
    np.subtract,
    np.multiply,
    np.floor_divide,
    np.remainder,
    np.negative,
    np.positive,
    np.absolute,
)
_BITS = (np.bitwise_and, np.bitwise_or, np.bitwise_xor)
_FLOAT = (*_INTEGER, np.true_divide)
_DIVISIONS = (np.true_divide, np.floor_divide, np.remainder)


def python_number(x: Any) -> bool:
    return x.kind in ("float", "int", "bool") if type(x) is Lane else type(x) in (int, float, bool)


def _is_float(x: Any) -> bool:
    return x.kind == "float" if type(x) is Lane else type(x) is float


def _data(x: Any, trace: Trace | None) -> Any:
    if type(x) is Lane:
        return x.data
    if type(x) is int and abs(x) >= SAFE_INT:
        raise bail("a very large integer", trace)
    return x


def largest(data: Any) -> int:
    """The largest magnitude, as an exact integer."""
    data = np.asarray(data)
    return max(abs(int(data.max())), abs(int(data.min()))) if data.size else 0


def python_arithmetic(ufunc: np.ufunc, inputs: tuple[Any, ...], trace: Trace | None) -> Lane:
    data = [_data(x, trace) for x in inputs]
    approx = any(type(x) is Lane and x.approx for x in inputs)
    floats = [_is_float(x) for x in inputs]
    bools = [x.kind == "bool" if type(x) is Lane else type(x) is bool for x in inputs]
    if ufunc in COMPARISONS:
        return _compare(ufunc, inputs, data, floats, approx, trace)
    if ufunc in _BITS and all(bools):
        return Lane(ufunc(*data), "bool", trace)
    if ufunc in _DIVISIONS:
        if not np.all(np.asarray(data[1]) != 0):
            raise bail("a division by zero", trace)
        check_edges(np.true_divide, inputs, trace)
    if ufunc is np.power:
        return _power(inputs, data, floats, approx, trace)
    data = [np.asarray(d).astype(np.int64) if b else d for d, b in zip(data, bools, strict=True)]
    if any(floats):
        if ufunc not in _FLOAT:
            raise bail(f"{ufunc.__name__} of floats", trace)
        discrete = ufunc in (np.floor_divide, np.remainder)
        if discrete and approx:
            raise bail("a whole number from rounded ones", trace)
        if ufunc in _DIVISIONS or any(bools):
            out = Lane(_of_floats(ufunc, *data), "float", trace, approx=approx)
        else:
            out = computed(functools.partial(_of_floats, ufunc), inputs, "float", trace, approx=approx)
        if approx:
            out.error = of_ufunc(ufunc, inputs, [0] * len(inputs), out.data)
            out.nonnegative = nonnegative(ufunc, inputs)
        return out
    if ufunc is np.true_divide:
        if any(largest(d) >= EXACT_FLOAT for d in data):
            raise bail("a quotient of large integers", trace)
        return Lane(np.true_divide(*data), "float", trace)
    if ufunc not in _INTEGER and ufunc not in _BITS:
        raise bail(f"{ufunc.__name__} of integers", trace)
    _fits(ufunc, data, trace)
    return Lane(ufunc(*(np.asarray(d, dtype=np.int64) for d in data)), "int", trace)


def _of_floats(ufunc: np.ufunc, *data: Any) -> np.ndarray:
    return ufunc(*[np.asarray(d, dtype=np.float64) for d in data])


def _fits(ufunc: np.ufunc, data: list[Any], trace: Trace | None) -> None:
    sizes = [largest(d) for d in data]
    bound = sizes[0] * sizes[-1] if ufunc is np.multiply and len(sizes) == 2 else sum(sizes)
    if bound >= SAFE_INT:
        raise bail("integers too large for 64 bits", trace)


def _power(inputs: tuple, data: list[Any], floats: list[bool], approx: bool, trace: Trace | None) -> Lane:
    base, exponent = inputs
    if type(exponent) is Lane or not floats[0]:
        small = type(exponent) is int and 0 <= exponent <= 8 and type(base) is Lane and base.kind == "int"
        if not small or largest(data[0]) ** exponent >= SAFE_INT:
            raise bail("a power that Python computes in its own way", trace)
        return Lane(np.power(data[0], exponent), "int", trace)
    whole = float(exponent).is_integer()
    if approx and not (whole and exponent >= 0):
        sure(base, 0.0, trace)
    out = np.power(data[0], float(exponent))
    if not np.isfinite(out).all() or not (whole or (data[0] >= 0).all()):
        raise bail("a power that Python computes in its own way", trace)
    return Lane(out, "float", trace, approx=True)


def _compare(
    ufunc: np.ufunc, inputs: tuple, data: list[Any], floats: list[bool], approx: bool, trace: Trace | None
) -> Lane:
    if (
        any(floats)
        and not all(floats)
        and any(largest(d) >= EXACT_FLOAT for d, f in zip(data, floats, strict=True) if not f)
    ):
        raise bail("a comparison of a large integer with a float", trace)
    if approx:
        sure(inputs[0], inputs[1], trace)
    return Lane(ufunc(*data), "bool", trace)
