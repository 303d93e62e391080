"""NumPy on lanes: ufuncs with a lane axis in front, and the functions that reduce, multiply and join."""

import functools
from typing import Any

import numpy as np

from .lane import SAFE_INT, Lane, Trace, bail, computed, sure
from .lane_errors import of_product, of_ufunc
from .lane_numbers import COMPARISONS, largest, python_arithmetic, python_number
from .lane_signs import check_edges, nonnegative
from .lane_tape import AlignedUfunc

# Exact: IEEE says what comes out, whatever the order. The others may differ in the last digits.
EXACT = frozenset((
    np.add, np.subtract, np.multiply, np.true_divide, np.negative, np.positive, np.absolute, np.sqrt,
    np.square,
    np.maximum, np.minimum, np.sign, np.isfinite, np.isnan, np.isinf, np.logical_and, np.logical_or,
    np.logical_not,
    np.floor, np.ceil, np.trunc, np.rint, np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.invert,
    np.reciprocal,
    np.logical_xor, np.remainder, np.floor_divide, np.fabs, np.copysign, *COMPARISONS,
))  # fmt: skip
ROUNDED = frozenset((
    np.exp, np.exp2, np.expm1, np.log, np.log2, np.log10, np.log1p, np.sin, np.cos, np.tan, np.sinh,
    np.cosh, np.tanh,
    np.arcsin, np.arccos, np.arctan, np.arctan2, np.arcsinh, np.arccosh, np.arctanh, np.hypot, np.cbrt,
    np.power,
    np.float_power, np.logaddexp, np.deg2rad, np.rad2deg,
))  # fmt: skip
# Of complex numbers, these are made of several operations.
ROUNDED_IF_COMPLEX = (np.multiply, np.true_divide, np.absolute, np.sqrt, np.square, np.reciprocal, np.sign)
STEPS = (
    np.remainder,
    np.floor_divide,
    np.floor,
    np.ceil,
    np.trunc,
    np.rint,
    np.sign,
    np.logical_not,
    np.logical_and,
    np.logical_or,
    np.logical_xor,
    np.copysign,
    np.arctan2,
    np.isnan,
    np.isinf,
    np.isfinite,
)
_OPERANDS = (Lane, np.ndarray, np.generic, bool, int, float)
_INTEGER = np.dtype(int)
_GROWING = (np.add, np.subtract, np.multiply, np.square, np.power, np.negative, np.absolute)


def arithmetic(ufunc: np.ufunc, inputs: tuple[Any, ...], trace: Trace | None) -> Any:
    """An operator. Lanes of Python numbers among themselves by Python's rules, all else by NumPy's."""
    if all(map(python_number, inputs)):
        return python_arithmetic(ufunc, inputs, trace)
    for x in inputs:
        if not isinstance(x, _OPERANDS):
            raise bail(f"an operator with a {type(x).__name__}", trace)
    return apply_ufunc(ufunc, inputs, trace)


def apply_ufunc(ufunc: np.ufunc, inputs: tuple[Any, ...], trace: Trace | None) -> Lane:
    if ufunc is np.matmul:
        return matmul(inputs[0], inputs[1], trace)
    if ufunc not in EXACT and ufunc not in ROUNDED:
        raise bail(f"np.{ufunc.__name__}", trace)
    ranks = [rank_of(x, trace) for x in inputs]
    run, kind = AlignedUfunc(ufunc, ranks), "array" if max(ranks) else "np"
    approx = any(type(x) is Lane and x.approx for x in inputs)
    if ufunc is np.power and any(getattr(x, "dtype", _INTEGER).kind == "b" for x in _data(inputs)):
        raise bail("a power of truths", trace)  # which NumPy's operator computes in its own way
    if approx and ufunc in STEPS:
        raise bail(f"np.{ufunc.__name__} of rounded numbers", trace)
    of_complex = any(getattr(x, "dtype", _INTEGER).kind == "c" for x in _data(inputs))
    if approx and of_complex and ufunc in (np.maximum, np.minimum):
        raise bail(f"np.{ufunc.__name__} of rounded complex numbers, which takes one or the other", trace)
    close = approx and ufunc in COMPARISONS
    growing = kind == "np" and ufunc in _GROWING and _all_integers(inputs)
    if approx:
        check_edges(ufunc, inputs, trace)
    rounded = (approx and not close) or ufunc in ROUNDED
    if ufunc in ROUNDED_IF_COMPLEX and of_complex:
        rounded = True
    if not (close or growing or any(type(x) is Lane and x.kind in ("float", "int") for x in inputs)):
        out = computed(run, inputs, kind, trace, approx=rounded)
    else:
        data = _cast(inputs, trace)
        if close:
            sure(inputs[0], inputs[1], trace)
        if growing:
            _no_overflow(ufunc, data, trace)
        out = Lane(run(*data), kind, trace, approx=rounded)
    if rounded:
        out.error = of_ufunc(ufunc, inputs, ranks, out.data)
        out.nonnegative = nonnegative(ufunc, inputs)
    return out


def rank_of(x: Any, trace: Trace | None, any_order: bool = False) -> int:
    if type(x) is Lane:
        return x.rank
    if type(x) is np.ndarray:
        if x.dtype.hasobject or x.ndim == 0:
            raise bail("an array of objects, or without dimensions", trace)
        if x.ndim > 1 and not (any_order or x.flags.c_contiguous):
            raise bail("an array that does not lie in rows, as results of it would not", trace)
        return x.ndim
    if isinstance(x, (np.generic, bool, int, float)):
        return 0
    raise bail(f"a {type(x).__name__} among arrays", trace)


def _cast(inputs: tuple[Any, ...], trace: Trace | None) -> list[Any]:
    """A Python number takes the type of the arrays beside it; so must a lane of Python numbers."""
    strong: list[Any] = [
        (x.data if type(x) is Lane else x).dtype  # type: ignore[union-attr]
        for x in inputs
        if (type(x) is Lane and x.kind in ("array", "np")) or isinstance(x, (np.ndarray, np.generic))
    ]
    out: list[Any] = []
    for x in inputs:
        if type(x) is not Lane or x.kind in ("array", "np", "bool"):
            out.append(x if type(x) is not Lane else x.data)
            continue
        if not strong:
            out.append(x.data)
            continue
        example = 1.0 if x.kind == "float" else 1
        wanted = np.result_type(*strong, example)
        if wanted.kind in "iu":
            limits = np.iinfo(wanted)
            if x.data.size and (x.data.max() > limits.max or x.data.min() < limits.min):
                raise bail("an integer out of the array's range", trace)
        out.append(x.data.astype(wanted))
    return out


def _data(inputs: tuple[Any, ...]) -> list[Any]:
    return [x.data if type(x) is Lane else x for x in inputs]


def _all_integers(inputs: tuple[Any, ...]) -> bool:
    """Or truths among them, which count as numbers then."""
    kinds = {"f" if type(d) is float else getattr(d, "dtype", _INTEGER).kind for d in _data(inputs)}
    return kinds <= {"i", "u", "b"} and kinds != {"b"}


def _no_overflow(ufunc: np.ufunc, data: list[Any], trace: Trace | None) -> None:
    """NumPy warns of overflow in scalars, but not in arrays."""
    if ufunc in (np.subtract, np.negative) and any(getattr(d, "dtype", _INTEGER).kind == "u" for d in data):
        raise bail("integers without sign that may fall below zero", trace)
    narrow = any(np.asarray(d).dtype.itemsize < 8 and isinstance(d, (np.ndarray, np.generic)) for d in data)
    sizes = [max(largest(d), 2) for d in data]
    product = sizes[0] * sizes[-1] if len(sizes) == 2 else sizes[0] ** 2
    if narrow or product >= SAFE_INT:
        raise bail("integers of NumPy that may overflow", trace)


def matmul(a: Any, b: Any, trace: Trace | None) -> Lane:
    """`a @ b` for every lane."""
    ranks = (rank_of(a, trace, any_order=True), rank_of(b, trace, any_order=True))
    if 0 in ranks or max(ranks) > 2:
        raise bail("a product of these shapes", trace)
    x, y = (v.data if type(v) is Lane else v for v in (a, b))
    if x.shape[-1] != y.shape[-1 if ranks[1] == 1 else -2]:
        raise bail("a product of shapes that do not fit", trace)
    kind, dtype = "array" if sum(ranks) > 2 else "np", np.result_type(x, y)
    if kind == "np" and dtype.kind in "iu":
        raise bail("a product of integers", trace)
    run = _product((type(a) is Lane, type(b) is Lane), ranks)
    error = of_product(a, b, run) if dtype.kind == "f" else None
    square = a is b and kind == "np" and not a.approx and dtype.kind == "f"
    return computed(run, (a, b), kind, trace, True, dtype.kind in "fc", error, square)


def _product(lanes: tuple[bool, bool], ranks: tuple[int, int]) -> Any:
    """The product of `[n, ...]` on the sides that are lanes."""
    if lanes[0] and lanes[1]:
        return functools.partial(_product_of_lanes, ranks)
    if lanes[0] or (ranks[0], ranks[1]) not in ((1, 1), (2, 1)):
        return np.matmul
    if ranks[0] == 1:  # [k] @ [n, k]
        return lambda x, y: np.matmul(y, x)
    return lambda x, y: np.matmul(y, x.T)


def _product_of_lanes(ranks: tuple[int, int], x: np.ndarray, y: np.ndarray) -> np.ndarray:
    left = x[:, None, :] if ranks[0] == 1 else x
    right = y[:, :, None] if ranks[1] == 1 else y
    out = np.matmul(left, right)
    if ranks[1] == 1:
        out = out[..., 0]
    return out[:, 0] if ranks[0] == 1 else out
