"""The instruction stream: one global order, batches, frees, and each worker's progress.

Every worker receives the instructions that name it, in the global order.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from .callsite import CallSite
from .wire import dump

if TYPE_CHECKING:
    from ..observe.endpoint import WorkerWatch
    from ..signals.steps import StepRecorder
    from .failures import Failures
    from .regions import Regions

_BATCH = 64  # instructions per message; more with many workers, since each is written to
_FLUSH_SECONDS = 0.004  # how long an instruction may wait for its batch to fill
_FEW_WORKERS = 128
_WINDOW = 4096  # instructions that may be in flight to the slowest worker


class Pool:
    """A pool of `size` workers, as the engine sees it. The engine sets the callbacks."""

    payloads: str | None = None  # folder for large tensors if script and workers share memory

    def __init__(self, size: int) -> None:
        self.size = size
        self.on_message: Callable[[int, tuple], None] = lambda worker, message: None
        self.on_gone: Callable[[int], None] = lambda worker: None
        self.on_tick: Callable[[], None] = lambda: None
        self.on_broken: Callable[[int, str], None] = lambda worker, why: None
        self.pids: list[int] = []  # on their own machines, by rank

    def start(self) -> None:
        """Start delivering messages."""

    def post(self, worker: int, data: bytes) -> None:
        """Send a message. A worker that is gone is reported through `on_gone`, not here."""
        raise NotImplementedError

    def watched(self) -> bool:
        """Return whether a worker that hangs would be detected."""
        return True

    def grow(self, devices: list[str], meet: Callable[[dict], None]) -> None:
        """Add workers; `meet(setup)` makes the running workers join the new process group."""

    def abandon(self) -> None:
        """In a fork of the script, close the connections, which belong to the parent."""

    def why_gone(self, worker: int) -> str:
        """Return what is known about why a worker ended, as text to append to an error."""
        return ""

    def stop(self) -> None:
        """Ask the workers to leave, and kill those that do not."""
        raise NotImplementedError

    def kill(self) -> None:
        """Kill every worker."""
        self.stop()


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


class Stream:
    """Sends instructions in batches.

    freed: ids (with their workers) that nothing refers to any more; any thread may append.
    """

    failures: Failures
    regions: Regions

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.lock = threading.RLock()
        self.news = threading.Condition()
        self.everyone = tuple(range(pool.size))
        self.seq = 0
        self.in_flight: deque[InFlight] = deque()
        self.done = [0] * pool.size
        self.freed: deque[tuple[tuple[int, ...], int]] = deque()
        self.recorder: StepRecorder | None = None  # receives every instruction and every freed id
        self.watcher: WorkerWatch | None = None  # set while the script is observed
        self._pending: list[tuple[tuple[int, ...], tuple]] = []
        self._first_pending = 0.0
        self.waits_for_room = False
        self.pace()

    def pace(self) -> None:
        """Set batch size and flush interval by the number of workers."""
        larger = max(1.0, len(self.everyone) / _FEW_WORKERS)
        self._batch, self._flush_seconds = int(_BATCH * larger), _FLUSH_SECONDS * larger

    def send(
        self,
        kind: str,
        content: tuple,
        workers: tuple[int, ...],
        what: str,
        inputs: tuple[int, ...] = (),
        outputs: tuple[int, ...] = (),
        place: CallSite | None = None,
        each: Sequence[tuple] = (),
    ) -> None:
        """Append one instruction; it is sent with the next batch, or at once if each worker has its content.

        each: the content for each of the workers, if they differ.
        """
        self.seq = seq = self.seq + 1
        if self.recorder is not None:
            self.recorder.hear(kind, content, workers, what)
        self.in_flight.append(InFlight(seq, kind, what, place, inputs, outputs, workers))
        if self.watcher is not None:
            self.watcher.sent(seq, kind, what, place)
        pending = self._pending
        if each:
            pending += [((w,), (kind, seq, *own)) for w, own in zip(workers, each, strict=True)]
            self.flush()
            return
        pending.append((workers, (kind, seq, *content)))
        if len(pending) == 1:
            self._first_pending = time.monotonic()
        elif len(pending) >= self._batch or time.monotonic() - self._first_pending > self._flush_seconds:
            self.flush()

    def flush(self) -> None:
        """Send the pending instructions."""
        with self.lock:
            if self.regions.held:
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
            self.failures.dead.pop(number, None)
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
            self.failures.check(())
            self.forget_finished()
        self.waits_for_room = False
