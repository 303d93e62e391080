"""How far rounding may have moved the numbers of a lane, so that a yes or no may be taken from them.

NumPy may add up the numbers of many items in another order than those of one. What comes out differs in the
last digits, and after a difference of large numbers in the first. Bounds are computed where somebody asks;
a step without a rule has none, and then the plain loop decides.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .lane_tape import aligned

Bound = Callable[[], Any]  # an array of the shape of the lane's data, or None if nothing is known
FUNCTION = 8.0  # units in the last place by which one function may differ from itself, computed otherwise


def error_of(x: Any) -> Any:
    """The bound for a lane; what all items share, and what is exact, has none to speak of."""
    if not getattr(x, "approx", False):
        return 0.0
    return None if x.error is None else x.error()


def epsilon(data: Any) -> float:
    dtype = np.asarray(data).dtype
    return float(np.finfo(dtype if dtype.kind in "fc" else np.float64).eps)


def of_ufunc(ufunc: np.ufunc, inputs: Sequence[Any], ranks: Sequence[int], out: np.ndarray) -> Bound | None:
    """The bound of a ufunc's result."""
    rule = RULES.get(ufunc)
    if rule is None:
        return None

    def bound() -> Any:
        errors = [error_of(x) for x in inputs]
        if any(e is None for e in errors):
            return None
        data = [np.abs(_data(x)) for x in inputs]
        wanted = max(ranks)
        placed = [[aligned(v, r, wanted) for v, r in zip(vs, ranks, strict=True)] for vs in (data, errors)]
        with np.errstate(all="ignore"):
            return rule(np.abs(out), *placed[0], *placed[1]) + 2.0 * epsilon(out) * np.abs(out)

    return bound


def of_sum(x: Any, axes: Any, keepdims: bool, divisor: float) -> Bound:
    """Of a sum of so many numbers, or a mean."""

    def bound() -> Any:
        error = error_of(x)
        if error is None:
            return None
        size = np.abs(x.data)
        count = x.data.size / max(len(x.data), 1)
        moved = error + count * 2.0 * epsilon(x.data) * size
        return np.sum(moved, axis=axes, keepdims=keepdims) / divisor

    return bound


def of_spread(x: Any, axes: Any, root: bool, options: dict[str, Any]) -> Bound:
    """Of a variance or standard deviation."""

    def bound() -> Any:
        error = error_of(x)
        if error is None:
            return None
        apart = np.abs(x.data - np.mean(x.data, axis=axes, keepdims=True))
        count = x.data.size / max(len(x.data), 1)
        eps = 2.0 * count * epsilon(x.data)
        moved = np.max(np.zeros_like(x.data) + error + eps * np.abs(x.data), axis=axes, keepdims=True)
        square = np.max(apart * (2.0 * moved + eps * apart) + moved * moved, axis=axes, keepdims=True)
        square = square * count / max(count - options.get("ddof", 0), 1.0)
        if not options.get("keepdims", False):
            square = np.squeeze(square, axis=axes)
        if not root:
            return square
        out = np.std(x.data, axis=axes, **options)
        return _root(out, out * out, square) + 4.0 * epsilon(x.data) * out

    return bound


def of_product(a: Any, b: Any, run: Callable[..., Any]) -> Bound:
    """Of `a @ b`, where `run` is that product."""

    def bound() -> Any:
        first, second = error_of(a), error_of(b)
        if first is None or second is None:
            return None
        x, y = np.abs(_data(a)), np.abs(_data(b))
        eps = 2.0 * x.shape[-1] * max(epsilon(x), epsilon(y))
        return run(x * eps + first, y) + run(x, np.zeros_like(y) + second)

    return bound


def of_length(x: Any) -> Bound:
    """Of the square root of a sum of squares."""

    def bound() -> Any:
        error = error_of(x)
        if error is None:
            return None
        size = np.abs(x.data)
        squares = np.sum(size * (2.0 * error + 2.0 * size.shape[-1] * epsilon(size) * size), axis=-1)
        length = np.sqrt(np.sum(size * size, axis=-1))
        return _root(length, length * length, squares) + 2.0 * epsilon(size) * length

    return bound


def alike(x: Any, run: Callable[[Any], Any]) -> Bound:
    """Of a part of the numbers, or of the same in another shape or type."""

    def bound() -> Any:
        error = error_of(x)
        return None if error is None else run(np.zeros_like(x.data) + error)

    return bound


def _data(x: Any) -> Any:
    return x.data if hasattr(x, "approx") else x


def _root(out: Any, a: Any, error: Any) -> Any:
    with np.errstate(all="ignore"):
        return np.fmin(np.sqrt(error), np.where(out > 0, error / np.where(out > 0, out, 1.0), np.inf))


def _quotient(out: Any, a: Any, b: Any, ea: Any, eb: Any) -> Any:
    return np.where(b > 2.0 * eb, 2.0 * (ea + out * eb) / np.where(b > 0, b, 1.0), np.inf)


def _logarithm(out: Any, a: Any, ea: Any) -> Any:
    near_one = FUNCTION * epsilon(out)
    return np.where(a > 2.0 * ea, 2.0 * ea / np.where(a > 0, a, 1.0), np.inf) + near_one * (out + 1.0)


def _steady(out: Any, a: Any, ea: Any) -> Any:
    """Of functions that never rise faster than their argument."""
    return ea + FUNCTION * epsilon(out) * out


# By the absolute values of result and operands, and the operands' bounds.
RULES: dict[Any, Any] = {
    np.add: lambda out, a, b, ea, eb: ea + eb,
    np.subtract: lambda out, a, b, ea, eb: ea + eb,
    np.multiply: lambda out, a, b, ea, eb: a * eb + b * ea + ea * eb,
    np.true_divide: _quotient,
    np.negative: lambda out, a, ea: ea,
    np.positive: lambda out, a, ea: ea,
    np.absolute: lambda out, a, ea: ea,
    np.fabs: lambda out, a, ea: ea,
    np.maximum: lambda out, a, b, ea, eb: np.maximum(ea, eb),
    np.minimum: lambda out, a, b, ea, eb: np.maximum(ea, eb),
    np.square: lambda out, a, ea: 2.0 * a * ea + ea * ea,
    np.sqrt: _root,
    np.exp: lambda out, a, ea: out * (np.expm1(ea) + FUNCTION * epsilon(out)),
    np.log: _logarithm,
    **dict.fromkeys((np.tanh, np.sin, np.cos, np.arctan), _steady),
}
