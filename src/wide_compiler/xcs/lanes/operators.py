"""Indexing of lanes, and by lanes. Importing this adds operators and the protocols of NumPy to `Lane`."""

import operator
from typing import Any

import numpy as np

from ..proof.kinds import CONTAINERS
from ..work import Bail
from .arithmetic import COMPARISONS, OPERATORS, apply_ufunc, arithmetic
from .array_rules import apply_function, attribute
from .gather import NOT_CONTIGUOUS, by_item
from .lane import COMPUTING, Lane, Objects, computed

_ENDS = (int, type(None))


def item_at(value: Any, index: Any) -> Any:
    """Return `value[index]`, where either may be or contain a lane."""
    parts = index if type(index) is tuple else (index,)
    n = max(map(_lanes_of, parts), default=0)
    if type(value) is Lane:
        return _lane_by_lane(value, parts) if n else _of_lane(value, parts)
    if not n:
        return value[index]
    if type(value) is np.ndarray and value.dtype.char in COMPUTING:
        return _shared_by_lanes(value, parts, n)
    if type(value) in CONTAINERS and type(index) in (Lane, Objects):
        return by_item(operator.getitem, (value, index))
    raise Bail(f"an index into a {type(value).__name__} that differs between items")


def _lanes_of(part: Any) -> int:
    if type(part) is slice:
        return max(map(_lanes_of, (part.start, part.stop, part.step)))
    return len(part.data) if type(part) is Lane else int(type(part) is Objects)


def _of_lane(x: Lane, parts: tuple[Any, ...]) -> Lane:
    """Index lanes by a shared index: a view, or a copy for a list of integers."""
    if x.kind != "array":
        raise Bail("an index into a number")
    if len(parts) == 1 and type(parts[0]) in (list, np.ndarray):
        chosen = np.asarray(parts[0])
        if chosen.ndim != 1 or chosen.dtype.kind != "i" or not chosen.size:
            raise Bail("an index that is not plain")
        return computed(lambda d: np.take(d, chosen, axis=1), (x,), "array")
    ends = [end for p in parts for end in ((p.start, p.stop, p.step) if type(p) is slice else (p,))]
    if not all(type(end) in _ENDS for end in ends):
        raise Bail("an index that is not plain")
    data = x.data[(slice(None), *parts)]
    return Lane(data.copy(), "np") if data.ndim == 1 else Lane(data, "array", x.fresh)


def _integers(x: Any) -> bool:
    return type(x) is Lane and x.data.dtype.kind in "iu" and (x.kind != "array" or x.rank == 1)


def _lane_by_lane(x: Lane, parts: tuple[Any, ...]) -> Lane:
    """Index a vector per item by integers per item."""
    index = parts[0]
    if len(parts) != 1 or x.kind != "array" or x.rank != 1 or not _integers(index):
        raise Bail("an array per item, indexed by other things than integers per item")
    if index.rank:
        return computed(lambda d, i: np.take_along_axis(d, i, 1), (x, index), "array")
    return computed(lambda d, i: d[np.arange(len(d)), i], (x, index), "np")


def _shared_by_lanes(shared: np.ndarray, parts: tuple[Any, ...], n: int) -> Lane:
    """Index a shared array by lanes of integers, or by slices of one length with lanes as bounds."""
    if len(parts) == 1 and _integers(parts[0]):
        index = parts[0]
        copies = index.kind == "array" or shared.ndim == 1
        if not copies and not shared.flags.c_contiguous:
            raise Bail(NOT_CONTIGUOUS)
        return computed(lambda i: np.take(shared, i, axis=0), (index,), None, copies)
    if len(parts) > shared.ndim:
        raise Bail(f"{len(parts)} indices into an array of shape {shared.shape}")
    # Indices per axis: [n, size] for a slice, [n] for a number.
    places = [_places(part, size, n) for part, size in zip(parts, shared.shape, strict=False)]
    rank = sum(place.ndim - 1 for place in places)
    axis, grids = 0, []
    for place in places:
        axis += place.ndim - 1
        shape = [n, *[1] * rank]
        if place.ndim == 2:
            shape[axis] = place.shape[1]
        grids.append(place.reshape(shape))
    data = shared[tuple(grids)]
    if data.ndim == 1:
        return Lane(data, "np")
    sample = shared[tuple(slice(0, place.shape[1]) if place.ndim == 2 else 0 for place in places)]
    if not sample.flags.c_contiguous:  # the results must have a layout that is not contiguous either
        apart = np.empty((*data.shape[:-1], data.shape[-1] + 1), data.dtype)[..., :-1]
        apart[...] = data
        data = apart
    return Lane(data, "array", fresh=False)


def _places(part: Any, size: int, n: int) -> np.ndarray:
    """Return the positions along one axis: [n, size] for a slice, [n] for a number."""
    if type(part) is slice:
        start, stop = _number(part.start, 0, n), _number(part.stop, size, n)
        lengths = np.unique(stop - start)
        inside = start.min() >= 0 and stop.max() <= size
        if part.step is not None or len(lengths) != 1 or lengths[0] < 1 or not inside:
            raise Bail("slices of different lengths, with steps, or out of range")
        return start[:, None] + np.arange(lengths[0])
    place = _number(part, 0, n)
    if place.min() < 0 or place.max() >= size:
        raise Bail("a negative index, or one out of range")
    return place


def _number(end: Any, default: int, n: int) -> np.ndarray:
    if type(end) is Lane and end.kind == "int":
        return end.data
    if type(end) not in _ENDS or abs(end or 0) > 2**62:
        raise Bail("an index that is not an integer")
    return np.full(n, default if end is None else end, np.int64)


def _getattr(self: Lane, name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return attribute(self, name)


def _array_ufunc(self: Lane, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
    if method != "__call__" or kwargs:
        raise Bail(f"np.{ufunc.__name__}.{method} with options")
    return apply_ufunc(ufunc, inputs)


def _iterate(self: Lane) -> Any:
    if self.kind != "array":
        raise Bail("a loop over a number")
    return iter([item_at(self, i) for i in range(self.data.shape[1])])


def _method(ufunc: np.ufunc, reflected: bool = False) -> Any:
    if ufunc.nin == 1:
        return lambda x: arithmetic(ufunc, (x,))
    return lambda x, y: arithmetic(ufunc, (y, x) if reflected else (x, y))


def _inplace(ufunc: np.ufunc) -> Any:
    """Return the method of `x op= y`: numbers are rebound; arrays are modified, and must be fresh."""

    def operate(self: Lane, other: Any) -> Any:
        result = arithmetic(ufunc, (self, other))
        if self.kind != "array":
            return result
        if not self.fresh or result.data.shape != self.data.shape or result.data.dtype != self.data.dtype:
            raise Bail("an array of the items changed in place, or to another shape or data type")
        self.data[...] = result.data
        return self

    return operate


_NAMED = {rule.__name__.strip("_"): ufunc for ufunc, rule in OPERATORS.items()} | {"matmul": np.matmul}
_ARITHMETIC = {name: ufunc for name, ufunc in _NAMED.items() if ufunc.nin == 2 and ufunc not in COMPARISONS}
_METHODS: dict[str, Any] = {
    **{f"__{name}__": _method(ufunc) for name, ufunc in _NAMED.items()},
    **{f"__r{name}__": _method(ufunc, reflected=True) for name, ufunc in _ARITHMETIC.items()},
    **{f"__i{name}__": _inplace(ufunc) for name, ufunc in _ARITHMETIC.items()},
    "__getattr__": _getattr, "__getitem__": item_at, "__iter__": _iterate, "__array_ufunc__": _array_ufunc,
    "__array_function__": lambda x, run, _, args, options: apply_function(run, args, options),
}  # fmt: skip
for _name, _rule in _METHODS.items():
    setattr(Lane, _name, _rule)
