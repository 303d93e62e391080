"""Workers as processes of this machine, on the loopback interface, with a secret made for each run."""

import contextlib
import json
import os
import queue
import secrets
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

from .errors import WorkerDied
from .memory import make_folder
from .wire import Door, dump, load

_START_SECONDS = 180.0
_TICK_SECONDS = 0.5
_nursery: subprocess.Popen | None = None


class LocalPool:
    """`len(devices)` worker processes.

    on_message(worker, message) and on_gone(worker) are called from the pool's own thread, and on_tick() every
    half second.
    """

    def __init__(self, devices: list[str], backend: str = "gloo", host: str = "127.0.0.1") -> None:
        self.size = len(devices)
        self.on_message: Callable[[int, tuple], None] = lambda worker, message: None
        self.on_gone: Callable[[int], None] = lambda worker: None
        self.on_tick: Callable[[], None] = lambda: None
        self._stopping = False
        self._folder = tempfile.mkdtemp(prefix="wide_workers_")  # only this user may enter
        self.payloads: str | None = make_folder()
        secret = secrets.token_bytes(32)
        door = Door(host, secret)
        cores = len(os.sched_getaffinity(0))
        threads = int(os.environ.get("OMP_NUM_THREADS", 0)) or max(1, cores // self.size)
        setups = [
            {
                "rank": rank,
                "world": self.size,
                "address": door.address[:2],
                "secret": secret.hex(),
                "store": str(Path(self._folder) / "store"),
                "device": device,
                "backend": backend,
                "interface": "lo",
                "threads": threads,
                "folders": [self._folder, self.payloads],
            }
            for rank, device in enumerate(devices)
        ]
        self.pids: list[int] = []
        self._connections: dict[int, Connection] = {}
        # A connection that is closed while somebody writes to it: its number may be another file's by then.
        self._writing = [threading.Lock() for _ in devices]
        self._reader = threading.Thread(target=self._read, daemon=True, name="wide-workers")
        try:
            for setup in setups:
                self.pids.append(_fork_worker(setup))
            self._admit(door)
        except BaseException:
            self.kill()
            raise
        finally:
            door.close()

    def _admit(self, door: Door) -> None:
        """Wait for every worker's greeting, and for all of them to have found each other."""
        deadline = time.monotonic() + _START_SECONDS
        while len(self._connections) < self.size:
            try:
                connection = door.admitted.get(timeout=0.2)
            except queue.Empty:
                self._check_start(deadline)
                continue
            kind, rank, _pid = load(connection.recv_bytes())
            assert kind == "hello"
            self._connections[rank] = connection
        for rank, connection in self._connections.items():
            while True:
                while not connection.poll(0.2):
                    self._check_start(deadline)
                try:
                    kind, *_ = load(connection.recv_bytes())
                except (EOFError, OSError):
                    raise WorkerDied(
                        f"worker {rank} died while starting; see its output above", rank
                    ) from None
                if kind == "ready":
                    break

    def _check_start(self, deadline: float) -> None:
        for rank, pid in enumerate(self.pids):
            if not alive(pid):
                raise WorkerDied(f"worker {rank} died while starting; see its output above", rank)
        if time.monotonic() > deadline:
            raise WorkerDied(f"workers did not start within {_START_SECONDS:.0f} s", 0)

    def start(self) -> None:
        """From here on messages are delivered."""
        self._reader.start()

    def post(self, worker: int, data: bytes) -> None:
        """Send a message. A worker that is gone is reported through `on_gone`, not here."""
        with self._writing[worker], contextlib.suppress(OSError):
            self._connections[worker].send_bytes(data)

    def _read(self) -> None:
        """Every moment here is one that the script's own thread waits for: no more than is needed."""
        try:
            self._listen()
        finally:
            self._close()

    def _listen(self) -> None:
        with selectors.DefaultSelector() as selector:
            for rank, connection in self._connections.items():
                selector.register(connection, selectors.EVENT_READ, rank)
            ticked = time.monotonic()
            while selector.get_map() and not self._stopping:
                for key, _ in selector.select(_TICK_SECONDS):
                    self._hear(selector, cast(Connection, key.fileobj), key.data)
                now = time.monotonic()
                if now - ticked >= _TICK_SECONDS:
                    ticked = now
                    self.on_tick()

    def _hear(self, selector: selectors.BaseSelector, connection: Connection, rank: int) -> None:
        try:
            message: Any = load(connection.recv_bytes())
        except (EOFError, OSError):
            selector.unregister(connection)
            if not self._stopping:  # else it was told to leave, or killed
                self.on_gone(rank)
            return
        self.on_message(rank, message)

    def stop(self) -> None:
        """Let the workers leave; who has not left within two seconds is killed."""
        self._stopping = True
        for worker in self._connections:
            self.post(worker, dump(("leave", None)))
        deadline = time.monotonic() + 2
        while any(map(alive, self.pids)) and time.monotonic() < deadline:
            time.sleep(0.005)
        self.kill()

    def kill(self) -> None:
        """End every worker now."""
        self._stopping = True
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while any(map(alive, self.pids)):
            time.sleep(0.005)
        self.pids = []
        if not self._reader.is_alive():  # it closes them itself, who reads them
            self._close()
        for folder in (self._folder, self.payloads):
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    def _close(self) -> None:
        for worker, connection in self._connections.items():
            with self._writing[worker]:
                connection.close()


def alive(pid: int) -> bool:
    """Is there a process with this id? (The nursery leaves no zombies.)"""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _fork_worker(setup: dict) -> int:
    global _nursery
    if _nursery is None or _nursery.poll() is not None:
        source = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
        _nursery = subprocess.Popen(
            [sys.executable, "-m", "wide_compiler.workers.nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C reaches the script alone
            # Workers compile within themselves: a pool of compilers could outlive them.
            env={**os.environ, "PYTHONPATH": path, "TORCHINDUCTOR_COMPILE_THREADS": "1"},
        )
    assert _nursery.stdin is not None and _nursery.stdout is not None
    _nursery.stdin.write(json.dumps(setup) + "\n")
    _nursery.stdin.flush()
    answer = _nursery.stdout.readline()
    if not answer:
        raise WorkerDied("the process that starts workers ended; see its output above", setup["rank"])
    return int(answer)


def close_nursery() -> None:
    """End the process that forks workers; the next pool starts another."""
    global _nursery
    if _nursery is not None:
        assert _nursery.stdin is not None and _nursery.stdout is not None
        _nursery.stdin.close()
        _nursery.stdout.close()
        _nursery.wait()
        _nursery = None
