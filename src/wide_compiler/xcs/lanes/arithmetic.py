"""Arithmetic on lanes: of Python numbers by Python's rules (no overflow, no silent infinity), of all else by
NumPy's ufuncs and products, with a lane axis in front of the axes of the items."""

import contextlib
import functools
import operator
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


# Each number by itself, and the same alone as among others.
ELEMENTWISE = frozenset((
    np.add, np.subtract, np.multiply, np.true_divide, np.negative, np.positive, np.absolute, np.sqrt,
    np.square,
    np.maximum, np.minimum, np.sign, np.isfinite, np.isnan, np.isinf, np.logical_and,
    np.logical_or, np.logical_not, np.logical_xor, np.floor, np.ceil, np.trunc, np.rint, np.bitwise_and,
    np.bitwise_or, np.bitwise_xor, np.invert, np.reciprocal, np.remainder, np.floor_divide, np.fabs,
    np.copysign, np.conjugate, *COMPARISONS,
))  # fmt: skip
# So are these by the same code wherever they stand in an array; that is tried once, as it is up to the
# machine.
FUNCTIONS = frozenset((
    np.exp, np.exp2, np.expm1, np.log, np.log2, np.log10, np.log1p, np.sin, np.cos, np.tan, np.sinh, np.cosh,
    np.tanh, np.arcsin, np.arccos, np.arctan, np.arctan2, np.arcsinh, np.arccosh, np.arctanh, np.hypot,
    np.cbrt, np.power, np.float_power, operator.pow, np.logaddexp, np.deg2rad, np.rad2deg,
))  # fmt: skip
# A small change of a number may change the result a lot, or fail. Of a quotient that is the divisor.
LEAPING = frozenset((
    *COMPARISONS, np.remainder, np.floor_divide, np.floor, np.ceil, np.trunc, np.rint, np.sign,
    np.logical_not,
    np.logical_and, np.logical_or, np.logical_xor, np.copysign, np.isnan, np.isinf, np.isfinite, np.sqrt,
    np.reciprocal, np.power, np.float_power, operator.pow, np.log, np.log2, np.log10, np.log1p, np.arccosh,
    np.arcsin, np.arccos, np.arctanh, np.arctan2, np.tan,
))  # fmt: skip
# Of complex numbers only these: products, quotients, roots and magnitudes are computed otherwise for a scalar
# than in an array, and for arrays that is up to the machine.
OF_COMPLEX = frozenset((
    np.add, np.subtract, np.negative, np.positive, np.conjugate, np.isfinite, np.isnan, np.isinf,
    *COMPARISONS,
))  # fmt: skip
POWERS = (np.power, np.float_power, operator.pow)  # of scalars, computed in another way than of arrays
_OPERANDS = (Lane, np.ndarray, np.generic, bool, int, float)
_INTEGER = np.dtype(int)
_GROWING = (np.add, np.subtract, np.multiply, np.square, np.negative, np.absolute)
REAL = (np.dtype(np.float64), np.dtype(np.float32))


def arithmetic(ufunc: np.ufunc, inputs: tuple[Any, ...], trace: Trace) -> Any:
    """An operator. Lanes of Python numbers among themselves by Python's rules, all else by NumPy's."""
    if all(map(python_number, inputs)):
        return python_arithmetic(ufunc, inputs, trace)
    for x in inputs:
        if not isinstance(x, _OPERANDS):
            raise bail(f"an operator with a {type(x).__name__}", trace)
    return apply_ufunc(operator.pow if ufunc is np.power else ufunc, inputs, trace)


def apply_ufunc(ufunc: Any, inputs: tuple[Any, ...], trace: Trace) -> Any:
    if ufunc is np.matmul:
        return matmul(inputs[0], inputs[1], trace)
    ranks = [rank_of(x, trace) for x in inputs]
    wanted = max(ranks)
    of_complex = any(getattr(d, "dtype", _INTEGER).kind == "c" for d in map(data_of, inputs))
    if of_complex and not wanted and ufunc not in OF_COMPLEX:
        raise bail("a product or function of complex numbers, which arrays round otherwise", trace)
    if ufunc is np.true_divide and not of_complex:
        inputs = (inputs[0], settled(inputs[1]))
    elif ufunc in LEAPING or of_complex:
        inputs = tuple(map(settled, inputs))
    known = ufunc in (OF_COMPLEX if of_complex else ELEMENTWISE)
    if not known and ufunc in ELEMENTWISE | FUNCTIONS:
        known = _the_same_anywhere(ufunc, *map(_char, inputs))
    if not known or (ufunc in POWERS and not wanted):
        return by_item(ufunc, inputs, trace)
    inputs = _cast(inputs, trace)
    if wanted == 0 and ufunc in _GROWING:
        _no_overflow(ufunc, list(map(data_of, inputs)), trace)
    kind = "array" if wanted else "np"
    if min(ranks) == wanted:
        return computed(ufunc, inputs, kind, trace)
    return computed(functools.partial(on_aligned, ufunc, ranks), inputs, kind, trace)


def on_aligned(ufunc: Any, ranks: list[int], *data: Any) -> np.ndarray:
    return ufunc(*[aligned(d, rank, max(ranks)) for d, rank in zip(data, ranks, strict=True)])


def aligned(data: Any, rank: int, wanted: int) -> Any:
    """The lane axis stays in front; missing axes come right behind it. What all share has no such axis."""
    if not isinstance(data, np.ndarray) or data.ndim != rank + 1 or rank == wanted:
        return data
    return data.reshape(data.shape[0], *(1,) * (wanted - rank), *data.shape[1:])


def _char(x: Any) -> str:
    data = data_of(x)
    return data.dtype.char if isinstance(data, (np.ndarray, np.generic)) else type(data).__name__


@functools.cache
def _the_same_anywhere(ufunc: Any, *chars: str) -> bool:
    """Does the ufunc give the same bits for a number alone, and at any place among others?"""
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


def rank_of(x: Any, trace: Trace, any_order: bool = False) -> int:
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


def _cast(inputs: tuple[Any, ...], trace: Trace) -> tuple[Any, ...]:
    """A Python number takes the type of the arrays beside it; so must a lane of Python numbers."""
    strong: list[Any] = [
        data_of(x).dtype
        for x in inputs
        if (type(x) is Lane and x.kind in ("array", "np")) or isinstance(x, (np.ndarray, np.generic))
    ]
    weak = [type(x) is Lane and x.kind in ("float", "int") for x in inputs]
    if not strong or not any(weak):
        return inputs
    return tuple(_as_strong(x, strong, trace) if w else x for x, w in zip(inputs, weak, strict=True))


def _as_strong(x: Lane, strong: list[Any], trace: Trace) -> Lane:
    wanted = np.result_type(*strong, 1.0 if x.kind == "float" else 1)
    if wanted.kind in "iu" and x.data.size:
        limits = np.iinfo(wanted)
        if x.data.max() > limits.max or x.data.min() < limits.min:
            raise bail("an integer out of the array's range", trace)
    return computed(lambda d: d.astype(wanted, copy=False), (x,), "np", trace)


def _no_overflow(ufunc: np.ufunc, data: list[Any], trace: Trace) -> None:
    """NumPy warns of overflow in scalars of integers, but not in arrays."""
    kinds = {"f" if type(d) is float else getattr(d, "dtype", _INTEGER).kind for d in data}
    if not kinds <= {"i", "u", "b"} or kinds == {"b"}:
        return
    if ufunc in (np.subtract, np.negative) and "u" in kinds:
        raise bail("integers without sign that may fall below zero", trace)
    narrow = any(isinstance(d, (np.ndarray, np.generic)) and d.dtype.itemsize < 8 for d in data)
    sizes = [max(largest(d), 2) for d in data]
    product = sizes[0] * sizes[-1] if len(sizes) == 2 else sizes[0] ** 2
    if narrow or product >= SAFE_INT:
        raise bail("integers of NumPy that may overflow", trace)


def matmul(a: Any, b: Any, trace: Trace) -> Any:
    """`a @ b` for every lane."""
    ranks = (rank_of(a, trace, any_order=True), rank_of(b, trace, any_order=True))
    x, y = data_of(a), data_of(b)
    if 0 in ranks or max(ranks) > 2 or x.dtype != y.dtype or x.dtype not in REAL:
        return by_item(np.matmul, (a, b), trace)
    if x.shape[-1] != y.shape[-1 if ranks[1] == 1 else -2]:
        raise bail("a product of shapes that do not fit", trace)
    if ranks == (1, 1):
        return computed(_vecdot, (a, b), "np", trace) if _vecdot else by_item(np.dot, (a, b), trace)
    one_by_one = functools.partial(_one_by_one, ranks)
    if ranks == (2, 2) or (type(a) is Lane and type(b) is Lane):
        return computed(one_by_one, (a, b), "array", trace)
    # One product with all vectors as rows takes less time, and rounds otherwise.
    if type(a) is Lane and ranks == (1, 2):
        return computed(np.matmul, (a, b), "array", trace, as_written=one_by_one)
    if type(b) is Lane and ranks == (2, 1):
        return computed(lambda m, v: np.matmul(v, m.T), (a, b), "array", trace, as_written=one_by_one)
    return computed(one_by_one, (a, b), "array", trace)


_vecdot: Any = getattr(np, "vecdot", None)  # NumPy 2: the very product that `dot` takes of two vectors


def _one_by_one(ranks: tuple[int, int], x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The products that NumPy would take one by one, without a step of Python for each."""
    left = x[..., None, :] if ranks[0] == 1 else x
    right = y[..., :, None] if ranks[1] == 1 else y
    out = np.matmul(left, right)
    if ranks[1] == 1:
        out = out[..., 0]
    return out[..., 0, :] if ranks[0] == 1 else out
