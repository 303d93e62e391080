"""`compile: true`: the ops of a context are shipped once as a region, and from then on replayed by number.

A region is a run of plain ops on one mesh. What a region cannot hold (a transfer, a random draw, data from
the script, a question) makes it an ordinary run of instructions, and `reasons` says why.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .engine import Engine

Step = tuple[int, tuple[int, ...], int, int]  # template, inputs as places, how many outputs, how many floats
_KEPT = 256


class Regions:
    """Recorder of the region that is open now, and memory of those shipped."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.name: str | None = None
        self.replays: Counter[str] = Counter()
        self.shipped: Counter[str] = Counter()
        self.reasons: dict[str, str] = {}
        self._numbers: dict[tuple, int] = {}
        self._next = 0
        self._held: list[tuple[tuple, tuple[int, ...], str, tuple[int, ...], tuple[int, ...]]] = []

    def open(self, name: str) -> None:
        if self.name is not None:
            self.spill("another compiled context begins inside it")
        self.name = name

    def hold(
        self, content: tuple, workers: tuple[int, ...], what: str, inputs: tuple, outputs: tuple
    ) -> bool:
        """Keep an op for the region. False if it cannot belong to it: then it is recorded as usual."""
        if self._held and self._held[0][1] != workers:
            self.spill("it runs on more than one set of workers")
            return False
        self._held.append((content, workers, what, inputs, outputs))
        return True

    def held(self) -> bool:
        return bool(self._held)

    def spill(self, reason: str) -> None:
        """Send what is held as ordinary instructions; this time there is no region."""
        name, self.name = self.name, None
        held, self._held = self._held, []
        if name is not None:
            self.reasons[name] = reason
        for content, workers, what, inputs, outputs in held:
            self.engine.record("op", content, workers, what, inputs, outputs)

    def close(self) -> None:
        """Send the region: its number if the workers know it."""
        name, self.name = self.name, None
        held, self._held = self._held, []
        if name is None or not held:
            return
        self.reasons.pop(name, None)
        places: dict[int, int] = {}
        steps: list[Step] = []
        made: list[int] = []
        floats: list[float] = []
        inside = {out for content, *_ in held for out in content[2]}
        outside = list(dict.fromkeys(i for content, *_ in held for i in content[1] if i not in inside))
        places.update({number: k for k, number in enumerate(outside)})
        for (template, inputs, outputs, values), *_ in held:
            steps.append((template, tuple([places[i] for i in inputs]), len(outputs), len(values)))
            for out in outputs:
                places[out] = len(places)
                made.append(out)
            floats.extend(values)
        workers = held[0][1]
        signature = (workers, len(outside), tuple(steps))
        number = self._numbers.get(signature)
        if number is None:
            number = self._ship(name, signature, workers)
        else:
            self.replays[name] += 1
        touched = tuple(dict.fromkeys(o for *_, outs in held for o in outs))
        content = (number, tuple(outside), tuple(made), tuple(floats))
        self.engine.record("region", content, workers, f"region {name!r}", tuple(outside), touched)

    def _ship(self, name: str, signature: tuple, workers: tuple[int, ...]) -> int:
        if len(self._numbers) >= _KEPT:
            self._numbers.clear()
            self.engine.record("forget_regions", (), self.engine.everyone)
        self._next += 1
        self._numbers[signature] = self._next
        self.shipped[name] += 1
        self.engine.record("define", (self._next, signature[2]), workers)
        return self._next

    def forget(self) -> None:
        """Templates are gone, so the regions that name them are."""
        if self._numbers:
            self._numbers.clear()
            self.engine.record("forget_regions", (), self.engine.everyone)
