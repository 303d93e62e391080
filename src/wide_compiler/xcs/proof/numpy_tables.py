"""Whitelists for NumPy: pure functions and methods, and the options that would make them write."""

import functools
import inspect
from typing import Any

import numpy as np
import torch.nn.functional as F

from .kinds import Arrayish, DataType, Number, Plain
from .values import Value, owned, sequence

_NEW = """sum prod mean std var median max min amax amin ptp argmax argmin any all cumsum cumprod sort
 argsort dot vdot inner outer matmul tensordot kron cross clip where concatenate stack vstack hstack zeros
 ones full empty zeros_like ones_like full_like empty_like arange linspace eye identity array copy round
 around abs average percentile quantile count_nonzero isclose searchsorted interp convolve trace tile
 repeat roll pad bincount unique tril triu nansum gradient polyval argwhere flatnonzero logspace geomspace
 correlate take compress take_along_axis digitize column_stack delete append insert"""
# `nanmean`, `nanmax` and similar functions are left out because they issue Python warnings at each call.
_VIEWS = """reshape ravel transpose swapaxes squeeze atleast_1d atleast_2d asarray expand_dims moveaxis flip
 fliplr flipud real imag diag einsum diff meshgrid histogram nan_to_num"""
_LINALG = "norm det inv solve pinv cholesky eigvalsh matrix_rank"
_FFT = "fft ifft rfft irfft fftfreq rfftfreq"
NUMPY_FUNCTIONS: dict[Any, Any] = {
    **{getattr(np, name): "new" for name in _NEW.split()},
    **{getattr(np, name): "view" for name in _VIEWS.split()},
    **{getattr(np.linalg, name): "new" for name in _LINALG.split()},
    **{getattr(np.fft, name): "new" for name in _FFT.split()},
    np.linalg.matrix_power: "view",  # the first power is the matrix itself
    np.allclose: bool,
    np.array_equal: bool,
}
NUMPY_TYPES = (np.float64, np.float32, np.float16, np.int64, np.int32, np.int16, np.int8, np.uint8, np.bool_)
# Excludes results of `np.frompyfunc`.
UFUNCS = frozenset(f for f in vars(np).values() if isinstance(f, np.ufunc))
_ARRAY_NEW = """sum prod mean std var max min argmax argmin any all cumsum cumprod dot astype copy flatten
 round clip argsort trace take repeat ptp nonzero searchsorted"""
_ARRAY_VIEWS = "reshape ravel transpose swapaxes squeeze view conj conjugate"
ARRAY_METHODS: dict[str, Any] = {
    **dict.fromkeys(_ARRAY_NEW.split(), "new"),
    **dict.fromkeys(_ARRAY_VIEWS.split(), "view"),
    "tolist": "list",
    "item": Number,
    "tobytes": bytes,
    "is_integer": bool,
}


def numpy_result(kind: Any, make: Any, given: list[Value]) -> Value:
    """Return the result of a NumPy function or method.

    Args:
        kind: 'new', 'view', 'list', or the type of the result.
        make: makes a new container.
        given: the arguments that a view may share memory with.
    """
    if kind == "new":
        return Value(Arrayish, fresh=True)
    if kind == "view":  # may be the argument itself, or an array inside it
        return Value(Arrayish, fresh=all(map(owned, given)))
    return make(list, Value(Number)) if kind == "list" else Value(kind)


SHAPE = sequence(Value(int))
ARRAY_ATTRIBUTES = {
    "shape": SHAPE, "dtype": Value(DataType), **dict.fromkeys(("ndim", "size", "nbytes"), Value(int)),
    **dict.fromkeys(("T", "real", "imag"), lambda held: Value(Arrayish, fresh=held.fresh)),
}  # fmt: skip


# Values of options with which a call is pure and returns a new object.
HARMLESS: dict[str, Any] = {
    "out": None, "overwrite_input": False, "inplace": False, "copy": True, "like": None, "dropout_p": 0.0,
}  # fmt: skip
# For functions without a signature in some versions of NumPy: the number of arguments, including the array,
# before `out` or `copy`. Functions of PyTorch take `out` by keyword only.
_POSITIONAL = {
    "sum": 3, "prod": 3, "mean": 3, "std": 3, "var": 3, "max": 2, "min": 2, "argmax": 2, "argmin": 2,
    "any": 2, "all": 2, "cumsum": 3, "cumprod": 3, "dot": 2, "astype": 2, "round": 2, "clip": 3,
    "argsort": 3, "trace": 5, "take": 3, "repeat": 3, "searchsorted": 4, "reshape": 8, "transpose": 8,
    "swapaxes": 3, "squeeze": 2, "ravel": 2, "view": 2, "item": 8, "flatten": 2, "vdot": 2, "inner": 2,
    "where": 3, "concatenate": 2, "arange": 4, "zeros": 2, "empty": 2, "array": 2, "asarray": 2,
    "bincount": 3, "interp": 3, "correlate": 2, "empty_like": 2,
}  # fmt: skip
_ATTENTION = ["query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale"]


@functools.cache
def _parameters(function: Any) -> list[str] | None:
    """Return the names of positional parameters; None if there is no signature."""
    if function is F.scaled_dot_product_attention:
        return _ATTENTION
    try:
        found = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):
        return None
    return [p.name for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def risky_option(function: Any, name: str, args: list[Value], keywords: dict[str, Value]) -> str | None:
    """Return an option with which a call may write to or return its argument; or None."""
    names = _parameters(function)
    if names is None and _of_numpy(function) and len(args) > _POSITIONAL.get(name, 1):
        return "by position"
    given = dict(zip(names or (), args, strict=False)) | keywords
    for option, harmless in HARMLESS.items():
        value = given.get(option)
        known = value is not None and value.is_constant and type(value.obj) is type(harmless)
        if value is not None and not (known and value.obj == harmless):
            return option
    return None


def _of_numpy(function: Any) -> bool:
    owner = getattr(function, "__objclass__", function)
    return (getattr(owner, "__module__", None) or "numpy").split(".")[0] == "numpy"


def may_hold_objects(values: list[Value]) -> bool:
    """Return whether one of these may be an object dtype, as in `np.array(x, "O")`."""
    texts = [v for v in values if v.type is str]
    return any(v.type in (Plain, bytes) for v in values) or not all(
        v.is_constant and "O" not in v.obj and "obj" not in v.obj for v in texts
    )
