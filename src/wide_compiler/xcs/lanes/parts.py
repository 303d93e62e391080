"""A site's body, run part by part: by itself for the first part, by its tape for those that look the same,
and by the tape of an earlier call where that stands."""

from typing import Any

import numpy as np

from ..work import Bail, Work
from .handout import Handout
from .lane_operators import Lane
from .part_tape import PartTape
from .paths import Body, Paths
from .standing import keep, standing


class Parts:
    """All parts of one call, in order."""

    def __init__(self, work: Work):
        self.work = work
        self.handout = Handout(work.items.n, work.site.config.exact)
        self.body: Body | None = None  # made when it is needed
        kept = standing(work)
        self.tape: PartTape | None = kept.tape if kept is not None else None
        self.arrays = kept.arrays if kept is not None else 0  # made on the way

    def values(self, columns: list[Any], n: int) -> list[Any]:
        """What the next n items give. Raises `Bail`."""
        found = self._values(columns, n)
        if any(map(_has_nan, columns, self.work.items.columns)) and any(map(_is_nan, found)):
            raise Bail("nan, which is only found again where it is the same object")
        return found

    def _values(self, columns: list[Any], n: int) -> list[Any]:
        if self.tape is not None and self.tape.fits(columns):
            return self.tape.values(columns, n, self.handout)
        if self.body is None:
            self.body = Body(self.work)
        paths = Paths(self.work, columns, n, self.body, self.handout)
        paths.run(None)
        self.tape, self.arrays = paths.tape, self.body.arrays
        return paths.values()

    def done(self) -> None:
        """All parts were run: what that says about calls to come."""
        memory = self.work.plan.memory
        memory["makes no arrays"] = self.arrays == 0
        memory["rows at once"] = self.handout.rows_at_once or memory.get("rows at once", 0)
        if self.body is not None and self.tape is not None:
            keep(self.work, self.tape, self.arrays)


def _has_nan(column: Any, items: Any) -> bool:
    """Is one of these numbers nan? A body may hand on the very number; of an array it gets new ones."""
    if type(column) is not Lane or column.kind == "array" or type(items) is np.ndarray:
        return False
    return column.data.dtype.kind in "fc" and bool(np.isnan(column.data).any())


def _is_nan(value: Any) -> bool:
    """Is a result, or something in it, nan?"""
    if type(value) in (tuple, list):
        return any(map(_is_nan, value))
    if type(value) is dict:
        return any(map(_is_nan, value.values()))
    return isinstance(value, (float, complex, np.inexact)) and bool(value != value)
