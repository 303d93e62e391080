"""The controller's side: ids, meshes, replies and failures.

The engine tracks ids, meshes and the order of instructions. Shapes and dtypes of tensors are handled by
`signals.tensor`.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from .callsite import user_place
from .failures import Failures
from .regions import HeldInstruction, Regions
from .stream import Mesh, Pool, Stream
from .wire import NoAnswer, dump
from .worker_errors import NoWorkers, WorkerFailed

if TYPE_CHECKING:
    from ..observe.endpoint import WorkerWatch

# Instructions that may be sent while a region is open, in any order relative to its ops.
_BESIDE_REGIONS = {"template", "mesh"}
_WORDS = {
    "draw": "random draw",
    "move": "transfer between workers",
    "put": "tensor from the script",
    "ask": "request whose answer depends on values",
    "fetch": "value that the script reads",
    "make": "new tensor",
    "settings": "change of a setting",
}


_serials = itertools.count(1)


class Engine(Stream):
    """The controller of one pool of workers: records instructions and waits for replies."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool)
        self.serial = next(_serials)  # unlike an id(), never reused after an engine is gone
        self.process = os.getpid()
        self.ids = itertools.count(1)
        self.requests = itertools.count(1)
        self.templates = itertools.count(1)
        self.forgotten = 0  # number of dropped templates; steps that use one cannot be replayed
        self.answers: dict[int, Any] = {}
        self.recorded = 0  # instructions
        self.settings: tuple = ()  # of the script, as last sent to the workers
        self.failures = Failures(self)
        self.regions = Regions(self)
        self._meshes: dict[tuple, Mesh] = {}
        pool.on_message = self._on_message
        pool.on_gone = self.failures.worker_gone
        pool.on_tick = self.failures.tick
        pool.on_broken = self.failures.broken
        pool.start()

    # ---- recording

    def mesh(self, workers: Iterable[int], shape: tuple[int, ...] = ()) -> Mesh:
        """Return the mesh of these workers, created on first use.

        Workers are ordered by id, in a line or in a grid of `shape`.
        """
        ids = tuple(sorted(workers))
        key = (ids, shape or (len(ids),))
        mesh = self._meshes.get(key)
        if mesh is None:
            mesh = self._meshes[key] = Mesh(len(self._meshes), *key)
            self.record("mesh", tuple(mesh), self.everyone)
        return mesh

    def new_template(self, name: str, args: tuple, kwargs: dict) -> int:
        number = next(self.templates)
        self.record("template", (number, name, args, kwargs), self.everyone)
        return number

    def forget_template(self, number: int) -> None:
        self.regions.forget()
        self.forgotten += 1
        self.record("forget", (number,), self.everyone)

    def record(
        self,
        kind: str,
        content: tuple,
        workers: tuple[int, ...],
        what: str = "",
        inputs: tuple[int, ...] = (),
        outputs: tuple[int, ...] = (),
        each: Sequence[tuple] = (),
    ) -> None:
        """Add one instruction for these workers; raises failures of earlier instructions.

        each: the content for each of the workers, if they differ.
        """
        self.recorded += 1
        with self.lock:
            self.failures.check(inputs)
            regions = self.regions
            new = HeldInstruction(kind, content, workers, what or kind, inputs, outputs, user_place())
            if regions.name is not None and kind not in _BESIDE_REGIONS:
                if regions.hold(new):
                    return
                regions.cut(f"it contains a {_WORDS.get(kind, kind)}")
            self.send(*new, each=each)

    # ---- replies

    def ask(
        self,
        kind: str,
        content: tuple,
        mesh: Mesh,
        what: str = "",
        inputs: tuple[int, ...] = (),
        outputs: tuple[int, ...] = (),
    ) -> Any:
        """Record an instruction that the mesh's first worker replies to, and return the reply."""
        request = next(self.requests)
        reporter = mesh.workers[0]
        self.record(kind, (*content, request, reporter), mesh.workers, what, inputs, outputs)
        self.flush()
        return self._wait(request)

    def ask_each(self, kind: str, contents: Sequence[tuple] = ()) -> list[Any]:
        """Ask every worker, each with its content if given; returns the replies in order of rank."""
        requests = [next(self.requests) for _ in self.everyone]
        with self.lock:
            for worker, request in zip(self.everyone, requests, strict=True):
                self.record(kind, (*(contents[worker] if contents else ()), request), (worker,))
            self.flush()
        return [self._wait(request) for request in requests]

    def synchronize(self) -> None:
        """Wait until every worker has finished everything recorded so far; raises failures."""
        self.ask_each("sync")
        with self.lock:
            self.forget_finished()
        self.failures.check(())

    def _wait(self, request: int) -> Any:
        while True:
            with self.news:
                if request in self.answers:
                    answer = self.answers.pop(request)
                    if isinstance(answer, NoAnswer):
                        raise WorkerFailed(f"{answer.why} ({user_place()})")
                    return answer
                if not self.failures.pending():
                    self.news.wait(0.5)
            self.failures.check(())
            if not self.pool.watched() and request not in self.answers:
                self.failures.broken(0, "the threads that listen to it have ended")

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
        elif kind == "seen":
            if self.watcher is not None:
                self.watcher.seen(worker, *message[1:])
        else:
            self.failures.broken(worker, f"it sent a message of an unknown kind ({str(kind)[:80]!r})")
        if kind in ("result", "failed") or (kind == "ack" and self.waits_for_room):
            with self.news:
                self.news.notify_all()

    # ---- adding workers, and forks

    def grow(self, devices: list[str]) -> None:
        """Add workers; existing values stay where they are."""
        self.synchronize()
        with self.lock:
            before = self.everyone
            meshes = [tuple(mesh) for mesh in self._meshes.values()]

            def meet(setup: dict) -> None:
                self.send("meet", (setup, meshes), before, "meet")
                self.flush()

            self.failures.more_workers(len(devices))
            self.done += [self.seq] * len(devices)
            self.pool.grow(devices, meet)
            self.everyone = tuple(range(self.pool.size))
            self.pace()
            self.send("meet", (None, meshes), self.everyone[len(before) :], "meet")
            # The new workers lack templates and regions, so all workers receive them again.
            self.regions.forget()
            self.send("forget_all", (), before, "forget_all")
            self.serial, self.settings = next(_serials), ()
        self.synchronize()

    def forked(self) -> None:
        """Mark this engine unusable in a fork of the script: the workers belong to the parent process."""
        self.lock, self.news = threading.RLock(), threading.Condition()
        self.failures.fatal = NoWorkers(
            "this process is a fork of the script, and the values are its parent's; fetch them "
            "before the fork with "
            "x.cpu(), or start a new process (spawn)"
        )
        self.pool.abandon()

    # ---- observation

    def watch(self, watcher: WorkerWatch | None) -> None:
        """Report instructions and workers' statistics to `watcher` from now on; None turns it off."""
        self.watcher = watcher
        for worker in self.everyone:
            self.pool.post(worker, dump(("watch", watcher is not None)))

    def meshes(self) -> list[tuple[int, ...]]:
        """Return the workers of every mesh in use, in order of mesh numbers."""
        return [mesh.workers for mesh in list(self._meshes.values())]

    # ---- shutdown

    @property
    def closed(self) -> bool:
        return self.failures.fatal is not None

    def stop(self) -> None:
        """Stop the workers. Tensors that are still alive cannot be used any more."""
        if self.process != os.getpid():
            return  # a fork of the script does not own the workers
        if self.failures.fatal is None:
            self.failures.fatal = NoWorkers("the workers were shut down; this tensor's values are gone")
            self.pool.stop()
        else:
            self.pool.kill()
