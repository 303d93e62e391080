"""Arithmetic on lanes: Python numbers by Python's rules, everything else by NumPy's."""

import contextlib
import functools
import operator
from typing import Any

import numpy as np

from ..work import Bail
from .gather import NOT_CONTIGUOUS, by_item
from .lane import Lane, computed, data_of

SAFE_INT = 2**62
COMPARISONS = {
    np.less: operator.lt, np.less_equal: operator.le, np.greater: operator.gt, np.greater_equal: operator.ge,
    np.equal: operator.eq, np.not_equal: operator.ne,
}  # fmt: skip
OPERATORS: dict[Any, Any] = {
    np.add: operator.add, np.subtract: operator.sub, np.multiply: operator.mul, np.negative: operator.neg,
    np.absolute: operator.abs, np.true_divide: operator.truediv, np.floor_divide: operator.floordiv,
    np.remainder: operator.mod, np.power: operator.pow, np.bitwise_and: operator.and_,
    np.bitwise_or: operator.or_, np.bitwise_xor: operator.xor, np.positive: operator.pos,
    np.invert: operator.invert, **COMPARISONS,
}  # fmt: skip
_GROWING = (np.add, np.subtract, np.multiply, np.negative, np.absolute)


def python_number(x: Any) -> bool:
    return x.kind in ("float", "int", "bool") if type(x) is Lane else type(x) in (int, float, bool)


def of_python_numbers(ufunc: np.ufunc, inputs: tuple[Any, ...]) -> Any:
    """Apply an operator to lanes of Python numbers.

    NumPy is used where its results equal Python's (floats, and integers that stay small); otherwise Python,
    item by item.
    """
    kinds = {x.kind if type(x) is Lane else type(x).__name__ for x in inputs}
    if len(kinds) == 1 and (ufunc in _GROWING or ufunc in COMPARISONS) and "bool" not in kinds:
        kind = kinds.pop()
        if kind == "float" or _stays_small(ufunc, inputs):
            return computed(ufunc, inputs, "bool" if ufunc in COMPARISONS else kind)
    if kinds == {"float"} and ufunc is np.true_divide and np.all(data_of(inputs[1]) != 0):
        return computed(ufunc, inputs, "float")
    return by_item(OPERATORS[ufunc], inputs)


def _stays_small(ufunc: np.ufunc, inputs: tuple[Any, ...]) -> bool:
    """Return whether the integers and the result are far from the limits of 64 bits."""
    data = [data_of(x) for x in inputs]
    sizes = [abs(d) if type(d) is int else max(abs(int(d.max())), abs(int(d.min()))) for d in data]
    return (sizes[0] * sizes[-1] if ufunc is np.multiply else sum(sizes)) < SAFE_INT


# Ufuncs whose result for a number does not depend on its neighbours in an array.
ELEMENTWISE = frozenset((
    np.add, np.subtract, np.multiply, np.true_divide, np.negative, np.positive, np.absolute, np.sqrt,
    np.square, np.maximum, np.minimum, np.sign, np.isfinite, np.isnan, np.isinf, np.logical_and,
    np.logical_or, np.logical_not, np.logical_xor, np.floor, np.ceil, np.trunc, np.rint, np.bitwise_and,
    np.bitwise_or, np.bitwise_xor, np.invert, np.reciprocal, np.remainder, np.floor_divide, np.fabs,
    np.copysign, np.conjugate, *COMPARISONS,
))  # fmt: skip
# Ufuncs for which the same holds on most machines; tested once per dtype.
FUNCTIONS = frozenset((
    np.exp, np.exp2, np.expm1, np.log, np.log2, np.log10, np.log1p, np.sin, np.cos, np.tan, np.sinh, np.cosh,
    np.tanh, np.arcsin, np.arccos, np.arctan, np.arctan2, np.arcsinh, np.arccosh, np.arctanh, np.hypot,
    np.cbrt, np.power, np.float_power, operator.pow, np.logaddexp, np.deg2rad, np.rad2deg,
))  # fmt: skip
POWERS = (np.power, np.float_power, operator.pow)  # computed differently for scalars and arrays
_OPERANDS = (Lane, np.ndarray, np.generic, bool, int, float)
REAL = (np.dtype(np.float64), np.dtype(np.float32))


def arithmetic(ufunc: np.ufunc, inputs: tuple[Any, ...]) -> Any:
    """Apply an operator: Python's rules if all operands are Python numbers, otherwise NumPy's."""
    if all(map(python_number, inputs)):
        return of_python_numbers(ufunc, inputs)
    for x in inputs:
        if not isinstance(x, _OPERANDS):
            raise Bail(f"an operator with a {type(x).__name__}, expected arrays or numbers")
    return apply_ufunc(operator.pow if ufunc is np.power else ufunc, inputs, OPERATORS.get(ufunc))


def apply_ufunc(ufunc: Any, inputs: tuple[Any, ...], written: Any = None) -> Any:
    """Apply a ufunc to lanes and shared values.

    Args:
        written: the Python operator that the ufunc implements, if any; scalars use it item by item.
    """
    if ufunc is np.matmul:
        return matmul(inputs[0], inputs[1])
    ranks, chars = list(map(rank_of, inputs)), list(map(_char, inputs))
    of_complex = not {"F", "D"}.isdisjoint(chars)
    known = ufunc in ELEMENTWISE and not of_complex
    if not known and ufunc in ELEMENTWISE | FUNCTIONS:
        known = _the_same_anywhere(ufunc, *chars)
    # For scalars, NumPy warns of integer overflow, and computes powers and complex numbers differently.
    alone = not max(ranks) and (ufunc in POWERS or of_complex or (ufunc in _OVERFLOWING and _whole(chars)))
    if not known or alone:
        return by_item(written or ufunc, inputs)
    inputs, kind = _cast(inputs), "array" if max(ranks) else "np"
    if min(ranks) == max(ranks):
        return computed(ufunc, inputs, kind)
    return computed(functools.partial(on_aligned, ufunc, ranks), inputs, kind)


_OVERFLOWING = (*_GROWING, np.square)


def _whole(chars: list[str]) -> bool:
    return all(char == "int" or char in "bhilqBHILQ" for char in chars)


def on_aligned(ufunc: Any, ranks: list[int], *data: Any) -> np.ndarray:
    return ufunc(*[aligned(d, rank, max(ranks)) for d, rank in zip(data, ranks, strict=True)])


def aligned(data: Any, rank: int, wanted: int) -> Any:
    """Insert missing axes after the lane axis: [n, ...] to [n, 1, ..., 1, ...].

    Shared values have no lane axis.
    """
    if not isinstance(data, np.ndarray) or data.ndim != rank + 1 or rank == wanted:
        return data
    return data.reshape(data.shape[0], *(1,) * (wanted - rank), *data.shape[1:])


def _char(x: Any) -> str:
    data = data_of(x)
    return data.dtype.char if isinstance(data, (np.ndarray, np.generic)) else type(data).__name__


@functools.cache
def _the_same_anywhere(ufunc: Any, *chars: str) -> bool:
    """Return whether the ufunc gives the same bits for a single number as at any position in an array."""
    made: dict[str, Any] = {"int": 2, "float": 1.7, "bool": True}
    numbers = np.linspace(0.01, 0.99, 203)
    inputs = [
        made[c] if c in made else (numbers + 1j * numbers[::-1] if c in "FD" else numbers).astype(c)
        for c in chars
    ]
    if ufunc is np.arccosh:
        inputs = [x + 1 for x in inputs]
    with np.errstate(all="ignore"), contextlib.suppress(TypeError):
        whole = ufunc(*inputs).tobytes()
        alone = 1 if ufunc in POWERS or {"F", "D"} & set(chars) else 0  # 0: each number as a scalar
        for length in (alone, 2, 3, 5, 7, 64):
            parts = [slice(i, i + length) if length else i for i in range(0, 203, length or 1)]
            made_of = [ufunc(*[x[p] if type(x) is np.ndarray else x for x in inputs]) for p in parts]
            if np.hstack(made_of).tobytes() != whole:
                return False
        return True
    return False


def rank_of(x: Any, any_order: bool = False) -> int:
    """Return the number of axes of an item's value, the lane axis not counted."""
    if type(x) is Lane:
        return x.rank
    if type(x) is np.ndarray:
        if x.dtype.hasobject or x.ndim == 0:
            raise Bail("an array of Python objects or with 0 dimensions")
        if x.ndim > 1 and not (any_order or x.flags.c_contiguous):
            raise Bail(NOT_CONTIGUOUS)
        return x.ndim
    if isinstance(x, (np.generic, bool, int, float)):
        return 0
    raise Bail(f"a {type(x).__name__} as an operand, expected an array or number")


def _cast(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Cast lanes of Python numbers to the dtype of the arrays, as NumPy does with Python numbers."""
    weak = [type(x) is Lane and x.kind in ("float", "int") for x in inputs]
    if not any(weak):
        return inputs
    data = [data_of(x) for x, w in zip(inputs, weak, strict=True) if not w]
    types = [d.dtype for d in data if isinstance(d, (np.ndarray, np.generic))]
    return tuple(_as_number(x, types) if w else x for x, w in zip(inputs, weak, strict=True))


def _as_number(x: Lane, types: list[Any]) -> Lane:
    wanted = np.result_type(*types, 1.0 if x.kind == "float" else 1)
    if wanted.kind in "iu" and not np.array_equal(x.data.astype(wanted), x.data):
        raise Bail(f"an integer out of the range of {wanted}")
    return Lane(x.data.astype(wanted, copy=False), "np")


def matmul(a: Any, b: Any) -> Any:
    """Return `a @ b` for each lane, with the same kernel that NumPy uses for a single product."""
    ranks = (rank_of(a, any_order=True), rank_of(b, any_order=True))
    x, y = data_of(a), data_of(b)
    if 0 in ranks or max(ranks) > 2 or x.dtype != y.dtype or x.dtype not in REAL:
        return by_item(np.matmul, (a, b))
    if x.shape[-1] != y.shape[-1 if ranks[1] == 1 else -2]:
        raise Bail(f"a matrix product of shapes {x.shape} and {y.shape}")
    if ranks == (1, 1):
        return computed(_vecdot, (a, b), "np") if _vecdot else by_item(np.dot, (a, b))
    return computed(functools.partial(_one_by_one, ranks), (a, b), "array")


_vecdot: Any = getattr(np, "vecdot", None)  # NumPy 2; the same kernel as `dot` of two vectors


def _one_by_one(ranks: tuple[int, int], x: np.ndarray, y: np.ndarray) -> np.ndarray:
    left = x[..., None, :] if ranks[0] == 1 else x
    right = y[..., :, None] if ranks[1] == 1 else y
    out = np.matmul(left, right)
    if ranks[1] == 1:
        out = out[..., 0]
    return out[..., 0, :] if ranks[0] == 1 else out
