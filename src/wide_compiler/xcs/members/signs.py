"""Which tensors are never below zero, as far as the operators that made them tell: where a function ends at
zero, a rounded number must not be on the wrong side.

Signs are NONNEGATIVE, or POSITIVE: besides, zero only where the number of one item is zero too.
"""

from collections.abc import Callable, Sequence
from typing import Any

UNKNOWN, NONNEGATIVE, POSITIVE = range(3)

ALWAYS = {"exp", "exp2", "_softmax", "softmax", "sigmoid", "softplus", "erfc", "cosh"}
SIZES = {"abs", "square", "var", "std", "norm", "linalg_vector_norm"}  # of exact numbers POSITIVE
KEEPING = {
    *("view", "_unsafe_view", "reshape", "_reshape_alias", "t", "transpose", "permute", "expand", "select"),
    *("slice", "narrow", "unsqueeze", "squeeze", "split", "split_with_sizes", "chunk", "unbind", "alias"),
    *("detach", "cat", "stack", "clone", "copy", "contiguous", "_to_copy", "to", "index", "index_select"),
    *("gather", "flip", "roll", "repeat", "sum", "mean", "prod", "cumsum", "max", "min", "amax", "amin"),
    *("sqrt", "pow"),
}
OF_TWO = {"add", "mul", "div", "minimum", "copy"}
# What a function needs of its operand where that is rounded; those not named here have other ends than zero.
NEEDED = {"sqrt": NONNEGATIVE, "rsqrt": POSITIVE, "log": POSITIVE, "log2": POSITIVE, "log10": POSITIVE}
ELSEWHERE = {"log1p", "acos", "asin", "acosh", "atanh", "logit", "arccos", "arcsin", "arccosh", "arctanh"}

SignOf = Callable[[Any], int]


def sign_of_result(name: str, args: Sequence[Any], sign: SignOf, rounded: bool) -> int:
    """Of what an operator makes. sign: of an operand; rounded: is one of them?"""
    size = NONNEGATIVE if rounded else POSITIVE
    if name in ALWAYS:
        return POSITIVE
    if name in SIZES or (name == "pow" and _even(args[1])) or (name == "mul" and args[0] is args[1]):
        return size
    if name in ("clamp", "clamp_min", "maximum") and len(args) > 1 and args[1] is not None:
        return max(sign(args[0]), sign(args[1]))
    if name == "relu":
        return max(NONNEGATIVE, sign(args[0]))
    first = args[0] if args else None
    if name in KEEPING and isinstance(first, (list, tuple)):
        return min(map(sign, first), default=UNKNOWN)
    if name in KEEPING:
        return sign(first)
    if name not in OF_TWO:
        return UNKNOWN
    both = sign(first), sign(args[1])
    return max(both) if name == "add" and UNKNOWN not in both else min(both)


def beyond_its_end(name: str, args: Sequence[Any], sign: SignOf) -> bool:
    """May rounding have moved the first operand to where the function gives no number, or another leap?"""
    if name in ELSEWHERE:
        return True
    if name == "pow":
        exponent = args[1]
        whole = isinstance(exponent, (int, float)) and exponent >= 0 and float(exponent).is_integer()
        return not whole and sign(args[0]) < POSITIVE
    return sign(args[0]) < NEEDED.get(name, UNKNOWN)


def sign_of_number(value: Any) -> int:
    if not isinstance(value, (int, float)):
        return UNKNOWN
    return POSITIVE if value > 0 else NONNEGATIVE if value == 0 else UNKNOWN


def _even(exponent: Any) -> bool:
    return isinstance(exponent, (int, float)) and exponent >= 0 and exponent % 2 == 0
