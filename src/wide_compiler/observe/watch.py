"""Collect sent instructions and the workers' spans while an observer is connected.

Recording an instruction costs the script about a microsecond, because it stores numbers instead of names;
`attach` joins them with the workers' times in the observer.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable
from typing import Any

from ..workers.callsite import CallSite

_KEPT = 1 << 20  # limit of collected instructions
_KEPT_PARTS = 4096  # limit of collected span messages


class WorkerWatch:
    """`label()` returns (signal, pass) of the instruction being sent."""

    def __init__(self, label: Callable[[], tuple[str, str]]) -> None:
        self.label = label
        self.names: list[tuple[str, str, str, str]] = []  # op, signal, pass, line
        self.stats: dict[int, dict[str, Any]] = {}
        self._numbers: dict[tuple, int] = {}
        self._sent: deque[tuple[int, int]] = deque(maxlen=_KEPT)
        self._spans: deque[tuple[int, bytes]] = deque(maxlen=_KEPT_PARTS)

    def sent(self, seq: int, kind: str, what: str, place: CallSite | None) -> None:
        signal, direction = self.label()
        code = None if place is None else id(place.code)
        key = (what, signal, direction, code, None if place is None else place.instruction)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.names)
            self.names.append((what or kind, signal, direction, str(place) if place else ""))
        self._sent.append((seq, number))

    def seen(self, worker: int, stats: dict[str, Any], spans: bytes) -> None:
        self.stats[worker] = stats
        self._spans.append((worker, spans))

    def take(self) -> tuple[bytes, list[tuple[int, bytes]]]:
        """Return and clear (number, name) of sent instructions, as packed int64, and the packed spans.

        The instruction of every span was returned by this call or an earlier one.
        """
        spans = [self._spans.popleft() for _ in range(len(self._spans))]
        sent = array("q")
        for _ in range(len(self._sent)):
            sent.extend(self._sent.popleft())
        return sent.tobytes(), spans
