"""Merge consecutive instructions of one worker, signal and pass into one block of a timeline."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .attach import Span

_GAP_SECONDS = 0.002  # a longer gap between two instructions counts as idle time
_TRANSFERS = {"move"}
_CYCLES = 3  # in a typical window


class SignalBlock(NamedTuple):
    """A run of consecutive `instructions` of one worker, signal and pass."""

    worker: int
    signal: str
    way: str
    start: float
    end: float
    instructions: int

    @property
    def name(self) -> str:
        return f"{self.signal or 'no signal'} {self.way}"


def blocks(spans: Iterable[Span], gap: float = _GAP_SECONDS) -> list[SignalBlock]:
    """Blocks sorted by worker and start. A transfer between workers is a separate block, way "transfer"."""
    found: list[SignalBlock] = []
    open_: dict[int, SignalBlock] = {}
    for s in sorted(spans, key=lambda s: (s.worker, s.start)):
        way = "transfer" if s.op in _TRANSFERS else s.way
        last = open_.get(s.worker)
        if last is not None and (last.signal, last.way) == (s.signal, way) and s.start - last.end <= gap:
            open_[s.worker] = last._replace(end=max(last.end, s.end), instructions=last.instructions + 1)
            continue
        if last is not None:
            found.append(last)
        open_[s.worker] = SignalBlock(s.worker, s.signal, way, s.start, s.end, 1)
    return sorted([*found, *open_.values()], key=lambda b: (b.worker, b.start))


def busy(spans: Iterable[Span], start: float, end: float) -> dict[int, float]:
    """Return each worker's share of the time from `start` to `end` spent in ops, without transfers."""
    total: dict[int, float] = {}
    for s in spans:
        if s.op in _TRANSFERS:
            continue
        inside = min(s.end, end) - max(s.start, start)
        if inside > 0:
            total[s.worker] = total.get(s.worker, 0.0) + inside
    return {worker: seconds / (end - start) for worker, seconds in total.items()}


def typical_window(spans: Sequence[Span]) -> tuple[float, float]:
    """(start, end) of about three forward and backward passes from the middle of the trace; the whole
    trace if it has fewer."""
    first, last = spans[0].start, max(s.end for s in spans)
    begins: list[float] = []
    way = ""
    for s in spans:
        if s.way not in ("forward", "backward"):
            continue
        if s.way == "forward" and way == "backward" and (not begins or s.start - begins[-1] > 1e-3):
            begins.append(s.start)
        way = s.way
    if len(begins) <= _CYCLES + 1:
        return first, last
    middle = (len(begins) - _CYCLES) // 2
    return begins[middle], begins[middle + _CYCLES]
