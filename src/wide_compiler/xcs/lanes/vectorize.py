"""NumPy lanes at a map site: gather the items, run the body once, hand out the results.

Where lanes disagree about a truth, they are run again in two groups, so that a rare branch costs two runs.
"""

from typing import Any

import numpy as np

from ..noticing import noticing, watched_errors
from ..proof.kinds import is_numpy_scalar
from ..work import Bail, Work
from .gather import NUMBERS, Room, chunks, gathered
from .handout import Handout
from .lane import Diverge, Trace
from .lane_code import Dispatcher, lane_function
from .lane_operators import Lane
from .lane_tape import Played, Tape

MOST_PATHS = 16


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
    """The values of all items, in order. Raises `Bail`."""
    noticed: list[str] = []
    values: list[Any] = []
    rooms: list[Room] = [{} for _ in work.items.columns]
    handout = Handout(work.items.n, work.site.config.exact)
    body = _Body(work)
    tape: PartTape | None = None
    try:
        with noticing(noticed, watched_errors()):
            parts = chunks(work)
            for start, stop in parts:
                columns = [
                    gathered(column, start, stop, room)
                    for column, room in zip(work.items.columns, rooms, strict=True)
                ]
                if tape is not None and tape.fits(columns):
                    part = tape.values(columns, stop - start, handout)
                else:
                    paths = _Paths(work, columns, stop - start, body, handout, taping=len(parts) > 1)
                    paths.run(None)
                    part, tape = paths.values(), paths.tape
                if noticed:
                    raise Bail(f"{noticed[0]} in an item")
                if values:
                    values += part
                else:
                    values = part
    except Bail:
        raise
    except Diverge:
        raise Bail("items take too many different ways") from None
    except Exception as error:
        raise Bail(f"{type(error).__name__}: {error}") from None
    work.plan.memory["makes no arrays"] = body.arrays == 0
    if handout.blocks:
        work.site.keep_blocks(values, handout.blocks)
    return values


class _Body:
    """The site's test and body, ready for lanes."""

    def __init__(self, work: Work):
        nodes, cache = work.site.text.bodies, work.plan.lane_code
        self.dispatch = Dispatcher(cache)
        self.test = work.cond and lane_function(work.cond, nodes["cond"], self.dispatch, cache)
        self.body = lane_function(work.body, nodes["body"], self.dispatch, cache)
        self.arrays = 0  # made on the way


class _Paths:
    """The body, run for groups of lanes that go the same way. A group of all lanes is None."""

    def __init__(self, work: Work, columns: list[Any], n: int, body: _Body, handout: Handout, taping: bool):
        self.work, self.taping = work, taping
        self.body = body
        self.columns = columns
        self.n = n
        self.handout = handout
        self.runs = 0
        self.tape: PartTape | None = None
        self.ends: list[tuple[np.ndarray | None, list[Any]]] = []

    def run(self, lanes: np.ndarray | None) -> None:
        self.runs += 1
        if self.runs > MOST_PATHS:
            raise Bail("items take too many different ways")
        try:
            added = self._once(lanes)
        except Diverge as split:
            every = np.arange(self.n) if lanes is None else lanes
            self.run(every[split.mask])
            self.run(every[~split.mask])
            return
        self.ends.append((lanes, added))

    def _once(self, lanes: np.ndarray | None) -> list[Any]:
        """What each lane adds: a list of one entry per lane, each a list of values; or of plain values."""
        work, trace = self.work, Trace(len(self.columns), self.taping)
        count = self.n if lanes is None else len(lanes)
        given = [self._part(c, lanes, trace, place) for place, c in enumerate(self.columns)]
        self.body.dispatch.trace = trace
        if work.cond is not None and not self._truth(self.body.test(*given), trace):
            return [_Skip() for _ in range(count)]
        if work.events:
            noted: list[Any] = []
            self.body.body(noted, *given)
            result: Any = [tuple(event) for event in noted]
        else:
            result = self.body.body(*given)
        if trace.stopped is not None:
            raise trace.stopped  # swallowed by an `except` in the user's text
        self.body.arrays += trace.arrays
        no_rounded_keys(work, result)
        if self.taping and lanes is None and work.cond is None and not work.events:
            self.tape = PartTape.of(work, trace.tape, self.columns, result)
        hand = self.handout.values
        if work.events:
            before: list[Any] = []
            columns = [(index, hand(value, count, False, before)) for index, value in result]
            return [[(index, column[i]) for index, column in columns] for i in range(count)]
        return hand(result, count, lanes is None)

    @staticmethod
    def _part(column: Any, lanes: np.ndarray | None, trace: Trace, place: int) -> Any:
        if type(column) is not Lane:
            return column
        data = column.data if lanes is None else column.data[lanes]
        part = Lane(data, column.kind, trace, column.fresh, column.approx, taped=True)
        part.place = place
        return part

    @staticmethod
    def _truth(value: Any, trace: Trace) -> bool:
        truth = bool(value)
        if trace.stopped is not None:
            raise trace.stopped
        return truth

    def values(self) -> list[Any]:
        """All lanes' values in the order of the items."""
        nested = self.work.cond is not None or self.work.events
        lanes, added = self.ends[0]
        if lanes is None:
            return self._flat(added) if nested else added
        by_lane: list[Any] = [None] * self.n
        for lanes, added in self.ends:
            assert lanes is not None
            for i, value in zip(lanes.tolist(), added, strict=True):
                by_lane[i] = value
        return self._flat(by_lane) if nested else by_lane

    def _flat(self, by_lane: list[Any]) -> list[Any]:
        if self.work.events:
            return [event for events in by_lane for event in events]
        return [v for v in by_lane if type(v) is not _Skip]


class PartTape:
    """The steps of one part with a single result, for parts whose items are of the same kind."""

    def __init__(self, work: Work, play: Played, columns: list[Any], result: Lane):
        self.work, self.play = work, play
        self.looks = [_look(column) for column in columns]
        self.result = result.kind, result.fresh, result.approx
        self.row = result.data.shape[1:], result.data.dtype

    @staticmethod
    def of(work: Work, tape: Tape, columns: list[Any], result: Any) -> "PartTape | None":
        if type(result) is not Lane or result.place is None or result.place < tape.given or tape.broken:
            return None
        return PartTape(work, Played(tape, result.place), columns, result)

    def fits(self, columns: list[Any]) -> bool:
        return [_look(column) for column in columns] == self.looks

    def values(self, columns: list[Any], n: int, handout: Handout) -> list[Any]:
        """As the body would give them."""
        data = [c.data if type(c) is Lane else c for c in columns]
        kind, fresh, approx = self.result
        if kind == "array" and self.play.ends_in_ufunc:
            return list(self.play(data, handout.room(n, *self.row)))
        result = Lane(self.play(data), kind, None, fresh, approx)
        no_rounded_keys(self.work, result)
        return handout.values(result, n, True)


def _look(column: Any) -> Any:
    """What decides about steps: types and shapes of items, and the very object that all share."""
    if type(column) is Lane:
        return column.kind, column.data.dtype, column.data.shape[1:], column.approx
    return id(column)


def no_rounded_keys(work: Work, result: Any) -> None:
    """What decides about places in a dict or set, or about a truth, must be exact."""
    text = work.site.text
    keys: list[Any] = []
    if text.kind in ("set", "generator") and (
        text.kind == "set" or text.eater in ("any", "all", "set", "dict")
    ):
        keys = [result]
    elif text.kind == "dict":
        keys = [result[0]]
    elif text.kind == "loop":
        noted = result if work.events else [(0, result)]
        sinks = [(text.sinks[index].kind, value) for index, value in noted]
        keys = [v if kind == "add" else v[1] for kind, v in sinks if kind in ("add", "setitem")]
    if any(_rounded(key) for key in keys):
        raise Bail("keys, members or truths from rounded numbers, or from nan")


class _Skip(list):
    """Nothing added."""


def _rounded(value: Any) -> bool:
    if type(value) in (tuple, list):
        return any(_rounded(v) for v in value)
    if type(value) is not Lane:
        return False
    return value.approx or (value.data.dtype.kind == "f" and bool(np.isnan(value.data).any()))
