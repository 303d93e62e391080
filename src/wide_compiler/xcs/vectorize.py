"""NumPy lanes at a map site: gather the items, run the body once, hand out the results.

Where lanes disagree about a truth, they are run again in two groups, so that a rare branch costs two runs.
"""

import itertools
import operator
from typing import Any

import numpy as np

from .items import Blocks
from .lane import Diverge, Trace
from .lane_code import Dispatcher, lane_function
from .lane_operators import Lane
from .values import is_numpy_scalar
from .work import Bail, Work

MOST_PATHS = 16
CHUNK_BYTES = 2**20
NUMBERS = {float: ("float", np.float64), int: ("int", np.int64), bool: ("bool", np.bool_)}


def able(work: Work) -> bool:
    """Is any loop variable an array or a number?"""
    for column in work.items.columns:
        kind = type(column[0])
        lanes = kind is np.ndarray or kind in NUMBERS or is_numpy_scalar(kind)
        if lanes and not (work.site.config.exact and _floating(column[0])):
            return True
    return False


def _floating(value: Any) -> bool:
    return type(value) is float or getattr(getattr(value, "dtype", None), "kind", "i") in "fc"


def vectorized(work: Work) -> list[Any]:
    """The values of all items, in order. Raises `Bail`.

    Lanes are run some thousand at a time: what is gathered then stays in the cache until it is used.
    """
    before = np.geterr()
    # What would warn in plain Python must warn there: any such number sends the call to the plain loop.
    strict: Any = {k: "ignore" if how == "ignore" else "raise" for k, how in before.items()}
    values: list[Any] = []
    blocks: list[np.ndarray] = []
    rooms: list[dict[str, np.ndarray]] = [{} for _ in work.items.columns]
    body = _Body(work)
    try:
        with np.errstate(**strict):
            for start, stop in _chunks(work):
                columns = [
                    _gathered(column, start, stop, room)
                    for column, room in zip(work.items.columns, rooms, strict=True)
                ]
                paths = _Paths(work, columns, stop - start, body)
                paths.run(np.arange(stop - start))
                values += paths.values()
                blocks += paths.blocks
    except Bail:
        raise
    except Diverge:
        raise Bail("items take too many different ways") from None
    except Exception as error:
        raise Bail(f"{type(error).__name__}: {error}") from None
    if len(values) == sum(map(len, blocks)) == work.items.n:
        work.site.keep_blocks(values, blocks)
    return values


def _chunks(work: Work) -> list[tuple[int, int]]:
    """Where to cut: as the blocks are cut that a site before has made, else by size."""
    n = work.items.n
    for column in work.items.columns:
        if type(column) is Blocks:
            return column.bounds
    widest = max((c[0].nbytes for c in work.items.columns if type(c[0]) is np.ndarray), default=8)
    size = min(max(CHUNK_BYTES // max(widest, 1), 256), 16384)
    if size >= n:
        return [(0, n)]
    return [(i, min(i + size, n)) for i in range(0, n, size)]


def _gathered(whole: Any, start: int, stop: int, room: dict[str, np.ndarray]) -> Lane | Any:
    """A part of a column as one array `[n, ...]`; what is neither array nor number must be one shared
    object."""
    if type(whole) is Blocks:
        return Lane(whole.block(start), "array", None, fresh=False)
    column = whole[start:stop]
    if type(column) is np.ndarray:
        return Lane(column, "array" if column.ndim > 1 else "np", None, fresh=False)
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
        return Lane(np.array(column), "np", None)
    if all(map(operator.is_, column, itertools.repeat(column[0]))):
        return column[0]
    raise Bail(f"items of type {kind.__name__} have no lane axis")


def stacked(arrays: Any, room: dict[str, np.ndarray]) -> np.ndarray:
    """Arrays of one shape and dtype as `[n, ...]`, in one copy, into memory used again. Raises `Bail`."""
    first, n = arrays[0], len(arrays)
    if first.ndim == 0 or first.dtype.hasobject or not first.size or len(set(map(len, arrays))) != 1:
        raise Bail("arrays of different lengths, empty, or without dimensions")
    shape = (n * len(first), *first.shape[1:])
    out = room.get("room")
    if out is None or out.dtype != first.dtype or out.shape[1:] != shape[1:] or len(out) < shape[0]:
        out = room["room"] = np.empty(shape, first.dtype)
    out = out[: shape[0]]
    try:
        np.concatenate(arrays, out=out, casting="no")  # finds itself what differs
    except (ValueError, TypeError):
        raise Bail("arrays of different shapes or types") from None
    return out.reshape(n, *first.shape)


class _Body:
    """The site's test and body, ready for lanes."""

    def __init__(self, work: Work):
        nodes, cache = work.site.text.bodies, work.plan.lane_code
        self.dispatch = Dispatcher(cache)
        self.test = work.cond and lane_function(work.cond, nodes["cond"], self.dispatch, cache)
        self.body = lane_function(work.body, nodes["body"], self.dispatch, cache)


class _Paths:
    """The body, run for groups of lanes that go the same way."""

    def __init__(self, work: Work, columns: list[Any], n: int, body: _Body):
        self.work = work
        self.body = body
        self.columns = columns
        self.n = n
        self.runs = 0
        self.blocks: list[np.ndarray] = []
        self.ends: list[tuple[np.ndarray, list[Any]]] = []

    def run(self, lanes: np.ndarray) -> None:
        self.runs += 1
        if self.runs > MOST_PATHS:
            raise Bail("items take too many different ways")
        try:
            added = self._once(lanes)
        except Diverge as split:
            self.run(lanes[split.mask])
            self.run(lanes[~split.mask])
            return
        self.ends.append((lanes, added))

    def _once(self, lanes: np.ndarray) -> list[Any]:
        """What each lane adds: a list of one entry per lane, each a list of values; or of plain values."""
        work, trace = self.work, Trace()
        whole = len(lanes) == self.n
        given = [self._part(c, lanes, whole, trace) for c in self.columns]
        self.body.dispatch.trace = trace
        if work.cond is not None and not self._truth(self.body.test(*given), trace):
            return [_Skip() for _ in lanes]
        if work.events:
            noted: list[Any] = []
            self.body.body(noted, *given)
            result: Any = [tuple(event) for event in noted]
        else:
            result = self.body.body(*given)
        if trace.stopped is not None:
            raise trace.stopped  # swallowed by an `except` in the user's text
        self._no_rounded_keys(result)
        if work.events:
            columns = [(index, _handed_out(value, len(lanes), self)) for index, value in result]
            return [[(index, column[i]) for index, column in columns] for i in range(len(lanes))]
        return _handed_out(result, len(lanes), self)

    def _no_rounded_keys(self, result: Any) -> None:
        """What decides about places in a dict or set, or about a truth, must be exact."""
        text = self.work.site.text
        keys: list[Any] = []
        if text.kind in ("set", "generator") and (
            text.kind == "set" or text.eater in ("any", "all", "set", "dict")
        ):
            keys = [result]
        elif text.kind == "dict":
            keys = [result[0]]
        elif text.kind == "loop":
            noted = result if self.work.events else [(0, result)]
            sinks = [(text.sinks[index].kind, value) for index, value in noted]
            keys = [v if kind == "add" else v[1] for kind, v in sinks if kind in ("add", "setitem")]
        if any(_rounded(key) for key in keys):
            raise Bail("keys, members or truths from rounded numbers, or from nan")

    @staticmethod
    def _part(column: Any, lanes: np.ndarray, whole: bool, trace: Trace) -> Any:
        if type(column) is not Lane:
            return column
        data = column.data if whole else column.data[lanes]
        return Lane(data, column.kind, trace, column.fresh, column.approx)

    @staticmethod
    def _truth(value: Any, trace: Trace) -> bool:
        truth = bool(value)
        if trace.stopped is not None:
            raise trace.stopped
        return truth

    def values(self) -> list[Any]:
        """All lanes' values in the order of the items."""
        nested = self.work.cond is not None or self.work.events
        if len(self.ends) == 1:
            added = self.ends[0][1]
            return self._flat(added) if nested else added
        by_lane: list[Any] = [None] * self.n
        for lanes, added in self.ends:
            for i, value in zip(lanes.tolist(), added, strict=True):
                by_lane[i] = value
        return self._flat(by_lane) if nested else by_lane

    def _flat(self, by_lane: list[Any]) -> list[Any]:
        if self.work.events:
            return [event for events in by_lane for event in events]
        return [v for v in by_lane if type(v) is not _Skip]


class _Skip(list):
    """Nothing added."""


def _handed_out(value: Any, n: int, paths: _Paths) -> list[Any]:
    """One value per lane from what the body returned for all."""
    kind = type(value)
    if kind is Lane:
        if not value.fresh:
            raise Bail("a result that shares memory with its item")
        if paths.work.site.config.exact and value.data.dtype.kind in "fc":
            raise Bail("floating point numbers, with exact=True")
        if value.kind in ("float", "int", "bool"):
            return value.data.tolist()
        if value.kind == "array":
            block = np.ascontiguousarray(value.data)
            paths.blocks.append(block)
            return list(block)
        return list(value.data)
    if kind is tuple:
        return list(zip(*[_handed_out(v, n, paths) for v in value], strict=True)) if value else [()] * n
    if kind in (list, dict) and not _holds_lane(value):
        raise Bail("a result that may be one shared object")
    if kind is list:
        return [list(row) for row in zip(*[_handed_out(v, n, paths) for v in value], strict=True)]
    if kind is dict and all(type(k) in (str, int) for k in value):
        columns = [_handed_out(v, n, paths) for v in value.values()]
        return [dict(zip(value, row, strict=True)) for row in zip(*columns, strict=True)]
    if value is None or kind in (bool, int, float, str, bytes, complex):
        return [value] * n
    raise Bail(f"a result of type {kind.__name__}")


def _rounded(value: Any) -> bool:
    if type(value) in (tuple, list):
        return any(_rounded(v) for v in value)
    if type(value) is not Lane:
        return False
    return value.approx or (value.data.dtype.kind == "f" and bool(np.isnan(value.data).any()))


def _holds_lane(value: Any) -> bool:
    """A container with a lane in it was made by the body just now; any other may be anybody's."""
    inside = value.values() if type(value) is dict else value if type(value) in (list, tuple) else ()
    return any(type(v) is Lane or _holds_lane(v) for v in inside)
