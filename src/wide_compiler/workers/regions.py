"""`compile: true`: repeated ops are sent once as a region and then replayed by number.

A region is a run of ops on one mesh. An instruction that it cannot contain (a transfer, a random draw, data
from the script, a request) splits it in two, and `reasons` records why. The workers compile regions that
repeat.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from .callsite import CallSite
from .templates import SETTLE

if TYPE_CHECKING:
    from .engine import Engine

_KEPT = 256
_WORTH = 3  # fewer ops are sent one by one


class HeldInstruction(NamedTuple):
    """An instruction that is held back until its region ends."""

    kind: str
    content: tuple
    workers: tuple[int, ...]
    what: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    place: CallSite | None

    def step(self) -> tuple[int, tuple[int, ...], tuple[int, ...], tuple[float, ...]]:
        """Return (template, inputs, outputs, floats)."""
        if self.kind == "settle":
            out, *inputs = self.content
            return SETTLE, tuple(inputs), (out,), ()
        template, inputs, outputs, floats = self.content
        return template, inputs, outputs, floats


class Regions:
    """Records the region that is open, and remembers the regions sent before."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.name: str | None = None
        self.backward = False  # a backward pass, whose end closes the region
        self.replays: Counter[str] = Counter()
        self.shipped: Counter[str] = Counter()
        self.reasons: dict[str, str] = {}
        self._numbers: dict[tuple, int] = {}
        self._next = 0
        self.held: list[HeldInstruction] = []

    def open(self, name: str) -> None:
        if self.name is not None:
            self.close("another compiled context begins inside it")
        self.name = name
        self.reasons.pop(name, None)

    def hold(self, new: HeldInstruction) -> bool:
        """Add an op to the region; returns False if it cannot belong to one."""
        if new.kind not in ("op", "settle"):
            return False
        if self.held and self.held[0].workers != new.workers:
            self.cut("it runs on more than one set of workers")
        self.held.append(new)
        return True

    def cut(self, reason: str | None) -> None:
        """Send the held ops; what follows is another region of the same context."""
        if self.name is not None:
            if reason is not None:
                self.reasons[self.name] = reason
            self._send(self.name)

    def close(self, reason: str | None = None) -> None:
        """Send the held ops and close the region."""
        self.cut(reason)
        self.name, self.backward = None, False

    def _send(self, name: str) -> None:
        with self.engine.lock:
            # Clear `held` last: it prevents frees, and the region may use values that are freed after it.
            self._send_held(name, self.held)
            self.held = []

    def _send_held(self, name: str, held: list[HeldInstruction]) -> None:
        """Send the ops as a region, by number if the workers know it."""
        if len(held) < _WORTH:
            for h in held:
                self.engine.send(*h)
            return
        steps = [h.step() for h in held]
        made = [out for _, _, outputs, _ in steps for out in outputs]
        inside = set(made)
        outside = list(dict.fromkeys(i for _, inputs, _, _ in steps for i in inputs if i not in inside))
        places = {number: place for place, number in enumerate([*outside, *made])}
        gone = {number for _, number in self.engine.freed}
        live = tuple([places[number] for number in made if number not in gone])
        shape = tuple(
            (template, tuple([places[i] for i in inputs]), len(outputs), len(floats))
            for template, inputs, outputs, floats in steps
        )
        workers = held[0].workers
        number = self._number(name, (name, workers, len(outside), shape, live))
        floats = tuple([f for _, _, _, values in steps for f in values])
        touched = tuple(dict.fromkeys(out for h in held for out in h.outputs))
        content = (number, tuple(outside), tuple(made), floats)
        what = f"region {name!r}"
        self.engine.send("region", content, workers, what, tuple(outside), touched, held[0].place)

    def _number(self, name: str, signature: tuple) -> int:
        number = self._numbers.get(signature)
        if number is not None:
            self.replays[name] += 1
            return number
        if len(self._numbers) >= _KEPT:
            self.forget()
        self._next += 1
        self._numbers[signature] = self._next
        self.shipped[name] += 1
        _, workers, _, steps, live = signature
        self.engine.send("define", (self._next, name, steps, live), workers, "define")
        return self._next

    def forget(self) -> None:
        """Drop all regions, because they refer to dropped templates."""
        if self._numbers:
            self._numbers.clear()
            self.engine.send("forget_regions", (), self.engine.everyone, "forget_regions")
