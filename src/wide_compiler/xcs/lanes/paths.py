"""The body of a site, run once for all lanes of a part.

Where lanes disagree about a truth, they are run again in two groups, so that a rare branch costs two runs.
"""

from typing import Any

import numpy as np

from ..work import Bail, Work
from .handout import Handout
from .lane import Diverge, Trace
from .lane_code import Dispatcher, lane_function
from .lane_operators import Lane
from .part_tape import PartTape, no_rounded_keys

MOST_PATHS = 16


class Body:
    """The site's test and body, ready for lanes."""

    def __init__(self, work: Work):
        nodes, cache = work.site.text.bodies, work.plan.lane_code
        self.dispatch = Dispatcher(cache)
        self.test = work.cond and lane_function(work.cond, nodes["cond"], self.dispatch, cache)
        self.body = lane_function(work.body, nodes["body"], self.dispatch, cache)
        self.arrays = 0  # made on the way


class Paths:
    """The body, run for groups of lanes that go the same way. A group of all lanes is None."""

    def __init__(self, work: Work, columns: list[Any], n: int, body: Body, handout: Handout):
        self.work = work
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
        work, trace = self.work, Trace(len(self.columns))
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
            raise trace.stopped()  # swallowed by an `except` in the user's text
        self.body.arrays += trace.arrays
        no_rounded_keys(work.site.text, result, work.events)
        if lanes is None and work.cond is None and not work.events:
            self.tape = PartTape.of(work.site.text, trace.tape, self.columns, result)
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
            raise trace.stopped()
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


class _Skip(list):
    """Nothing added."""
