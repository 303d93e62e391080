"""The controller's end of the stream: numbers, batches, answers, garbage and failures.

The engine knows ids, meshes and the order of instructions; what a tensor looks like is the business of
`signals.tensor`. All instructions stand in one global order, of which every worker gets those of its meshes.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from .callsite import Place, user_place
from .errors import NoWorkers
from .failures import Failures
from .regions import Regions
from .wire import dump

_BATCH = 64
_WINDOW = 4096  # instructions that may be on their way to the slowest worker
_FLUSH_SECONDS = 0.004


# Said to workers while a region is open, in any order with its ops.
_BESIDE_REGIONS = {"template", "mesh", "seed"}
_WORDS = {
    "draw": "random draw",
    "move": "transfer between workers",
    "put": "tensor from the script",
    "ask": "question that only values answer",
    "fetch": "value that the script reads",
    "make": "new tensor",
}


class Pool(Protocol):
    """Where workers live; see `local.LocalPool`."""

    size: int
    payloads: str | None  # a folder for large tensors, where script and workers share memory
    pids: list[int]
    on_message: Any
    on_gone: Any
    on_tick: Any

    def start(self) -> None: ...
    def post(self, worker: int, data: bytes) -> None: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...


class Mesh(NamedTuple):
    """Some of the workers, in order."""

    number: int
    workers: tuple[int, ...]


class InFlight(NamedTuple):
    """An instruction that not all of its workers have finished."""

    seq: int
    kind: str
    what: str
    place: Place | None
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    workers: tuple[int, ...]


_serials = itertools.count(1)


class Engine:
    """One run of a pool of workers."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.serial = next(_serials)  # an id() may be used again after an engine is gone
        self.process = os.getpid()
        self.lock = threading.RLock()
        self.everyone = tuple(range(pool.size))
        self.ids = itertools.count(1)
        self.requests = itertools.count(1)
        self.templates = itertools.count(1)
        self.seq = 0
        self.in_flight: deque[InFlight] = deque()
        self.done = [0] * pool.size
        self.answers: dict[int, Any] = {}
        self.news = threading.Condition()
        self.failures = Failures(self)
        self.regions = Regions(self)
        self._pending: list[tuple[tuple[int, ...], tuple]] = []
        self._first_pending = 0.0
        # Appended to whenever a tensor is collected, from anywhere.
        self.freed: deque[tuple[tuple[int, ...], int]] = deque()
        self._meshes: dict[tuple[int, ...], Mesh] = {}
        pool.on_message = self._on_message
        pool.on_gone = self.failures.worker_gone
        pool.on_tick = self.failures.tick
        pool.start()

    # ---- recording

    def mesh(self, workers: Iterable[int]) -> Mesh:
        """The mesh of these workers, made on first use."""
        key = tuple(sorted(workers))
        mesh = self._meshes.get(key)
        if mesh is None:
            mesh = self._meshes[key] = Mesh(len(self._meshes), key)
            self.record("mesh", (mesh.number, key), self.everyone)
        return mesh

    def new_template(self, name: str, args: tuple, kwargs: dict) -> int:
        number = next(self.templates)
        self.record("template", (number, name, args, kwargs), self.everyone)
        return number

    def forget_template(self, number: int) -> None:
        self.regions.forget()
        self.record("forget", (number,), self.everyone)

    def record(
        self,
        kind: str,
        content: tuple,
        workers: tuple[int, ...],
        what: str = "",
        inputs: tuple[int, ...] = (),
        outputs: tuple[int, ...] = (),
    ) -> None:
        """Add one instruction for these workers. Raises what became known of earlier ones."""
        with self.lock:
            self.failures.check(inputs)
            regions = self.regions
            if regions.name is not None and kind not in _BESIDE_REGIONS:
                if regions.hold(kind, content, workers, what, inputs, outputs):
                    return
                regions.cut(f"it holds a {_WORDS.get(kind, kind)}")
            self.send(kind, content, workers, what or kind, inputs, outputs, user_place())

    def send(
        self,
        kind: str,
        content: tuple,
        workers: tuple[int, ...],
        what: str,
        inputs: tuple[int, ...] = (),
        outputs: tuple[int, ...] = (),
        place: Place | None = None,
    ) -> None:
        """Put one instruction on its way: with the next batch."""
        self.seq = seq = self.seq + 1
        self.in_flight.append(InFlight(seq, kind, what, place, inputs, outputs, workers))
        pending = self._pending
        pending.append((workers, (kind, seq, *content)))
        if len(pending) == 1:
            self._first_pending = time.monotonic()
        elif len(pending) >= _BATCH or time.monotonic() - self._first_pending > _FLUSH_SECONDS:
            self.flush()

    def record_each(self, kind: str, contents: Sequence[tuple], mesh: Mesh, outputs: tuple[int, ...]) -> None:
        """One instruction, with another content for each worker of the mesh."""
        with self.lock:
            self.failures.check(())
            self.regions.cut(f"it holds a {_WORDS.get(kind, kind)}")
            self.seq += 1
            self.in_flight.append(InFlight(self.seq, kind, kind, user_place(), (), outputs, mesh.workers))
            for worker, content in zip(mesh.workers, contents, strict=True):
                self._pending.append(((worker,), (kind, self.seq, *content)))
            self.flush()

    def flush(self) -> None:
        """Send what is pending."""
        with self.lock:
            if self.regions.held():
                return  # nothing may be freed before an op that is held back has used it
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
            self._forget_finished()
            self._wait_for_room()

    def _collect_garbage(self) -> None:
        dead: dict[tuple[int, ...], list[int]] = {}
        while self.freed:
            workers, number = self.freed.popleft()
            dead.setdefault(workers, []).append(number)
            self.failures.dead.pop(number, None)
        for workers, numbers in dead.items():
            self.seq += 1
            self.in_flight.append(InFlight(self.seq, "free", "free", None, (), (), workers))
            self._pending.append((workers, ("free", self.seq, numbers)))

    def _forget_finished(self) -> None:
        while self.in_flight:
            first = self.in_flight[0]
            if any(self.done[w] < first.seq for w in first.workers):
                return
            self.in_flight.popleft()

    def _wait_for_room(self) -> None:
        """Do not run far ahead of the workers: what they have not done yet costs memory."""
        while len(self.in_flight) > _WINDOW:
            with self.news:
                self.news.wait(0.05)
            self.failures.check(())
            self._forget_finished()

    # ---- answers

    def ask(
        self,
        kind: str,
        content: tuple,
        mesh: Mesh,
        what: str = "",
        inputs: tuple[int, ...] = (),
        outputs: tuple[int, ...] = (),
    ) -> Any:
        """Record an instruction that the mesh's first worker answers, and wait for the answer."""
        request = next(self.requests)
        reporter = mesh.workers[0]
        self.record(kind, (*content, request, reporter), mesh.workers, what, inputs, outputs)
        self.flush()
        return self._wait(request)

    def ask_each(self, kind: str, content: tuple = (), contents: Sequence[tuple] | None = None) -> list[Any]:
        """Ask every worker; their answers in order."""
        requests = [next(self.requests) for _ in self.everyone]
        with self.lock:
            for worker, request in zip(self.everyone, requests, strict=True):
                own = content if contents is None else contents[worker]
                self.record(kind, (*own, request), (worker,))
            self.flush()
        return [self._wait(request) for request in requests]

    def synchronize(self) -> None:
        """Wait until every worker has done everything recorded so far; raises what failed."""
        self.ask_each("sync")
        with self.lock:
            self._forget_finished()
        self.failures.check(())

    def _wait(self, request: int) -> Any:
        while True:
            with self.news:
                if request in self.answers:
                    return self.answers.pop(request)
                if not self.failures.pending():
                    self.news.wait(0.5)
            self.failures.check(())

    def _on_message(self, worker: int, message: tuple) -> None:
        kind = message[0]
        if kind == "ack":
            self.done[worker] = message[1]
            self.failures.progress(worker, message[1])
        elif kind == "beat":
            self.failures.progress(worker, message[1])
        elif kind == "result":
            _, request, payload, seq = message
            self.done[worker] = max(self.done[worker], seq)
            with self.news:
                self.answers[request] = payload
        elif kind == "failed":
            self.failures.worker_failed(worker, *message[1:])
        if kind != "beat":
            with self.news:
                self.news.notify_all()

    # ---- the end

    @property
    def closed(self) -> bool:
        return self.failures.fatal is not None

    def stop(self) -> None:
        """End the workers. Tensors that are still alive cannot be used any more."""
        if self.process != os.getpid():
            return  # a fork of the script: the workers are not ours
        if self.failures.fatal is None:
            self.failures.fatal = NoWorkers("the workers were shut down; this tensor's values are gone")
            self.pool.stop()
        else:
            self.pool.kill()
