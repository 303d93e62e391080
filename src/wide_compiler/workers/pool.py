"""Pool of workers reached through connections: handshake, sending, reading, shutdown.

`local.LocalPool` and `ray.RayPool` implement how workers are started and killed.
"""

import contextlib
import queue
import secrets
import select
import selectors
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, cast

from .stream import Pool
from .wire import WorkerListener, load
from .worker_errors import WorkerDied

START_SECONDS = 180.0
_TICK_SECONDS = 0.5


class ConnectedPool(Pool, ABC):
    """`size` workers that connect to this process and authenticate with the run's secret.

    on_message(worker, message), on_gone(worker) and on_broken(worker, why) are called from the reader thread;
    on_tick() is called every half second from a second thread, which also calls on_broken if the reader
    thread has ended.
    """

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._stopping = False
        self._connections: dict[int, Connection] = {}
        # Guards against closing a connection during a write, when its file descriptor may be reused.
        self._writing = [threading.Lock() for _ in range(size)]
        self._reader = threading.Thread(target=self._read, daemon=True, name="wide-workers")
        self._watch = threading.Thread(target=self._watch_over, daemon=True, name="wide-workers-watch")
        self._ended = threading.Event()

    @abstractmethod
    def _launch(self, setups: list[dict]) -> None:
        """Start one worker for each set-up."""

    @abstractmethod
    def _failed_start(self) -> tuple[int, str] | None:
        """Return the rank of a worker that ended before it was ready, and the reason; None if all run."""

    @abstractmethod
    def _kill_workers(self) -> None:
        """Kill every worker, and return when they have ended."""

    @abstractmethod
    def _remove(self) -> None:
        """Remove the pool's files and reservations outside its workers."""

    def _open(self, host: str, own: list[dict], present: Callable[[], None] = lambda: None) -> None:
        """Launch workers, each with its set-up, and wait until they are ready.

        present: called once all new workers have connected, so that the running workers can join them.
        """
        secret = secrets.token_bytes(32)
        listener = WorkerListener(host, secret)
        common = {"world": self.size, "address": listener.address[:2], "secret": secret.hex()}
        first = self.size - len(own)
        try:
            self._launch([{"rank": first + k, **common, **mine} for k, mine in enumerate(own)])
            self._admit(listener, range(first, self.size), present)
        except BaseException:
            self.kill()
            raise
        finally:
            listener.close()

    def _admit(self, listener: WorkerListener, ranks: range, present: Callable[[], None]) -> None:
        """Wait until these workers have connected and have joined their process group."""
        deadline = time.monotonic() + START_SECONDS
        pids = dict(enumerate(self.pids[: ranks.start]))
        new: dict[int, Connection] = {}
        while len(new) < len(ranks):
            try:
                connection = listener.admitted.get(timeout=0.2)
            except queue.Empty:
                self._check_start(deadline)
                continue
            kind, rank, pids[rank] = load(connection.recv_bytes())
            assert kind == "hello"
            new[rank] = connection
        self.pids = [pids[rank] for rank in range(self.size)]
        present()
        for rank, connection in new.items():
            kind = ""
            while kind != "ready":
                while not connection.poll(0.2):
                    self._check_start(deadline)
                try:
                    kind, *_ = load(connection.recv_bytes())
                except (EOFError, OSError):
                    raise WorkerDied(
                        f"worker {rank} died while starting; see its output above", rank
                    ) from None
        self._connections.update(new)

    def _check_start(self, deadline: float) -> None:
        failed = self._failed_start()
        if failed is not None:
            rank, why = failed
            raise WorkerDied(f"worker {rank} died while starting; {why}", rank)
        if time.monotonic() > deadline:
            missing = [rank for rank in range(self.size) if rank not in self._connections]
            raise WorkerDied(
                f"{len(missing)} of {self.size} workers did not connect within {START_SECONDS:.0f} s"
                if missing
                else f"the workers did not find each other within {START_SECONDS:.0f} s",
                missing[0] if missing else 0,
            )

    def start(self) -> None:
        self._reader.start()
        self._watch.start()

    def post(self, worker: int, data: bytes) -> None:
        with self._writing[worker], contextlib.suppress(OSError):
            self._connections[worker].send_bytes(data)

    def _read(self) -> None:
        """Read messages until the pool stops. It shares the GIL with the script, so it must stay short."""
        try:
            self._listen()
        except Exception as error:  # any error: nothing can be received any more
            self.on_broken(0, f"the thread that reads ended with {type(error).__name__}: {error}")
        finally:
            self._close()

    def _watch_over(self) -> None:
        while not self._ended.wait(_TICK_SECONDS):
            try:
                self.on_tick()
                if not self._reader.is_alive() and not self._stopping:
                    self.on_broken(0, "the thread that reads from the workers has ended")
            except Exception as error:
                self.on_broken(0, f"the watch over the workers failed with {type(error).__name__}: {error}")

    def watched(self) -> bool:
        return self._watch.is_alive() and self._reader.is_alive()

    def _listen(self) -> None:
        with selectors.DefaultSelector() as selector:
            heard: set[int] = set()
            while not self._stopping:
                for rank, connection in list(self._connections.items()):
                    if rank not in heard:  # new: at the start, or after `grow`
                        selector.register(connection, selectors.EVENT_READ, rank)
                        heard.add(rank)
                if not selector.get_map():
                    return
                for key, _ in selector.select(_TICK_SECONDS):
                    self._hear(selector, cast(Connection, key.fileobj), key.data)

    def _hear(self, selector: selectors.BaseSelector, connection: Connection, rank: int) -> None:
        try:
            message: Any = load(connection.recv_bytes())
        except (EOFError, OSError):
            selector.unregister(connection)
            if not self._stopping:  # otherwise it was asked to leave, or killed
                self.on_gone(rank)
            return
        except Exception as error:  # not a valid message
            selector.unregister(connection)
            self.on_broken(rank, f"it sent what cannot be read ({type(error).__name__}: {error})")
            return
        self.on_message(rank, message)

    def kill(self) -> None:
        self._stopping = True
        self._ended.set()
        self._kill_workers()
        self.pids = []
        if not self._reader.is_alive():  # otherwise the reader thread closes them
            self._close()
        self._remove()

    def wait_for_ends(self, seconds: float) -> None:
        """Wait until the peer processes have closed their connections, without reading from them."""
        waiting = select.poll()
        left = set()
        for worker, connection in self._connections.items():
            with self._writing[worker]:
                if not connection.closed:
                    left.add(connection.fileno())
                    waiting.register(connection.fileno(), select.POLLRDHUP)
        deadline = time.monotonic() + seconds
        while left and (rest := deadline - time.monotonic()) > 0:
            for number, _ in waiting.poll(1000 * rest):
                waiting.unregister(number)
                left.discard(number)

    def abandon(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self.pids, self._connections = [], {}

    def _close(self) -> None:
        for worker, connection in self._connections.items():
            with self._writing[worker]:
                connection.close()
