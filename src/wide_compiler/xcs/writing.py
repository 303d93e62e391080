"""Options of a function that would make it write into an argument, or give it back."""

import functools
import inspect
from typing import Any

import numpy as np

from .values import Plain, Value

# What these must be for a call that only computes and gives something of its own, if they are given at all.
HARMLESS: dict[str, Any] = {
    "out": None, "overwrite_input": False, "inplace": False, "copy": True, "like": None, "dropout_p": 0.0,
    "mean": None,
}  # fmt: skip

# Where a version of NumPy gives no signature: so many positional arguments come before `out` or `copy`.
_POSITIONAL = {
    "sum": 2, "prod": 2, "mean": 2, "std": 2, "var": 2, "max": 1, "min": 1, "argmax": 1, "argmin": 1,
    "any": 1, "all": 1, "cumsum": 2, "cumprod": 2, "dot": 1, "astype": 1, "copy": 1, "flatten": 1, "round": 1,
    "clip": 2, "argsort": 2, "trace": 4, "take": 2, "repeat": 2, "searchsorted": 3, "reshape": 8, "ravel": 1,
    "transpose": 8, "swapaxes": 2, "squeeze": 1, "view": 1, "item": 8, "vdot": 2, "inner": 2, "where": 3,
    "concatenate": 2, "arange": 4, "zeros": 2, "empty": 2, "array": 2, "asarray": 2, "bincount": 3,
    "einsum": 8, "interp": 3, "correlate": 2, "empty_like": 2,
}  # fmt: skip


@functools.cache
def _parameters(function: Any) -> list[str] | None:
    """Names of what may be given by position; None if nobody says."""
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
        if len(args) > _POSITIONAL.get(name, len(args) if not _numpy(function) else 1):
            return "by position"
        names = []
    given = dict(zip(names, args, strict=False)) | keywords
    for option, harmless in HARMLESS.items():
        value = given.get(option)
        if value is not None and not (value.is_constant and value.obj == harmless):
            return option
    return None


def _numpy(function: Any) -> bool:
    return isinstance(function, np.ufunc) or (getattr(function, "__module__", "") or "").startswith("numpy")


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
