"""Lanes to values: what the body gave for all items at once, handed out one by one."""

import math
from typing import Any

import numpy as np

from ..work import Bail
from .lane_operators import Lane

BLOCK_BYTES = 2**23  # keeping one row keeps its block, which is no larger but where one row is


class Handout:
    """The results of one call of a site with `n` items, run in parts.

    Rows lie in blocks, each row in a place of its own. Where all rows lie there in the order of the items,
    the next site takes `blocks` as they are.
    """

    def __init__(self, n: int, exact: bool):
        self.n = n
        self.exact = exact
        self.placed = 0
        self.rows_at_once = 0  # what a block holds, where that was less than came at once
        self._blocks: list[np.ndarray] = []
        self._used = 0  # of the last block

    @property
    def blocks(self) -> list[np.ndarray]:
        return [*self._blocks[:-1], self._blocks[-1][: self._used]] if self.placed == self.n else []

    def values(self, value: Any, lanes: int, in_order: bool, given: list[Any] | None = None) -> list[Any]:
        """One value per lane, for the next lanes of the call or, not `in_order`, for some of them. What was
        `given` for the same lanes before must not come again."""
        given = [] if given is None else given
        if type(value) is not Lane:
            return self._apart(value, lanes, given)
        if in_order and value.kind == "array":
            return self._place(self._fresh(value))
        return self._of_lane(value, given)

    def _place(self, data: np.ndarray) -> list[np.ndarray]:
        """The rows in their blocks; all of a call together are one where they fit."""
        if len(data) == self.n and data.nbytes <= BLOCK_BYTES:
            self._blocks, self._used, self.placed = [np.ascontiguousarray(data)], self.n, self.n
            return list(self._blocks[0])
        rows: list[np.ndarray] = []
        pieces = _pieces(data)
        if len(pieces) > 1:
            self.rows_at_once = len(pieces[0])
        for piece in pieces:
            place = self.room(len(piece), data.shape[1:], data.dtype)
            place[...] = piece
            rows.extend(place)
        return rows

    def room(self, rows: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Where the next rows go. Parts of a call share blocks, so that the next site finds few of them."""
        last = self._blocks[-1] if self._blocks else None
        fits = last is not None and (last.dtype, last.shape[1:]) == (dtype, shape)
        if last is None or not fits or len(last) - self._used < rows:
            if last is not None:
                self._blocks[-1] = last[: self._used]
            count = min(max(rows_of_a_block(shape, dtype), rows), self.n - self.placed)
            last = np.empty((count, *shape), dtype)
            self._blocks.append(last)
            self._used = 0
        place = last[self._used : self._used + rows]
        self._used += rows
        self.placed += rows
        return place

    def _apart(self, value: Any, lanes: int, given: list[Any]) -> list[Any]:
        kind = type(value)
        if kind is Lane:
            return self._of_lane(value, given)
        if kind is tuple:
            parts = [self._apart(v, lanes, given) for v in value]
            return list(zip(*parts, strict=True)) if value else [()] * lanes
        if kind in (list, dict) and not _holds_lane(value):
            raise Bail("a result that may be one shared object")
        if kind in (list, dict):
            if any(value is other for other in given):
                raise Bail("a result that holds one object twice")
            given.append(value)
        if kind is list:
            return [list(row) for row in zip(*[self._apart(v, lanes, given) for v in value], strict=True)]
        if kind is dict and all(type(k) in (str, int) for k in value):
            columns = [self._apart(v, lanes, given) for v in value.values()]
            return [dict(zip(value, row, strict=True)) for row in zip(*columns, strict=True)]
        if value is None or kind in (bool, int, float, str, bytes, complex):
            return [value] * lanes
        raise Bail(f"a result of type {kind.__name__}")

    def _of_lane(self, value: Lane, given: list[Any]) -> list[Any]:
        data = self._fresh(value)
        if value.kind in ("float", "int", "bool"):
            return data.tolist()
        if value.kind == "array":
            if any(type(other) is np.ndarray and np.may_share_memory(data, other) for other in given):
                raise Bail("two parts of a result that share memory")
            given.append(data)
            pieces = _pieces(data)
            cut = len(pieces) > 1
            return [row for p in pieces for row in (p.copy() if cut else np.ascontiguousarray(p))]
        return list(data)

    def _fresh(self, value: Lane) -> np.ndarray:
        if not value.fresh:
            raise Bail("a result that shares memory with its item")
        if self.exact and value.data.dtype.kind in "fc":
            raise Bail("floating point numbers, with exact=True")
        if value.data.ndim > 1 and len(value.data) and not value.data[0].flags.c_contiguous:
            raise Bail("a result that does not lie in rows")
        return value.data


def rows_of_a_block(shape: tuple[int, ...], dtype: np.dtype) -> int:
    return max(BLOCK_BYTES // max(dtype.itemsize * math.prod(shape), 1), 1)


def _pieces(data: np.ndarray) -> list[np.ndarray]:
    """Rows, in as many as a block holds."""
    size = rows_of_a_block(data.shape[1:], data.dtype)
    return [data[i : i + size] for i in range(0, len(data), size)]


def _holds_lane(value: Any) -> bool:
    """A container with a lane in it was made by the body just now; any other may be anybody's."""
    inside = value.values() if type(value) is dict else value if type(value) in (list, tuple) else ()
    return any(type(v) is Lane or _holds_lane(v) for v in inside)
