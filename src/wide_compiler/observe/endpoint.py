"""The socket at which observers of a running script connect, in a folder that only this user may enter.

Nothing is recorded while no observer is connected. A connected observer receives several frames a second
and sends nothing. A frame is one JSON message, followed by the binary messages that it lists.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import stat
import tempfile
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ..workers.callsite import CallSite
from ..workers.engine import Engine

log = logging.getLogger(__name__)
_FRAME_SECONDS = 0.25
_KEPT = 1 << 20  # limit of collected instructions
_KEPT_PARTS = 4096  # limit of collected span messages


class WorkerWatch:
    """Collects sent instructions and the workers' spans while an observer is connected.

    Recording an instruction costs the script about a microsecond, because it stores numbers instead of names;
    `attach` joins them with the workers' times in the observer. `label()` returns (signal, pass) of the
    instruction being sent.
    """

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


def folder() -> Path:
    """Return the folder of this user's sockets; it is created on first use."""
    path = Path(tempfile.gettempdir()) / f"wide_compiler-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) != 0o700 or not stat.S_ISDIR(found.st_mode):
        raise PermissionError(f"{path} is not a folder that only this user may enter; remove it")
    return path


class Endpoint:
    """The socket of one engine, and the threads that serve it.

    Args:
        engine: the engine to observe.
        label: returns (signal, pass) of the instruction being sent.
        about: returns further fields of a frame, as JSON types.
        listen: called with True when the first observer connects, with False when the last one leaves.
    """

    def __init__(
        self,
        engine: Engine,
        label: Callable[[], tuple[str, str]],
        about: Callable[[], dict[str, Any]],
        listen: Callable[[bool], None],
    ) -> None:
        self.engine, self.label, self.about, self.listen = engine, label, about, listen
        self.path = folder() / f"{os.getpid()}.sock"
        self._clients: list[tuple[Connection, int]] = []  # each with the number of names it has received
        self._lock = threading.Lock()
        self._publishing = False
        self._process = os.getpid()
        self._listener = socket.socket(socket.AF_UNIX)
        new = self.path.with_suffix(".new")  # renamed once it listens: observers delete dead sockets
        new.unlink(missing_ok=True)
        self._listener.bind(str(new))
        self._listener.listen()
        new.rename(self.path)
        threading.Thread(target=self._accept, daemon=True, name="wide-observers").start()

    def remove(self) -> None:
        """Close the socket and disconnect the observers."""
        if os.getpid() == self._process:  # a fork must not remove its parent's socket
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread
            self.path.unlink(missing_ok=True)
        self._listener.close()
        with self._lock:
            for client, _ in self._clients:
                client.close()
            self._clients = []

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            with self._lock:
                self._clients.append((Connection(client.detach()), 0))
                if not self._publishing:
                    self._publishing = True
                    threading.Thread(target=self._publish, daemon=True, name="wide-frames").start()

    def _publish(self) -> None:
        """Send frames while an observer is connected."""
        watch = WorkerWatch(self.label)
        self.listen(True)
        self.engine.watch(watch)
        while True:
            time.sleep(_FRAME_SECONDS)
            frame = self._frame(watch)
            with self._lock:
                sent = [(c, self._send(c, known, watch, *frame)) for c, known in self._clients]
                self._clients = [(c, known) for c, known in sent if known is not None]
                if not self._clients:
                    self._publishing = False
                    break
        self.listen(False)
        if not self.engine.closed:
            self.engine.watch(None)

    def _frame(self, watch: WorkerWatch) -> tuple[dict[str, Any], list[bytes]]:
        sent, spans = watch.take()
        head = {
            **self.about(),
            "time": time.time(),
            "workers": len(self.engine.everyone),
            "meshes": self.engine.meshes(),
            "done": list(self.engine.done),
            "stats": watch.stats,
            "spans": [worker for worker, _ in spans],
        }
        return head, [sent, *[part for _, part in spans]]

    def _send(
        self, client: Connection, known: int, watch: WorkerWatch, head: dict, parts: list
    ) -> int | None:
        """Send a frame; return the number of names the client has received, None if it has disconnected."""
        names = watch.names[known:]
        with contextlib.suppress(OSError):
            client.send_bytes(json.dumps({**head, "names": names}).encode())
            for part in parts:
                client.send_bytes(part)
            return known + len(names)
        client.close()
        return None
