"""The tape of one part of the items, played for parts that look the same."""

from typing import Any

import numpy as np

from ..text.site_text import SiteText
from ..work import Bail
from .handout import Handout, rows_of_a_block
from .lane import PYTHON
from .lane_operators import Lane
from .lane_tape import Played, Tape


class PartTape:
    """The steps of one part with a single result, for parts whose items are of the same kind."""

    def __init__(self, text: SiteText, play: Played, columns: list[Any], result: Lane):
        self.text, self.play = text, play
        self.looks = [_look(column) for column in columns]
        self.result = result.kind, result.fresh, result.approx
        self.row = result.data.shape[1:], result.data.dtype
        # A list of Python's numbers is handed out as it is.
        self.numbers = text.kind == "list" and result.kind in PYTHON and result.fresh

    @staticmethod
    def of(text: SiteText, tape: Tape, columns: list[Any], result: Any) -> "PartTape | None":
        if type(result) is not Lane or result.place is None or result.place < tape.given or tape.broken:
            return None
        return PartTape(text, Played(tape, result.place), columns, result)

    @property
    def is_of_lanes(self) -> bool:
        """Is there no object that all items share?"""
        return all(type(look) is tuple for look in self.looks)

    @property
    def constants(self) -> list[Any]:
        return [value for value, inputs in self.play.steps if inputs is None]

    def fits(self, columns: list[Any]) -> bool:
        return list(map(_look, columns)) == self.looks

    def values(self, columns: list[Any], n: int, handout: Handout) -> list[Any]:
        """As the body would give them."""
        data = [c.data if type(c) is Lane else c for c in columns]
        if self.numbers:
            return self.play(data).tolist()
        kind, fresh, approx = self.result
        if kind == "array" and self.play.ends_in_ufunc and n <= rows_of_a_block(*self.row):
            return list(self.play(data, handout.room(n, *self.row)))
        result = Lane(self.play(data), kind, None, fresh, approx)
        no_rounded_keys(self.text, result)
        return handout.values(result, n, True)


def _look(column: Any) -> Any:
    """What decides about steps: types and shapes of items, and the very object that all share."""
    if type(column) is Lane:
        data = column.data
        return column.kind, data.dtype.char, data.dtype, data.shape[1:], column.rounded
    return id(column)


def no_rounded_keys(text: SiteText, result: Any, events: bool = False) -> None:
    """What decides about places in a dict or set, or about a truth, must be exact."""
    keys: list[Any] = []
    if text.kind == "set" or text.eater in ("any", "all", "set", "dict"):
        keys = [result]
    elif text.kind == "dict":
        keys = [result[0]]
    elif text.keyed and text.eater in ("sorted", "max", "min"):
        keys = [result]
    elif text.kind == "loop":
        noted = result if events else [(0, result)]
        sinks = [(text.sinks[index].kind, value) for index, value in noted]
        keys = [v if kind == "add" else v[1] for kind, v in sinks if kind in ("add", "setitem")]
    elif text.eater == "sorted" and type(result) is not Lane:  # numbers alone only change in a last digit
        keys = [result]
    if any(map(_rounded, keys)):
        raise Bail("keys, members or truths from rounded numbers, or from nan")


def _rounded(value: Any) -> bool:
    if type(value) in (tuple, list):
        return any(_rounded(v) for v in value)
    if type(value) is not Lane:
        return False
    return value.approx or (value.data.dtype.kind == "f" and bool(np.isnan(value.data).any()))
