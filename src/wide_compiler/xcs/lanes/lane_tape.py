"""A tape: what a body did with the lanes of one part of the items, done to the other parts without the body.

Whatever looks at numbers (a truth, a check against overflow) is not on it; then every part is run by the body
itself.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np


class Tape:
    """Steps: a function, and the places of its inputs. Places hold what is given, constants and results."""

    def __init__(self, given: int = 0):
        self.given = given
        self.steps: list[tuple[Any, list[int] | None]] = []
        self.broken = False  # something happened that no step shows

    def note(self, run: Any, inputs: Sequence[Any], places: Sequence[int | None]) -> int | None:
        """The place of a result; None if an input is not known here. Inputs of place -1 are constants."""
        if None in places:
            return None
        found = [self._constant(x) if place == -1 else place for x, place in zip(inputs, places, strict=True)]
        self.steps.append((run, found))  # type: ignore[arg-type]
        return self.given + len(self.steps) - 1

    def _constant(self, value: Any) -> int:
        self.steps.append((value, None))
        return self.given + len(self.steps) - 1


class Played:
    """A tape that is complete: from the data of all columns to the result."""

    def __init__(self, tape: Tape, result: int):
        self.result = result
        self.steps = tape.steps
        last = result == tape.given + len(self.steps) - 1
        self.ends_in_ufunc = last and getattr(self.steps[-1][0], "takes_out", False)
        self.dropped: list[list[int]] = [[] for _ in self.steps]
        self._find_last_uses()

    def _find_last_uses(self) -> None:
        """Memory that nobody reads any more is used again while it is in the cache."""
        last = {place: i for i, (_, inputs) in enumerate(self.steps) for place in inputs or ()}
        for place, i in last.items():
            if place != self.result:
                self.dropped[i].append(place)

    def __call__(self, columns: Sequence[Any], out: np.ndarray | None = None) -> np.ndarray:
        """The result for other data of the same kind; written into `out` if it ends in a ufunc."""
        held: list[Any] = list(columns)
        last = len(self.steps) - 1
        for i, (run, inputs) in enumerate(self.steps):
            if inputs is None:
                held.append(run)
                continue
            read = list(map(held.__getitem__, inputs))
            for place in self.dropped[i]:
                held[place] = None
            held.append(run(*read, out=out) if out is not None and i == last else run(*read))
        return held[self.result]


class AlignedUfunc:
    """A ufunc, or a function like one, whose operands have their lane axis in front, and other ranks."""

    takes_out = True

    def __init__(self, ufunc: Any, ranks: list[int]):
        self.ufunc, self.ranks, self.rank = ufunc, ranks, max(ranks)
        self.alike = min(ranks) == self.rank

    def __call__(self, *data: Any, out: np.ndarray | None = None) -> np.ndarray:
        if self.alike:
            return self.ufunc(*data, out=out)
        operands = [aligned(d, rank, self.rank) for d, rank in zip(data, self.ranks, strict=True)]
        return self.ufunc(*operands, out=out)


def aligned(data: Any, rank: int, wanted: int) -> Any:
    """The lane axis stays in front; missing axes come right behind it."""
    if not isinstance(data, np.ndarray) or data.ndim != rank + 1 or rank == wanted:
        return data
    return data.reshape(data.shape[0], *(1,) * (wanted - rank), *data.shape[1:])
