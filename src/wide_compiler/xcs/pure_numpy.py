"""Whitelists for NumPy: functions and methods that only compute."""

from typing import Any

import numpy as np

from .values import Arrayish, Number, Value, list_of

_VIEWS = [
    "reshape", "ravel", "transpose", "swapaxes", "squeeze", "atleast_1d", "atleast_2d", "asarray",
    "expand_dims", "moveaxis", "flip",
]  # fmt: skip
_NEW = [
    "sum", "prod", "mean", "std", "var", "median", "max", "min", "amax", "amin", "ptp", "argmax", "argmin",
    "any", "all", "cumsum", "cumprod", "sort", "argsort", "dot", "vdot", "inner", "outer", "matmul",
    "einsum", "tensordot", "kron", "cross", "clip", "where", "concatenate", "stack", "vstack", "hstack",
    "zeros", "ones", "full", "empty", "zeros_like", "ones_like", "full_like", "empty_like", "arange",
    "linspace", "eye", "identity", "array", "copy", "diff", "round", "around", "nan_to_num", "real", "imag",
    "abs", "average", "percentile", "quantile", "count_nonzero", "isclose", "searchsorted", "interp",
    "convolve", "trace", "tile", "repeat", "roll", "pad", "bincount", "histogram", "unique", "tril", "triu",
    "diag", "fliplr", "flipud", "nansum", "nanmean", "nanmax", "nanmin", "gradient", "polyval", "argwhere",
    "flatnonzero", "meshgrid", "logspace", "geomspace", "correlate", "take", "compress", "nanstd",
]  # fmt: skip
_LINALG = ["norm", "det", "inv", "solve", "matrix_power", "pinv"]

NUMPY_FUNCTIONS: dict[Any, str] = {}
for _name in _NEW:
    NUMPY_FUNCTIONS[getattr(np, _name)] = "new"
for _name in _VIEWS:
    NUMPY_FUNCTIONS[getattr(np, _name)] = "view"
for _name in _LINALG:
    NUMPY_FUNCTIONS[getattr(np.linalg, _name)] = "new"
NUMPY_FUNCTIONS[np.allclose] = NUMPY_FUNCTIONS[np.array_equal] = "bool"
NUMPY_TYPES = (np.float64, np.float32, np.float16, np.int64, np.int32, np.int16, np.int8, np.uint8, np.bool_)

_ARRAY_NEW = [
    "sum", "prod", "mean", "std", "var", "max", "min", "argmax", "argmin", "any", "all", "cumsum",
    "cumprod", "dot", "astype", "copy", "flatten", "round", "clip", "argsort", "conj", "conjugate", "trace",
    "take", "repeat", "ptp", "nonzero", "searchsorted",
]  # fmt: skip
_ARRAY_VIEWS = ["reshape", "ravel", "transpose", "swapaxes", "squeeze", "view"]
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
    if kind == "view":
        source = receiver or (args[0] if args else None)
        return Value(Arrayish, fresh=source is not None and source.fresh)
    if kind == "list":
        return list_of(Value(Number))
    return Value(bool if kind == "bool" else kind)


def shape_value() -> Value:
    return list_of(Value(int), tuple)
