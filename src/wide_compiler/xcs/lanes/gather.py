"""Gather items into lanes: a column of n arrays or numbers becomes one array [n, ...]."""

import functools
import itertools
import operator
from collections import deque
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from ..proof.kinds import is_numpy_scalar
from ..work import Bail, Work
from .lane import COMPUTING, NUMBERS, Lane, Objects, lanes_in, own_values

CHUNK_BYTES = 2**19  # chunk size; with intermediate results, about the size of a core's cache
NOT_CONTIGUOUS = "an array is not contiguous, so results of the loop would not be either"


def chunks(work: Work) -> list[tuple[int, int]]:
    """Return (start, stop) of chunks of items that fit into the cache with their results."""
    n = work.items.n
    widest = max((c[0].nbytes for c in work.items.columns if type(c[0]) is np.ndarray), default=8)
    size = min(max(CHUNK_BYTES // max(widest, 1), 256), 16384)
    return [(i, min(i + size, n)) for i in range(0, n, size)]


def gathered(column: Any) -> Any:
    """Return a column as a `Lane` with data [n, ...].

    A column of other objects is returned as the one object that all items share, or as `Objects`.
    """
    if type(column) is np.ndarray:
        _computes(column.dtype)
        if column.ndim == 1:  # iteration creates new scalars, so the lane has no origin
            return Lane(np.array(column), "np")
        if not column[0].flags.c_contiguous:
            raise Bail(NOT_CONTIGUOUS)
        return Lane(np.ascontiguousarray(column), "array", False, column)
    if type(column) is range:
        return Lane(np.arange(column.start, column.stop, column.step, dtype=np.int64), "int")
    kinds = set(map(type, column))
    kind: Any = kinds.pop()
    if not kinds and kind is np.ndarray and column[0].ndim:
        return Lane(stacked(column), "array", False, column)
    if not kinds and kind in NUMBERS:
        name, dtype = NUMBERS[kind]
        try:
            return Lane(np.array(column, dtype=dtype), name, True, column)
        except OverflowError:
            raise Bail("integers that do not fit into 64 bits") from None
    if not kinds and is_numpy_scalar(kind):
        _computes(column[0].dtype)
        return Lane(np.array(column), "np", True, column)
    if all(map(operator.is_, column, itertools.repeat(column[0]))):
        return column[0]
    if kinds:
        raise Bail("items of different types")
    return Objects(column, gathered)


def _computes(dtype: np.dtype) -> None:
    if dtype.char not in COMPUTING:
        raise Bail(f"items of data type {dtype}")


def stacked(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Stack arrays of one shape and dtype to [n, ...] in one copy. Raises `Bail`."""
    first, n = arrays[0], len(arrays)
    _computes(first.dtype)
    if not first.size:
        raise Bail("empty arrays")
    if len(set(map(_strides, arrays))) != 1 or not first.flags.c_contiguous:
        raise Bail(NOT_CONTIGUOUS)
    out = np.empty((n * len(first), *first.shape[1:]), first.dtype)
    try:
        if first.ndim > 1:
            if len(set(map(_char, arrays))) != 1 or len(set(map(len, arrays))) != 1:
                raise ValueError("different data types or lengths")
            np.concatenate(arrays, out=out, casting="no")
        else:
            places, copy = _places(len(first), 1 << (n - 1).bit_length()), cast(Any, operator.setitem)
            # Copying into a memoryview checks dtype and shape, so no separate pass is needed.
            deque(map(copy, itertools.repeat(memoryview(cast(Any, out))), places, arrays), 0)
    except (ValueError, TypeError):
        raise Bail("arrays of different shapes or data types") from None
    return out.reshape(n, *first.shape)


_strides, _char = operator.attrgetter("strides"), operator.attrgetter("dtype.char")


@functools.lru_cache(maxsize=8)
def _places(length: int, n: int) -> list[slice]:
    """Return the slices of n consecutive vectors."""
    return [slice(i, i + length) for i in range(0, n * length, length)]


def by_item(function: Any, args: tuple, fresh: bool = True, **options: Any) -> Any:
    """Call a pure function item by item and gather the results into lanes.

    Args:
        fresh: the results share no memory with the arguments.
    """
    if any(map(lanes_in, options.values())):
        raise Bail("keyword arguments that differ between items")
    run, n = functools.partial(function, **options) if options else function, lanes_in(args)
    return _made(list(map(run, *[own_values(x, n) for x in args])), fresh)


def _made(values: list[Any], fresh: bool) -> Any:
    """Return one value per item as a lane; tuples and lists of values as tuples and lists of lanes."""
    kind: Any = type(values[0])
    sizes = {(type(v), len(v)) for v in values} if kind in (tuple, list) and values[0] else ()
    if len(sizes) == 1:
        return kind([_made(list(part), fresh) for part in zip(*values, strict=True)])
    made = gathered(values)
    if type(made) is not Lane:
        raise Bail(f"a {kind.__name__} as the result for each item")
    made.fresh, made.origin = fresh, None
    return made
