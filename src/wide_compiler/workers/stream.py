"""The instruction stream: one global order, batches, frees, and each worker's progress.

Every worker receives the instructions that name it, in the global order.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from .callsite import CallSite, user_place
from .wire import dump

_BATCH = 64  # instructions per message; more with many workers, since each is written to
_FLUSH_SECONDS = 0.004  # how long an instruction may wait for its batch to fill
_FEW_WORKERS = 128
_WINDOW = 4096  # instructions that may be in flight to the slowest worker


class Pool(Protocol):
    """The interface of a pool of workers; see `pool.ConnectedPool`."""

    size: int
    payloads: str | None  # folder for large tensors if script and workers share memory
    pids: list[int]
    on_message: Any
    on_gone: Any
    on_tick: Any
    on_broken: Any

    def start(self) -> None: ...
    def post(self, worker: int, data: bytes) -> None: ...
    def watched(self) -> bool: ...
    def grow(self, devices: list[str], meet: Any) -> None: ...
    def abandon(self) -> None: ...
    def why_gone(self, worker: int) -> str: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...


class InstructionRecorder(Protocol):
    """Receives every instruction while a step is recorded; see `signals.steps`."""

    freed: set[int]

    def hear(self, kind: str, content: tuple, workers: tuple[int, ...], what: str) -> None: ...


class StreamWatcher(Protocol):
    """Receives every instruction and the workers' statistics; see `observe.watch`."""

    def sent(self, seq: int, kind: str, what: str, place: CallSite | None) -> None: ...
    def seen(self, worker: int, stats: dict[str, Any], spans: bytes) -> None: ...


class Mesh(NamedTuple):
    """A set of workers arranged in a grid of `shape`, in row-major order."""

    number: int
    workers: tuple[int, ...]
    shape: tuple[int, ...]


class InFlight(NamedTuple):
    """An instruction that not all of its workers have acknowledged."""

    seq: int
    kind: str
    what: str
    place: CallSite | None
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    workers: tuple[int, ...]


class Stream(ABC):
    """Sends instructions in batches.

    freed: ids (with their workers) that nothing refers to any more; any thread may append.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.lock = threading.RLock()
        self.news = threading.Condition()
        self.everyone = tuple(range(pool.size))
        self.seq = 0
        self.in_flight: deque[InFlight] = deque()
        self.done = [0] * pool.size
        self.freed: deque[tuple[tuple[int, ...], int]] = deque()
        self.recorder: InstructionRecorder | None = None  # receives every instruction and every freed id
        self.watcher: StreamWatcher | None = None  # set while the script is observed
        self._pending: list[tuple[tuple[int, ...], tuple]] = []
        self._first_pending = 0.0
        self.waits_for_room = False
        self.pace()

    def pace(self) -> None:
        """Set batch size and flush interval by the number of workers."""
        larger = max(1.0, len(self.everyone) / _FEW_WORKERS)
        self._batch, self._flush_seconds = int(_BATCH * larger), _FLUSH_SECONDS * larger

    @abstractmethod
    def held_back(self) -> bool:
        """Return whether instructions are held back that are not yet part of the stream."""

    @abstractmethod
    def check(self) -> None:
        """Raise the error of a failed instruction or worker."""

    @abstractmethod
    def forget_dead(self, number: int) -> None:
        """Drop the failure record of an id that was freed."""

    def send(
        self,
        kind: str,
        content: tuple,
        workers: tuple[int, ...],
        what: str,
        inputs: tuple[int, ...] = (),
        outputs: tuple[int, ...] = (),
        place: CallSite | None = None,
    ) -> None:
        """Append one instruction; it is sent with the next batch."""
        self.seq = seq = self.seq + 1
        if self.recorder is not None:
            self.recorder.hear(kind, content, workers, what)
        self.in_flight.append(InFlight(seq, kind, what, place, inputs, outputs, workers))
        if self.watcher is not None:
            self.watcher.sent(seq, kind, what, place)
        pending = self._pending
        pending.append((workers, (kind, seq, *content)))
        if len(pending) == 1:
            self._first_pending = time.monotonic()
        elif len(pending) >= self._batch or time.monotonic() - self._first_pending > self._flush_seconds:
            self.flush()

    def send_each(self, kind: str, contents: Sequence[tuple], mesh: Mesh, outputs: tuple[int, ...]) -> None:
        """Append one instruction with a separate content for each worker of the mesh, and flush."""
        self.seq += 1
        place = user_place()
        if self.recorder is not None:
            self.recorder.hear(kind, contents[0], mesh.workers, kind)
        self.in_flight.append(InFlight(self.seq, kind, kind, place, (), outputs, mesh.workers))
        if self.watcher is not None:
            self.watcher.sent(self.seq, kind, kind, place)
        for worker, content in zip(mesh.workers, contents, strict=True):
            self._pending.append(((worker,), (kind, self.seq, *content)))
        self.flush()

    def flush(self) -> None:
        """Send the pending instructions."""
        with self.lock:
            if self.held_back():
                return  # a held-back op may use values that would be freed
            self._collect_garbage()
            if not self._pending:
                return
            pending, self._pending = self._pending, []
            if all(workers == self.everyone for workers, _ in pending):
                data = dump(("batch", [instruction for _, instruction in pending]))
                for worker in self.everyone:
                    self.pool.post(worker, data)
            else:
                for worker in self.everyone:
                    batch = [instruction for workers, instruction in pending if worker in workers]
                    if batch:
                        self.pool.post(worker, dump(("batch", batch)))
            self.forget_finished()
            self._wait_for_room()

    def _collect_garbage(self) -> None:
        dead: dict[tuple[int, ...], list[int]] = {}
        while self.freed:
            workers, number = self.freed.popleft()
            dead.setdefault(workers, []).append(number)
            if self.recorder is not None:
                self.recorder.freed.add(number)
            self.forget_dead(number)
        for workers, numbers in dead.items():
            self.seq += 1
            self.in_flight.append(InFlight(self.seq, "free", "free", None, (), (), workers))
            self._pending.append((workers, ("free", self.seq, numbers)))

    def forget_finished(self) -> None:
        while self.in_flight:
            first = self.in_flight[0]
            if any(self.done[w] < first.seq for w in first.workers):
                return
            self.in_flight.popleft()

    def _wait_for_room(self) -> None:
        """Wait while too many instructions are in flight: unfinished ones take memory."""
        self.waits_for_room = len(self.in_flight) > _WINDOW
        while len(self.in_flight) > _WINDOW:
            with self.news:
                self.news.wait(0.05)
            self.check()
            self.forget_finished()
        self.waits_for_room = False
