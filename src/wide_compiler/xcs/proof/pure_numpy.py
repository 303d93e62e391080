"""Whitelists for NumPy: functions and methods that only compute."""

from typing import Any

import numpy as np

from .kinds import Arrayish, Number
from .values import Value, list_of

_VIEWS = [
    "reshape", "ravel", "transpose", "swapaxes", "squeeze", "atleast_1d", "atleast_2d", "asarray",
    "expand_dims", "moveaxis", "flip", "fliplr", "flipud", "real", "imag", "diag", "einsum", "diff",
    "meshgrid", "histogram", "nan_to_num",
]  # fmt: skip
_NEW = [
    "sum", "prod", "mean", "std", "var", "median", "max", "min", "amax", "amin", "ptp", "argmax", "argmin",
    "any", "all", "cumsum", "cumprod", "sort", "argsort", "dot", "vdot", "inner", "outer", "matmul",
    "tensordot", "kron", "cross", "clip", "where", "concatenate", "stack", "vstack", "hstack",
    "zeros", "ones", "full", "empty", "zeros_like", "ones_like", "full_like", "empty_like", "arange",
    "linspace", "eye", "identity", "array", "copy", "round", "around",
    "abs", "average", "percentile", "quantile", "count_nonzero", "isclose", "searchsorted", "interp",
    "convolve", "trace", "tile", "repeat", "roll", "pad", "bincount", "unique", "tril", "triu",
    "nansum", "gradient", "polyval", "argwhere",
    "flatnonzero", "logspace", "geomspace", "correlate", "take", "compress", "take_along_axis", "digitize",
    "column_stack", "delete", "append", "insert",
]  # fmt: skip
# Not among them: `nanmean`, `nanmax` and the like, which warn by Python's own means, at each call.
_LINALG = ["norm", "det", "inv", "solve", "pinv", "cholesky", "eigvalsh", "matrix_rank"]
_FFT = ["fft", "ifft", "rfft", "irfft", "fft2", "ifft2", "fftfreq", "rfftfreq"]

NUMPY_FUNCTIONS: dict[Any, str] = {}
for _name in _NEW:
    NUMPY_FUNCTIONS[getattr(np, _name)] = "new"
for _name in _VIEWS:
    NUMPY_FUNCTIONS[getattr(np, _name)] = "view"
for _name in _LINALG:
    NUMPY_FUNCTIONS[getattr(np.linalg, _name)] = "new"
for _name in _FFT:
    NUMPY_FUNCTIONS[getattr(np.fft, _name)] = "new"
NUMPY_FUNCTIONS[np.linalg.matrix_power] = "view"  # the first power is the matrix itself
NUMPY_FUNCTIONS[np.allclose] = NUMPY_FUNCTIONS[np.array_equal] = "bool"
NUMPY_TYPES = (np.float64, np.float32, np.float16, np.int64, np.int32, np.int16, np.int8, np.uint8, np.bool_)

# NumPy's own: `np.frompyfunc` makes one of any function.
UFUNCS = frozenset(f for f in vars(np).values() if isinstance(f, np.ufunc))

_ARRAY_NEW = [
    "sum", "prod", "mean", "std", "var", "max", "min", "argmax", "argmin", "any", "all", "cumsum",
    "cumprod", "dot", "astype", "copy", "flatten", "round", "clip", "argsort", "trace",
    "take", "repeat", "ptp", "nonzero", "searchsorted",
]  # fmt: skip
_ARRAY_VIEWS = ["reshape", "ravel", "transpose", "swapaxes", "squeeze", "view", "conj", "conjugate"]
ARRAY_METHODS: dict[str, Any] = {
    **dict.fromkeys(_ARRAY_NEW, "new"),
    **dict.fromkeys(_ARRAY_VIEWS, "view"),
    "tolist": "list",
    "item": Number,
    "tobytes": bytes,
    "is_integer": bool,
}
ARRAY_ATTRIBUTES = {"T": "view", "real": "view", "imag": "view", "ndim": int, "size": int, "nbytes": int}


def numpy_result(kind: Any, args: list[Value], receiver: Value | None = None) -> Value:
    """What a NumPy function or method of that kind returns."""
    if kind == "new":
        return Value(Arrayish, fresh=True)
    if kind == "view":  # or the very array; of any of the arguments, or of what they hold
        given = [receiver] if receiver is not None else args
        return Value(Arrayish, fresh=all(_owned(v) for v in given))
    if kind == "list":
        return list_of(Value(Number))
    return Value(bool if kind == "bool" else kind)


def _owned(value: Value) -> bool:
    """Nobody else's array is in it."""
    if value.is_array or value.is_tensor:
        return value.fresh
    if value.is_safe:
        return True
    return all(_owned(v) for v in value.elements())


def shape_value() -> Value:
    return list_of(Value(int), tuple)
