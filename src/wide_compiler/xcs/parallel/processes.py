"""Processes for what computes: worker processes that are started once, or Ray where one is connected."""

import atexit
import itertools
import os
import pickle
import struct
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..config import cores
from ..work import Bail
from . import process_state, ray_workers
from .shipping import NotSendable, Packer
from .thread_state import flushing
from .threads import startable

if TYPE_CHECKING:
    from ..work import Work

START_SECONDS = 1.0  # to start workers, which import NumPy
CHUNKS = 4  # for each worker: late ones are made up for
_workers: list["_Worker"] = []
_feeders: list[ThreadPoolExecutor] = []
_lock = threading.Lock()


class _Worker:
    """One process, answering one chunk at a time."""

    def __init__(self) -> None:
        path = os.pathsep.join(p for p in sys.path if p)
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(Path(__file__).with_name("worker.py"))]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, stderr=subprocess.DEVNULL
        )
        self.busy = threading.Lock()

    def answer(self, payload: bytes) -> bytes:
        with self.busy:
            assert self.process.stdin is not None and self.process.stdout is not None
            self.process.stdin.write(struct.pack("<Q", len(payload)) + payload)
            self.process.stdin.flush()
            head = self.process.stdout.read(8)
            if len(head) != 8:
                raise Bail("a worker process ended")
            return self.process.stdout.read(struct.unpack("<Q", head)[0])


def _started() -> list[_Worker]:
    with _lock:
        if not _workers or any(w.process.poll() is not None for w in _workers):
            close()
            _workers.extend(_Worker() for _ in range(cores()))
            _feeders.append(ThreadPoolExecutor(len(_workers), thread_name_prefix="xcs-feed"))
        return _workers


@atexit.register
def close() -> None:
    """End the worker processes; they are started again when needed."""
    for worker in _workers:
        worker.process.terminate()
        worker.process.communicate()  # closes what leads to it, and waits
    for feeder in _feeders:
        feeder.shutdown(wait=False)
    _workers.clear()
    _feeders.clear()


def _forget() -> None:
    """The workers of a process are not those of what it forks."""
    global _lock
    _lock = threading.Lock()
    _workers.clear()
    _feeders.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def idle_cores() -> float:
    """Cores that were idle since the last look, or busy for us; by the load of the last minute where that
    cannot be told."""
    try:
        with open("/proc/stat") as stat:
            counts = [int(c) for c in stat.readline().split()[1:]]
        ours = sum(map(_worked, _workers))
    except (OSError, ValueError, IndexError):
        return cores() - os.getloadavg()[0] if hasattr(os, "getloadavg") else cores() - 1
    idle, total = counts[3] + counts[4] + ours, sum(counts[:8])
    idle_before, total_before = _seen.get("stat", (0, 0))
    if total - total_before >= 20:  # hundredths of a second: fewer tell nothing
        _seen["stat"] = (idle, total)
        _seen["idle"] = (os.cpu_count() or 1) * (idle - idle_before) / (total - total_before)
    return min(_seen.get("idle", 0.0), cores())


def _worked(worker: _Worker) -> int:
    """What a worker has computed, in the units of `/proc/stat`."""
    with open(f"/proc/{worker.process.pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


_seen: dict[str, Any] = {}


def able(work: "Work") -> bool:
    if work.events or "no processes" in work.plan.memory or (cores() < 2 and not ray_workers.connected()):
        return False
    if not startable() or flushing():
        return False
    if work.plan.texts.recursive and work.plan.texts.tries:  # how deep it may go is not the same elsewhere
        return False
    return type(work.items.columns[0][0]).__module__ not in ("torch", "torch.nn.parameter")


def pays(work: "Work", plain_seconds: float) -> bool:
    """Items must be worth sending, and the workers worth starting."""
    if work.plan.ledger.plain_item < 1e-4:
        return False
    if ray_workers.connected():
        started, start_seconds = ray_workers.started(), ray_workers.START_SECONDS
    elif idle_cores() < 0.5:  # beside the one that runs the plain loop
        return False
    else:
        started, start_seconds = bool(_workers), START_SECONDS
    return plain_seconds > 0.02 if started else plain_seconds + work.plan.ledger.spent > start_seconds


def at_best(plain_seconds: float) -> float:
    """All cores busy, and nothing lost on the way."""
    return plain_seconds / (ray_workers.count() if ray_workers.connected() else cores())


def distributed(work: "Work") -> list[Any]:
    """The values of all items, in order, computed by other processes. Raises `Bail`."""
    rows = list(work.items.rows())
    if any(type(c) is np.ndarray and c.dtype.hasobject for row in rows for c in row):
        raise Bail("arrays of objects")
    by_ray = ray_workers.connected()
    workers = ray_workers.count() if by_ray else len(_started())
    size = max(1, -(-len(rows) // (CHUNKS * workers)))
    chunks = [rows[i : i + size] for i in range(0, len(rows), size)]
    state = process_state.current()
    try:
        pack = Packer()
        payloads = [pack((state, work.body, work.cond, chunk)) for chunk in chunks]
    except NotSendable as reason:
        work.plan.memory["no processes"] = str(reason)
        raise Bail(str(reason)) from None
    answers = ray_workers.answers(payloads) if by_ray else _by_workers(payloads)
    values: list[Any] = []
    for answer in answers:
        found = pickle.loads(answer)
        if found is None:
            raise Bail("an item raised, or gave something that cannot be sent back as it is")
        values += [v for added in found for v in added]
    return values


def _by_workers(payloads: list[bytes]) -> list[bytes]:
    workers = _started()
    waiting = iter(enumerate(payloads))
    answers: list[bytes] = [b""] * len(payloads)
    taking = threading.Lock()

    def feed(worker: _Worker) -> None:
        while True:
            with taking:
                following = next(waiting, None)
            if following is None:
                return
            answers[following[0]] = worker.answer(following[1])

    jobs = [_feeders[0].submit(feed, worker) for worker in itertools.islice(workers, len(payloads))]
    for job in jobs:
        try:
            job.result()
        except OSError as error:
            raise Bail(f"a worker process ended: {error}") from None
    return answers
