"""Decides whether the run can continue after a failure.

If one worker raises alone, the next collective of the others would pair with the wrong one and give wrong
values. So a worker that fails halts. If every worker of the instruction fails there too, it is an error of
the program, and the stream continues without the values that the instruction should have made. Any other
failure ends the run.
"""

from __future__ import annotations

import copy
import os
import threading
import time
from typing import TYPE_CHECKING

from ..config import variable
from .wire import dump
from .worker_errors import WorkerDied, WorkerFailed, WorkerHung

if TYPE_CHECKING:
    from .engine import Engine
    from .stream import InFlight

_GRACE_SECONDS = 5.0


class Failures:
    """Failure state of a run.

    Attributes:
        fatal: the error that ended the run, or None.
        dead: ids of values that were never made, with the error that caused it.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.fatal: Exception | None = None
        self.dead: dict[int, WorkerFailed] = {}
        self.hang_seconds = float(os.environ.get(variable("HANG_SECONDS"), "600"))
        self.silence_seconds = float(os.environ.get(variable("SILENCE_SECONDS"), "60"))
        self._ended = False
        self._ending = threading.RLock()
        self._error: WorkerFailed | None = None  # raised at the next check
        self._reports: dict[int, tuple[int, str, str, str]] = {}
        self._first_report = 0.0
        self._current: list[int] = []
        self._heard: list[float] = []
        self._moved: list[float] = []
        self.more_workers(engine.pool.size)

    def pending(self) -> bool:
        return self.fatal is not None or self._error is not None

    def check(self, inputs: tuple[int, ...]) -> None:
        """Raise errors that arrived since the last call, and errors that made one of `inputs` unavailable."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if self.fatal is not None:
            raise copy.copy(self.fatal)  # with its own traceback
        if self.dead:
            for number in inputs:
                if number in self.dead:
                    raise copy.copy(self.dead[number])

    # ---- called from the pool's threads

    def progress(self, worker: int, seq: int) -> None:
        now = time.monotonic()
        self._heard[worker] = now
        if seq != self._current[worker]:
            self._current[worker] = seq
            self._moved[worker] = now
        if self._reports:
            self._judge()

    def worker_gone(self, worker: int) -> None:
        self._end(worker, f"died {self._where(worker)}{self.engine.pool.why_gone(worker)}")

    def broken(self, worker: int, why: str) -> None:
        self._end(worker, f"can no longer be heard {self._where(worker)}: {why}")

    def more_workers(self, count: int) -> None:
        now = time.monotonic()
        self._current += [0] * count
        self._heard += [now] * count
        self._moved += [now] * count

    def worker_failed(self, worker: int, seq: int, kind: str, text: str, trace: str) -> None:
        if not self._reports:
            self._first_report = time.monotonic()
        self._reports[worker] = (seq, kind, text, trace)
        self._current[worker] = seq
        self._judge()

    def tick(self) -> None:
        """End the run if a worker is silent or stuck at one instruction; called every half second."""
        if self.fatal is not None:
            return
        if self._reports:
            self._judge()
        now = time.monotonic()
        for worker, heard in enumerate(self._heard):
            silent = now - heard
            if silent > self.silence_seconds:
                return self._end(
                    worker, f"has been silent for {silent:.0f} s {self._where(worker)}", WorkerHung
                )
            busy, still = self._unfinished(worker) is not None, now - self._moved[worker]
            if busy and still > self.hang_seconds and worker not in self._reports:
                what = f"has been at one instruction for {still:.0f} s {self._where(worker)}"
                return self._end(worker, what, WorkerHung)
            if not busy:
                self._moved[worker] = now

    def _judge(self) -> None:
        """Continue if all workers of the failed instruction failed there; end the run if one did not."""
        worker, (seq, kind, text, trace) = min(self._reports.items(), key=lambda r: r[1][0])
        instruction = self._find(seq)
        if instruction is None or self.fatal is not None:
            return
        alike = [w for w in instruction.workers if w in self._reports and self._reports[w][0] == seq]
        if len(alike) == len(instruction.workers):
            self._forgive(instruction, kind, text)
            return
        done = self.engine.done
        past = [w for w in instruction.workers if self._current[w] > seq or done[w] >= seq]
        waited = time.monotonic() - max(self._first_report, *[self._moved[w] for w in instruction.workers])
        if past or waited > _GRACE_SECONDS:  # a worker may still be on its way to the instruction
            what = f"alone failed in {instruction.what} at {instruction.place} ({kind}: {text}); the workers"
            self._end(worker, f"{what} no longer agree and were stopped", trace=f"\n{trace}")

    def _forgive(self, failed: InFlight, kind: str, text: str) -> None:
        """Mark the values that depend on a program's error as dead, and let the workers continue."""
        error = WorkerFailed(f"{kind} in {failed.what} at {failed.place}: {text}")
        dead = set(failed.outputs) or set(failed.inputs[:1])
        for later in list(self.engine.in_flight):
            if later.seq > failed.seq and dead.intersection(later.inputs):
                dead.update(later.outputs)
        for number in dead:
            self.dead[number] = error
        self._error = self._error or error
        verdict = dump(("verdict", "go on"))
        for worker in failed.workers:
            del self._reports[worker]
            self.engine.pool.post(worker, verdict)

    # ---- ending the run, and error texts

    def _end(self, worker: int, what: str, kind: type[WorkerDied] = WorkerDied, trace: str = "") -> None:
        with self._ending:
            if not self._ended:
                self._ended = True  # later errors are consequences of the first
                self.engine.pool.kill()  # first, so that no process is left when the error is seen
                self.fatal = kind(f"worker {worker} {what}; {_REMEDY}{trace}", worker)
        with self.engine.news:
            self.engine.news.notify_all()

    def _find(self, seq: int) -> InFlight | None:
        return next((i for i in list(self.engine.in_flight) if i.seq == seq), None)

    def _unfinished(self, worker: int) -> InFlight | None:
        done = self.engine.done[worker]
        return next((i for i in list(self.engine.in_flight) if i.seq > done and worker in i.workers), None)

    def _where(self, worker: int) -> str:
        instruction = self._find(self._current[worker]) or self._unfinished(worker)
        if instruction is None:
            return "between instructions"
        line = instruction.place or "no line"
        return f"at or after instruction {instruction.seq}, {instruction.what}, of {line}"


_REMEDY = "wide_compiler.signals.restart(checkpoint) brings the workers back"
