"""Python's built-in functions on lanes."""

import functools
import math
from typing import Any

import numpy as np

from ..proof.python_tables import FUNCTIONS
from ..work import Bail
from .arithmetic import arithmetic
from .array_rules import as_python, made_array
from .gather import by_item
from .lane import Lane, Objects, lanes_in, no_rule, own_values

HOLDERS = (list, tuple, zip, enumerate, reversed, iter, dict)  # these only arrange their arguments


def _is_number(x: Any) -> bool:
    return type(x) is Lane and x.kind != "array"


def _converted(kind: str, x: Any) -> Any:
    """Apply `float`, `int` or `bool` to a number where this does not change the value."""
    if not _is_number(x) or x.data.dtype.kind not in {"float": "fiub", "int": "iu", "bool": "b"}[kind]:
        return NotImplemented
    if x.kind == kind:
        return x
    return Lane(np.asarray(x.data, np.float64), "float") if kind == "float" else as_python(x)


def _len(x: Any) -> Any:
    if type(x) is Lane:
        return NotImplemented if _is_number(x) else x.data.shape[1]
    lengths = list(map(len, own_values(x, 1))) if type(x) is Objects else [len(x)]
    return lengths[0] if len(set(lengths)) == 1 else Lane(np.array(lengths), "int")


def _type(x: Any) -> type:
    if type(x) is Objects:
        return type(own_values(x, 1)[0])  # all items have one type, which the guards check
    return x.stands_for if type(x) is Lane else type(x)


def _same_as(ufunc: np.ufunc, x: Any) -> Any:
    """Apply a `math` function that rounds as NumPy does. Raises `Bail` where `math` would raise."""
    if type(x) is not Lane or x.kind not in ("float", "np") or x.data.dtype != np.float64:
        return NotImplemented
    out = ufunc(x.data)
    if not np.isfinite(out).all():
        raise Bail("a function of math out of its domain")
    return Lane(out, "float")


def _as_np(kind: Any, x: Any) -> Any:
    if not _is_number(x):
        raise Bail("conversion of an array to a NumPy scalar")
    return Lane(x.data.astype(kind), "np")


RULES: dict[Any, Any] = {
    **{kind: functools.partial(_converted, kind.__name__) for kind in (float, int, bool)},
    len: _len, type: _type, abs: lambda x: arithmetic(np.absolute, (x,)),
    isinstance: lambda x, kinds: issubclass(_type(x), kinds),
    **{kind: functools.partial(_as_np, kind) for kind in (np.float64, np.float32)}, np.array: made_array,
    np.asarray: lambda x: x if type(x) is Lane else made_array(x),
    math.sqrt: functools.partial(_same_as, np.sqrt), math.fabs: functools.partial(_same_as, np.fabs),
}  # fmt: skip


def builtin_call(function: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Call a function of Python or `math`, or a type, on lanes: by its rule, or item by item.

    Raises `Bail`.
    """
    if function in RULES:
        try:
            found = RULES[function](*args, **options)
        except TypeError as error:
            raise Bail(f"{function.__name__}: {error}") from None
        if found is not NotImplemented:
            return found
    if function in HOLDERS or (isinstance(function, type) and issubclass(function, BaseException)):
        return function(*args, **options)
    if function in FUNCTIONS and lanes_in(args):
        return by_item(function, args, **options)
    raise Bail(no_rule(function))
