"""Arithmetic of lanes that stand for Python numbers, with Python's rules: no overflow, no silent infinity."""

from typing import Any

import numpy as np

from .gather import by_item
from .lane import Lane, Trace, bail, computed, data_of, settled

SAFE_INT = 2**62
EXACT_FLOAT = 2**53
COMPARISONS = (np.less, np.less_equal, np.greater, np.greater_equal, np.equal, np.not_equal)
_BITS = (np.bitwise_and, np.bitwise_or, np.bitwise_xor)
_SAME_IN_NUMPY = (np.add, np.subtract, np.multiply, np.negative, np.positive, np.absolute)
_DIVISIONS = (np.true_divide, np.floor_divide, np.remainder)


def python_number(x: Any) -> bool:
    return x.kind in ("float", "int", "bool") if type(x) is Lane else type(x) in (int, float, bool)


def _kind(x: Any) -> str:
    return x.kind if type(x) is Lane else type(x).__name__


def largest(data: Any) -> int:
    """The largest magnitude, as an exact integer."""
    data = np.asarray(data)
    return max(abs(int(data.max())), abs(int(data.min()))) if data.size else 0


def python_arithmetic(ufunc: np.ufunc, inputs: tuple[Any, ...], trace: Trace) -> Any:
    kinds = list(map(_kind, inputs))
    if any(type(x) is int and abs(x) >= SAFE_INT for x in inputs):
        raise bail("a very large integer", trace)
    if ufunc in COMPARISONS:
        return _compare(ufunc, inputs, kinds, trace)
    if ufunc in _BITS and set(kinds) == {"bool"}:
        return computed(ufunc, inputs, "bool", trace)
    if ufunc is np.power:
        return _power(inputs, kinds, trace)
    if ufunc in _DIVISIONS:
        first = inputs[0] if ufunc is np.true_divide else settled(inputs[0])
        inputs = (first, settled(inputs[1]))
        if not np.all(np.asarray(data_of(inputs[1])) != 0):
            raise bail("a division by zero", trace)
    elif ufunc not in _SAME_IN_NUMPY and (ufunc not in _BITS or "float" in kinds):
        raise bail(f"{ufunc.__name__} of Python's numbers", trace)
    if "float" in kinds:
        floats = kinds.count("float") == len(kinds)
        run = ufunc if floats else lambda *data: ufunc(*[_as(np.float64, d) for d in data])
        return computed(run, inputs, "float", trace)
    sizes = [largest(data_of(x)) for x in inputs]
    if ufunc is np.true_divide:
        if max(sizes) >= EXACT_FLOAT:
            raise bail("a quotient of large integers", trace)
        return computed(ufunc, inputs, "float", trace)
    if (sizes[0] * sizes[-1] if ufunc is np.multiply else sum(sizes)) >= SAFE_INT:
        raise bail("integers too large for 64 bits", trace)
    return computed(lambda *data: ufunc(*[_as(np.int64, d) for d in data]), inputs, "int", trace)


def _power(inputs: tuple[Any, ...], kinds: list[str], trace: Trace) -> Any:
    """By NumPy, which rounds otherwise; of integers, and of floats by exponents of each item, as written."""
    exponent = inputs[1]
    if kinds[0] != "float" or type(inputs[0]) is not Lane or type(exponent) not in (int, float):
        return by_item(pow, inputs, trace)
    base = inputs[0] if exponent > 0 and float(exponent).is_integer() else settled(inputs[0])

    def finite(data: np.ndarray) -> np.ndarray:
        out = data * data if exponent == 2 else np.power(data, float(exponent))
        if not np.isfinite(out).all():
            raise bail("a power out of the range of floats", trace)
        return out

    written = lambda data: np.array([d**exponent for d in data.tolist()])  # noqa: E731
    return computed(finite, (base,), "float", trace, as_written=written)


def _compare(ufunc: np.ufunc, inputs: tuple[Any, ...], kinds: list[str], trace: Trace) -> Lane:
    inputs = tuple(map(settled, inputs))
    mixed = "float" in kinds and set(kinds) != {"float"}
    whole = [data_of(x) for x, kind in zip(inputs, kinds, strict=True) if kind == "int"]
    if mixed and any(largest(d) >= EXACT_FLOAT for d in whole):
        raise bail("a comparison of a large integer with a float", trace)
    return computed(ufunc, inputs, "bool", trace)


def _as(kind: Any, data: Any) -> np.ndarray:
    return np.asarray(data, dtype=kind)
