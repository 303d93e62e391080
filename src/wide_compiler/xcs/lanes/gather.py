"""Items to lanes: a column of arrays or numbers becomes one array with a lane axis in front."""

import functools
import itertools
import operator
from collections import deque
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from ..items import Blocks
from ..proof.kinds import is_numpy_scalar
from ..work import Bail, Work
from .lane import COMPUTING
from .lane_operators import Lane

CHUNK_BYTES = 2**19  # with what is made of them, about what a core's own cache holds
FEWEST_ROWS = 64
NUMBERS = {float: ("float", np.float64), int: ("int", np.int64), bool: ("bool", np.bool_)}
Room = dict[str, np.ndarray]


def chunks(work: Work) -> list[tuple[int, int]]:
    """Where to cut: what is gathered, and what is made of it, then stays in the cache until it is used.

    What a site before has made lies gathered already. Where no arrays are made of it, it is taken whole.
    """
    n, first = work.items.n, work.items.columns[0]
    bounds = first.bounds if type(first) is Blocks else [(0, n)]
    alone = work.plan.memory.get("makes no arrays")
    if type(first) is Blocks and alone:
        return bounds
    widest = max((c[0].nbytes for c in work.items.columns if type(c[0]) is np.ndarray), default=8)
    size = min(max((4 if alone else 1) * CHUNK_BYTES // max(widest, 1), 256), 16384)
    fitting = work.plan.memory.get("rows at once", 0)
    if fitting >= FEWEST_ROWS:  # then what is made of them goes into its block without a copy
        size = min(size, fitting)
    return [(i, min(i + size, stop)) for start, stop in bounds for i in range(start, stop, size)]


def gathered(whole: Any, start: int, stop: int, room: Room) -> Lane | Any:
    """A part of a column as one array `[n, ...]`; what is neither array nor number must be one shared
    object."""
    if type(whole) is Blocks:
        return Lane(whole.part(start, stop), "array", None, fresh=False)
    column = whole if (start, stop) == (0, len(whole)) else whole[start:stop]
    if type(column) is np.ndarray:
        _computes(column.dtype)
        if column.ndim > 2 and not column[0].flags.c_contiguous:
            raise Bail(OTHER_ORDER)
        # Sums of rows that lie apart would be added up in another order.
        return Lane(np.ascontiguousarray(column), "array" if column.ndim > 1 else "np", None, fresh=False)
    if type(column) is range:
        return Lane(np.arange(column.start, column.stop, column.step, dtype=np.int64), "int", None)
    kind = type(column[0])
    if kind is np.ndarray:
        return Lane(stacked(column, room), "array", None, fresh=False)
    if kind in NUMBERS:
        name, dtype = NUMBERS[kind]
        try:
            data: np.ndarray = np.array(column, dtype=dtype)
        except OverflowError:
            raise Bail("integers too large for 64 bits") from None
        return Lane(data, name, None)
    if is_numpy_scalar(kind):
        _computes(column[0].dtype)
        return Lane(np.array(column), "np", None)
    if all(map(operator.is_, column, itertools.repeat(column[0]))):
        return column[0]
    raise Bail(f"items of type {kind.__name__} have no lane axis")


def _computes(dtype: np.dtype) -> None:
    if dtype.char not in COMPUTING:
        raise Bail(f"items of type {dtype}")


def stacked(arrays: Sequence[np.ndarray], room: Room) -> np.ndarray:
    """Arrays of one shape and dtype as `[n, ...]`, in one copy, into memory used again. Raises `Bail`."""
    first, n = arrays[0], len(arrays)
    _computes(first.dtype)
    if first.ndim == 0 or not first.size:
        raise Bail("arrays that are empty, or without dimensions")
    shape = (n * len(first), *first.shape[1:])
    out: Any = room.get("room")
    if out is None or out.dtype != first.dtype or out.shape[1:] != shape[1:] or len(out) < shape[0]:
        out = room["room"] = np.empty(shape, first.dtype)
    out = out[: shape[0]]
    try:
        if first.ndim > 1:
            if not first.flags.c_contiguous or len(set(map(_strides, arrays))) != 1:
                raise Bail(OTHER_ORDER)
            if len(set(map(_char, arrays))) != 1:
                raise ValueError("types of the same numbers, but with scalars of their own")
            if len(set(map(len, arrays))) != 1:
                raise ValueError("lengths")
            np.concatenate(arrays, out=out, casting="no")
        else:
            places, copy = _places(len(first), _rounded(n)), cast(Any, operator.setitem)
            # Each copy compares type and shape itself: all checks are in this one pass.
            deque(map(copy, itertools.repeat(memoryview(out)), places, arrays), 0)
    except (ValueError, TypeError):
        raise Bail("arrays of different shapes or types") from None
    return out.reshape(n, *first.shape)


OTHER_ORDER = "arrays that do not lie in rows, as results of them would not"
_strides, _char = operator.attrgetter("strides"), operator.attrgetter("dtype.char")


def _rounded(n: int) -> int:
    return 1 << (n - 1).bit_length()


@functools.lru_cache(maxsize=8)
def _places(length: int, n: int) -> list[slice]:
    """Where the first of n vectors goes, and the second, ..."""
    return [slice(i, i + length) for i in range(0, n * length, length)]
