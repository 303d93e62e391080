"""Indices: of lanes, and by lanes."""

import operator
from typing import Any

import numpy as np

from ..proof.kinds import CONTAINERS
from .arithmetic import SAFE_INT
from .gather import by_item
from .lane import COMPUTING, Lane, Objects, Trace, bail, computed, settled

_PLAIN = (int, slice, type(None), type(Ellipsis))


def item_at(value: Any, index: Any, trace: Trace) -> Any:
    """`value[index]`, where either may be a lane or have one in it."""
    parts = index if type(index) is tuple else (index,)
    by_lanes = any(map(_of_lanes, parts))
    if type(value) is Lane:
        if not by_lanes:
            return of_lane(value, parts)
        return _lane_by_lane(value, parts, trace)
    if not by_lanes:
        return value[index]
    if type(value) is np.ndarray and value.dtype.char in COMPUTING:
        return _shared_by_lanes(value, parts, trace)
    if type(value) in CONTAINERS and type(index) in (Lane, Objects):
        return by_item(operator.getitem, (value, index), trace)
    raise bail(f"an index of a {type(value).__name__} that differs from item to item", trace)


def _of_lanes(part: Any) -> bool:
    if type(part) is slice:
        return any(type(end) is Lane for end in (part.start, part.stop, part.step))
    return type(part) is Lane or type(part) is Objects


def _checked(x: Lane, parts: tuple[Any, ...]) -> tuple[Any, ...]:
    """The index with the lane axis in front. What it does must not depend on numbers."""
    if x.kind != "array" or not all(type(p) in _PLAIN for p in parts):
        raise x.stop("an index that is not plain")
    for p in parts:
        if type(p) is slice and not all(type(s) in (int, type(None)) for s in (p.start, p.stop, p.step)):
            raise x.stop("a slice that is not plain")
    return (slice(None), *parts)


def of_lane(x: Lane, parts: tuple[Any, ...]) -> Lane:
    """By what all items share: a view, or a copy of some numbers."""
    if len(parts) == 1 and type(parts[0]) in (list, np.ndarray) and x.kind == "array":
        chosen = np.asarray(parts[0])
        if chosen.ndim != 1 or chosen.dtype.kind != "i" or not chosen.size:
            raise x.stop("an index that is not plain")
        return computed(lambda d: np.take(d, chosen, axis=1), (x,), "array", x.trace)
    inside = _checked(x, parts)
    if x.data[inside].ndim == 1:
        if Ellipsis in parts:
            raise x.stop("an index that gives an array without dimensions")
        return computed(lambda d: d[inside].copy(), (x,), "np", x.trace)
    return computed(operator.itemgetter(inside), (x,), "array", x.trace, x.fresh)


def _integers(x: Any) -> bool:
    return type(x) is Lane and x.data.dtype.kind in "iu" and (x.kind != "array" or x.rank == 1)


def _lane_by_lane(x: Lane, parts: tuple[Any, ...], trace: Trace) -> Lane:
    index = parts[0]
    if len(parts) != 1 or x.kind != "array" or not _integers(index) or (index.rank and x.rank != 1):
        raise bail("an array of each item, by an index of each item that is no number", trace)
    if index.rank:
        return computed(lambda d, i: np.take_along_axis(d, i, 1), (x, index), "array", trace)
    if x.rank > 1:
        raise bail("a row of each item that differs from item to item", trace)
    return computed(lambda d, i: d[np.arange(len(d)), i], (x, index), "np", trace)


def _shared_by_lanes(shared: np.ndarray, parts: tuple[Any, ...], trace: Trace) -> Lane:
    """An array of all items: numbers of it by indices, or parts of one size by slices."""
    if len(parts) == 1 and _integers(parts[0]):
        index = settled(parts[0])
        copies = index.kind == "array" or shared.ndim == 1
        if not copies and not shared.flags.c_contiguous:
            raise bail("rows of an array that does not lie in rows", trace)
        return computed(lambda i: np.take(shared, i, axis=0), (index,), None, trace, copies)
    if len(parts) > shared.ndim:
        raise bail("too many indices", trace)
    places: list[np.ndarray] = []  # along each axis, [n, size] or [n]
    sizes: list[int | None] = []
    for part, size in zip(parts, shared.shape, strict=False):
        place = _places(part, size, trace)
        places.append(place)
        sizes.append(place.shape[1] if place.ndim == 2 else None)
    rank = sum(size is not None for size in sizes)
    axis, grids = 0, []
    for place in places:
        axis += place.ndim - 1
        shape = [trace.n, *[1] * rank]
        if place.ndim == 2:
            shape[axis] = place.shape[1]
        grids.append(place.reshape(shape))
    data = shared[tuple(grids)]
    if data.ndim == 1:
        return Lane(data, "np", trace)
    sample = shared[tuple(slice(0, size) if size is not None else 0 for size in sizes)]
    if not sample.flags.c_contiguous:  # then neither may the parts lie in rows
        apart = np.empty((*data.shape[:-1], data.shape[-1] + 1), data.dtype)[..., :-1]
        apart[...] = data
        data = apart
    return Lane(data, "array", trace, fresh=False)


def _places(part: Any, size: int, trace: Trace) -> np.ndarray:
    """Where the numbers of each item lie along one axis."""
    if type(part) is slice:
        start, stop = (_number(end, default, trace) for end, default in ((part.start, 0), (part.stop, size)))
        lengths = np.unique(stop - start)
        if (
            part.step is not None
            or len(lengths) != 1
            or start.min() < 0
            or stop.max() > size
            or lengths[0] < 1
        ):
            raise bail("slices of different sizes, in steps, or beyond the array", trace)
        return start[:, None] + np.arange(lengths[0])
    place = _number(part, 0, trace)
    if place.min() < 0 or place.max() >= size:
        raise bail("an index from the end, or out of range", trace)
    return place


def _number(end: Any, default: int, trace: Trace) -> np.ndarray:
    if type(end) is Lane and end.kind == "int":
        return end.data
    if type(end) is int or end is None:
        return np.full(trace.n, default if end is None else min(end, SAFE_INT), np.int64)
    raise bail("an index that is not a plain number", trace)


def set_item(x: Lane, index: Any, value: Any) -> None:
    where = _checked(x, index if type(index) is tuple else (index,))
    if not x.fresh:
        raise x.stop("an array changed in place")
    target = x.data[where]
    if type(value) is Lane:
        if value.data.dtype != x.data.dtype or value.data.shape != target.shape:
            raise x.stop("storing something of another type or shape")
    elif type(value) not in (int, float) or x.data.dtype.kind != "f":
        raise x.stop("storing something of another type")
    x.trace.wrote(type(value) is Lane and value.rounded)
    x.data[where] = value.data if type(value) is Lane else value
