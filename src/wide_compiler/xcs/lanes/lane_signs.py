"""Edges: where a function leaps, or fails, a rounded number must not be on the wrong side.

Most rounded numbers that are divided by are lengths, spreads or sums of exponentials: never below zero, and
zero exactly where those of one item are. Of others a bound on rounding must tell.
"""

from typing import Any

import numpy as np

from .lane import Trace, sure

# An operand, and the numbers at which the function leaps or fails.
EDGES: dict[Any, tuple[int, tuple[float, ...]]] = {
    np.true_divide: (1, (0.0,)), np.reciprocal: (0, (0.0,)), np.power: (0, (0.0,)),
    np.float_power: (0, (0.0,)), np.sqrt: (0, (0.0,)), np.log: (0, (0.0,)), np.log2: (0, (0.0,)),
    np.log10: (0, (0.0,)), np.log1p: (0, (-1.0,)), np.arccosh: (0, (1.0,)),
    **dict.fromkeys((np.arcsin, np.arccos, np.arctanh), (0, (-1.0, 1.0))),
}  # fmt: skip
_KEEPS_SIGN = (np.add, np.multiply, np.true_divide, np.minimum)


def check_edges(ufunc: np.ufunc, inputs: tuple[Any, ...], trace: Trace | None) -> None:
    """Bails out where rounding may have moved an operand across an edge of the function."""
    if ufunc not in EDGES or (ufunc is np.power and _whole_power(inputs[1])):
        return
    operand, edges = EDGES[ufunc]
    x = inputs[operand]
    if getattr(x, "approx", False) and not (x.nonnegative and all(e <= 0.0 for e in edges)):
        for edge in edges:
            sure(x, edge, trace)


def _whole_power(exponent: Any) -> bool:
    return isinstance(exponent, (int, float)) and exponent >= 0 and float(exponent).is_integer()


def nonnegative(ufunc: np.ufunc, inputs: tuple[Any, ...]) -> bool:
    """Is a rounded result never below zero, and zero exactly where that of one item is?"""
    if ufunc in (np.exp, np.exp2):
        return True
    if ufunc is np.maximum:
        return any(map(_positive, inputs)) or all(map(_nonnegative, inputs))
    if ufunc in (np.absolute, np.square, np.sqrt, np.positive):
        return inputs[0].nonnegative
    if ufunc in _KEEPS_SIGN:
        return all(map(_nonnegative, inputs))
    return False


def _positive(x: Any) -> bool:
    return isinstance(x, (int, float)) and x > 0


def _nonnegative(x: Any) -> bool:
    return getattr(x, "nonnegative", False) or _positive(x)
