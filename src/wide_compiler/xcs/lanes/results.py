"""Split the result of a body over lanes into one value per item."""

import math
from typing import Any

import numpy as np

from ..text.site_text import SiteText
from ..work import Bail
from .lane import PYTHON, Lane, Objects, lanes_in, own_values

BLOCK_BYTES = 2**23  # maximum size of a block of rows, unless one row is larger
SHARED = (type(None), bool, int, float, str, bytes, complex)


def apart(value: Any, lanes: int, given: list[Any]) -> list[Any]:
    """Return one value per lane.

    Args:
        lanes: the number of lanes.
        given: results for the same lanes so far. Raises `Bail` if one of them occurs again.
    """
    kind = type(value)
    if kind is Lane:
        return _of_lane(value, given)
    if kind is Objects:
        return own_values(value, lanes)
    if kind is tuple:
        parts = [apart(v, lanes, given) for v in value]
        return list(zip(*parts, strict=True)) if value else [()] * lanes
    if kind in (list, dict):
        if not lanes_in(value):
            raise Bail("a result that may be one object for all items")
        if any(value is other for other in given):
            raise Bail("a result contains one object twice")
        given.append(value)
    if kind is list:
        return [list(row) for row in zip(*[apart(v, lanes, given) for v in value], strict=True)]
    if kind is dict and all(type(k) in (str, int) for k in value):
        columns = [apart(v, lanes, given) for v in value.values()]
        return [dict(zip(value, row, strict=True)) for row in zip(*columns, strict=True)]
    if kind in SHARED:
        return [value] * lanes
    raise Bail(f"a result of type {kind.__name__}")


def _of_lane(value: Lane, given: list[Any]) -> list[Any]:
    if value.origin is not None:
        return list(value.origin)  # the items themselves
    data = _own(value)
    if value.kind in PYTHON:
        return data.tolist()
    if value.kind == "array":
        if any(type(other) is np.ndarray and np.may_share_memory(data, other) for other in given):
            raise Bail("two parts of a result share memory")
        given.append(data)
        # In pieces that do not overlap, since keeping a row keeps its whole piece alive.
        size = max(BLOCK_BYTES // max(data.dtype.itemsize * math.prod(data.shape[1:]), 1), 1)
        if len(data) <= size:
            return list(np.ascontiguousarray(data))
        return [row for i in range(0, len(data), size) for row in data[i : i + size].copy()]
    return list(data)


def _own(value: Lane) -> np.ndarray:
    """Return the data of a lane. Raises `Bail` unless it has its own memory and is contiguous per item."""
    if not value.fresh:
        raise Bail("a result shares memory with an item")
    if not value.in_rows:
        raise Bail("a result is not contiguous")
    return value.data


def check_keys(text: SiteText, result: Any, events: bool = False) -> None:
    """Raise `Bail` if keys, set members or compared values are nan, which Python finds by identity."""
    if text.kind == "set" or text.consumer in ("set", "dict", "max", "min", "sorted"):
        _check(result)
    elif text.kind == "dict":
        _check(result[0])
    elif text.kind == "loop":
        for index, value in result if events else [(0, result)]:
            kind = text.sinks[index].kind
            if kind in ("setitem", "update"):
                _check(value[1])
            elif kind in ("add", "carried"):
                _check(value)


def _check(value: Any) -> None:
    for part in value if type(value) in (tuple, list) else ():
        _check(part)
    if type(value) is Lane and value.data.dtype.kind == "f" and np.isnan(value.data).any():
        raise Bail("nan as a dict key, set member or compared value, which Python finds by identity")
