"""The rung "numpy lanes": gather the items, run the body once per chunk, split the results.

If a condition differs between lanes, they run again in two groups.
"""

from typing import Any

import numpy as np

from ..exceptions import raise_interrupt
from ..work import Bail, Work
from .body_code import Dispatcher, lane_function
from .gather import chunks, gathered
from .lane import Diverge, Lane, Objects, own_values
from .results import apart, check_keys

MOST_PATHS = 16
SKIPPED = object()  # an item that the condition excludes


def vectorized(work: Work) -> list[Any]:
    """Return the values of all items in order. Raises `Bail`."""
    reported: list[str] = []
    values: list[Any] = []
    body = Body(work)
    why: str | None = None
    try:
        with _recorded_errors(reported):
            for start, stop in chunks(work):
                part = body.values(start, stop)
                if reported:
                    raise Bail(f"NumPy reports '{reported[0]}' for an item")
                values = values + part if values else part
    except Bail as bail:
        why = str(bail)
    except Exception as error:
        raise_interrupt(error)
        why = f"{type(error).__name__}: {error}"
    if why is not None:  # outside of the handlers, so that no traceback is kept alive
        raise Bail(why)
    return values


def _recorded_errors(reported: list[str]) -> Any:
    """Return a context that appends floating point errors, unless ignored, to `reported`."""
    modes: Any = {kind: "ignore" if how == "ignore" else "call" for kind, how in np.geterr().items()}
    return np.errstate(call=lambda what, flag: reported.append(what), **modes)


class Body:
    """The site's condition and body compiled for lanes."""

    def __init__(self, work: Work):
        nodes, cache = work.site.text.bodies, work.plan.lane_code
        self.work = work
        self.dispatch = Dispatcher(cache)
        self.test = work.cond and lane_function(work.cond, nodes["cond"], self.dispatch, cache)
        self.body = lane_function(work.body, nodes["body"], self.dispatch, cache)
        self.runs = 0

    def values(self, start: int, stop: int) -> list[Any]:
        """Return the values of items `start` to `stop`. Raises `Bail`."""
        self.runs = 0
        columns = [
            column if (start, stop) == (0, len(column)) else column[start:stop]
            for column in self.work.items.columns
        ]
        added: list[Any] = [None] * (stop - start)
        self._run(columns, None, added)
        if self.work.events:
            return [event for events in added for event in events]
        return [v for v in added if v is not SKIPPED] if self.work.cond is not None else added

    def _run(self, columns: list[Any], lanes: np.ndarray | None, added: list[Any]) -> None:
        """Store in `added` what each lane yields: a value, or a list of events.

        Args:
            lanes: indices into `added`; None for all.
        """
        self.runs += 1
        if self.runs > MOST_PATHS:
            raise Bail(f"items take more than {MOST_PATHS} ways through its branches")
        try:
            found = self._once(columns, len(added) if lanes is None else len(lanes))
        except Diverge as split:
            for mask in (split.mask, ~split.mask):
                chosen = np.flatnonzero(mask)
                group = [[column[i] for i in chosen.tolist()] for column in columns]
                self._run(group, chosen if lanes is None else lanes[chosen], added)
            return
        if lanes is None:
            added[:] = found
        else:
            for i, value in zip(lanes.tolist(), found, strict=True):
                added[i] = value

    def _once(self, columns: list[Any], count: int) -> list[Any]:
        work, self.dispatch.rounds = self.work, 0
        given = list(map(gathered, columns))
        if work.cond is not None and not self.test(*given):
            return [SKIPPED] * count
        if work.events:
            noted: list[Any] = []
            self.body(noted, *given)
            result: Any = [tuple(event) for event in noted]
        else:
            result = self.body(*given)
        check_keys(work.site.text, result, work.events)
        if work.events:
            before: list[Any] = []
            events = [(index, apart(value, count, before)) for index, value in result]
            found: list[Any] = [[(index, column[i]) for index, column in events] for i in range(count)]
        else:
            found = apart(result, count, [])
        if any(map(_has_nan, given)) and any(map(_is_nan, found)):
            raise Bail("nan in items and results, which Python finds by identity")
        return found


def _has_nan(given: Any) -> bool:
    """Return whether an input number is nan.

    A body may return the same object; elements of arrays are new objects.
    """
    if type(given) is Objects:
        values = own_values(given, 0)
        return type(values[0]) in (tuple, list, dict) and any(map(_is_nan, values))
    if type(given) is not Lane or given.kind == "array" or given.origin is None:
        return False
    return given.data.dtype.kind in "fc" and bool(np.isnan(given.data).any())


def _is_nan(value: Any) -> bool:
    """Return whether a result is or contains nan."""
    if type(value) in (tuple, list):
        return any(map(_is_nan, value))
    if type(value) is dict:
        return any(map(_is_nan, value.values()))
    return isinstance(value, (float, complex, np.inexact)) and bool(value != value)
