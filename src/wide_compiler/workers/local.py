"""Workers as processes on this machine, connected through the loopback interface."""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from .pool import START_SECONDS, ConnectedPool
from .shared_memory import make_folder
from .wire import dump
from .worker_errors import WorkerDied

_LEAVE_SECONDS = 2.0
_KILL_SECONDS = 10.0
_fork_server: subprocess.Popen | None = None


class LocalPool(ConnectedPool):
    """A pool of `len(devices)` local worker processes."""

    def __init__(self, devices: list[str], backend: str = "gloo", host: str = "127.0.0.1") -> None:
        super().__init__(len(devices))
        self._folder = tempfile.mkdtemp(prefix="wide_workers_")  # accessible to this user only
        self.payloads = make_folder()
        self._host, self._backend = host, backend
        self._open(host, self._setups(devices))

    def _setups(self, devices: list[str]) -> list[dict]:
        cores = len(os.sched_getaffinity(0))
        own = {
            "store": str(Path(self._folder) / f"store_{self.size}"),
            "backend": self._backend,
            "threads": int(os.environ.get("OMP_NUM_THREADS", 0)) or max(1, cores // self.size),
            "folders": [self._folder, self.payloads],
        }
        return [{**own, "device": device} for device in devices]

    def grow(self, devices: list[str], meet: Callable[[dict], None]) -> None:
        """Add workers; `meet(setup)` makes the running workers join the new process group."""
        self.size += len(devices)
        self._writing += [threading.Lock() for _ in devices]
        setups = self._setups(devices)
        self._open(self._host, setups, lambda: meet({**setups[0], "world": self.size}))

    def _launch(self, setups: list[dict]) -> None:
        for setup in setups:
            self.pids.append(_fork_worker(setup))

    def _failed_start(self) -> tuple[int, str] | None:
        dead = [rank for rank, pid in enumerate(self.pids) if not alive(pid)]
        return (dead[0], "see its output above") if dead else None

    def stop(self) -> None:
        """Ask the workers to leave; kill those still alive after two seconds."""
        self._stopping = True
        impatient = threading.Timer(_LEAVE_SECONDS, self._kill_workers)  # if a worker does not read
        impatient.daemon = True
        impatient.start()
        for worker in self._connections:
            self.post(worker, dump(("leave", None)))
        _wait_for_end(self.pids, _LEAVE_SECONDS)
        impatient.cancel()
        self.kill()

    def _kill_workers(self) -> None:
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _wait_for_end(self.pids, _KILL_SECONDS)

    def _remove(self) -> None:
        for folder in (self._folder, self.payloads):
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)


def alive(pid: int) -> bool:
    """Return whether a process with this id runs; a zombie does not count."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def _wait_for_end(pids: list[int], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.005)


def _fork_worker(setup: dict) -> int:
    global _fork_server
    if _fork_server is None or _fork_server.poll() is not None:
        source = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
        _fork_server = subprocess.Popen(
            [sys.executable, "-m", "wide_compiler.workers.fork_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C reaches only the script
            # Workers compile in their own process: a pool of compile processes could outlive them.
            env={**os.environ, "PYTHONPATH": path, "TORCHINDUCTOR_COMPILE_THREADS": "1"},
        )
    assert _fork_server.stdin is not None and _fork_server.stdout is not None
    _fork_server.stdin.write(json.dumps(setup) + "\n")
    _fork_server.stdin.flush()
    heard, _, _ = select.select([_fork_server.stdout], [], [], START_SECONDS)
    answer = _fork_server.stdout.readline() if heard else ""
    if not answer:
        raise WorkerDied("the process that starts workers ended; see its output above", setup["rank"])
    return int(answer)


def close_fork_server() -> None:
    """Stop the process that forks workers; the next pool starts another."""
    global _fork_server
    if _fork_server is not None:
        assert _fork_server.stdin is not None and _fork_server.stdout is not None
        _fork_server.stdin.close()
        _fork_server.stdout.close()
        try:
            _fork_server.wait(_KILL_SECONDS)
        except subprocess.TimeoutExpired:
            _fork_server.kill()
            _fork_server.wait()
        _fork_server = None


def abandon_fork_server() -> None:
    """In a fork of the script, drop the process that forks workers: it belongs to the parent."""
    global _fork_server
    if _fork_server is not None:
        for pipe in (_fork_server.stdin, _fork_server.stdout):
            with contextlib.suppress(OSError):
                os.close(pipe.fileno())  # type: ignore[union-attr]
        _fork_server.returncode = 0  # otherwise Popen would wait for it
        _fork_server = None
