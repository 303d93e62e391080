"""Options of a function that would make it write into an argument, or give it back."""

import functools
import inspect
from typing import Any

import numpy as np
import torch.nn.functional as F

from .kinds import Plain
from .values import Value

# What these must be for a call that only computes and gives something of its own, if they are given at all.
HARMLESS: dict[str, Any] = {
    "out": None, "overwrite_input": False, "inplace": False, "copy": True, "like": None, "dropout_p": 0.0,
}  # fmt: skip

# Where a version of NumPy gives no signature: so many arguments, the array among them, come before `out` or
# `copy`. PyTorch's own take `out` by name alone.
_POSITIONAL = {
    "sum": 3, "prod": 3, "mean": 3, "std": 3, "var": 3, "max": 2, "min": 2, "argmax": 2, "argmin": 2,
    "any": 2, "all": 2, "cumsum": 3, "cumprod": 3, "dot": 2, "astype": 2, "round": 2, "clip": 3,
    "argsort": 3, "trace": 5, "take": 3, "repeat": 3, "searchsorted": 4, "reshape": 8, "transpose": 8,
    "swapaxes": 3, "squeeze": 2, "ravel": 2, "view": 2, "item": 8, "flatten": 2, "vdot": 2, "inner": 2,
    "where": 3, "concatenate": 2, "arange": 4, "zeros": 2, "empty": 2, "array": 2, "asarray": 2,
    "bincount": 3, "interp": 3, "correlate": 2, "empty_like": 2,
}  # fmt: skip
_KNOWN = {
    F.scaled_dot_product_attention: ["query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale"],
}


@functools.cache
def _parameters(function: Any) -> list[str] | None:
    """Names of what may be given by position; None if nobody says."""
    if function in _KNOWN:
        return _KNOWN[function]
    try:
        found = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):
        return None
    named = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in found if p.kind in named]


def risky_option(function: Any, name: str, args: list[Value], keywords: dict[str, Value]) -> str | None:
    """The name of an option, given by position or by name, that may make a call write or give back its
    argument."""
    names = _parameters(function)
    if names is None:
        if _of_numpy(function) and len(args) > _POSITIONAL.get(name, 1):
            return "by position"
        names = []
    given = dict(zip(names, args, strict=False)) | keywords
    for option, harmless in HARMLESS.items():
        value = given.get(option)
        if value is not None and not (
            value.is_constant and type(value.obj) is type(harmless) and value.obj == harmless
        ):
            return option
    return None


def _of_numpy(function: Any) -> bool:
    owner = getattr(function, "__objclass__", function)
    return (getattr(owner, "__module__", None) or "numpy").split(".")[0] == "numpy"


def may_hold_objects(values: list[Value]) -> bool:
    """Could one of these be a dtype of arrays that hold objects? `np.array(x, "O")` would hide them."""
    return any(v.type is Plain or (v.type is str and not _plain_text(v)) for v in values)


def _plain_text(value: Value) -> bool:
    if not value.is_constant:
        return False
    try:
        return not np.dtype(value.obj).hasobject
    except (TypeError, ValueError, SyntaxError):
        return True  # no dtype at all, such as the text of an einsum
