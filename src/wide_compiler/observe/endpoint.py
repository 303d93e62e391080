"""Where observers of a running script connect: a socket in a folder that only this user may enter.

Nothing is done while nobody is connected. Whoever connects gets frames, several times a second, until it
leaves; it sends nothing. A frame is a message of JSON and then the messages of bytes that it announces.
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
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ..workers.engine import Engine
from .watch import WorkerWatch

log = logging.getLogger(__name__)
_FRAME_SECONDS = 0.25


def folder() -> Path:
    """The folder of this user's sockets; made on first use."""
    path = Path(tempfile.gettempdir()) / f"wide_compiler-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) != 0o700 or not stat.S_ISDIR(found.st_mode):
        raise PermissionError(f"{path} is not a folder that only this user may enter")
    return path


class Endpoint:
    """The socket of one engine, and the threads that serve it.

    Args:
        engine: what is watched.
        label: (signal, pass) of what is being sent.
        about: what else a frame says, as JSON can say it.
        listen: called with True when the first observer comes, with False when the last has left.
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
        self._clients: list[tuple[Connection, int]] = []  # each with the number of names that it knows
        self._lock = threading.Lock()
        self._publishing = False
        self._process = os.getpid()
        self._listener = socket.socket(socket.AF_UNIX)
        new = self.path.with_suffix(".new")  # an observer removes sockets at which nobody listens
        new.unlink(missing_ok=True)
        self._listener.bind(str(new))
        self._listener.listen()
        new.rename(self.path)
        threading.Thread(target=self._accept, daemon=True, name="wide-observers").start()

    def remove(self) -> None:
        """Close the socket and leave the observers."""
        if os.getpid() == self._process:  # in a fork the socket is its parent's
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
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
        """Watch as long as somebody is connected."""
        watch = WorkerWatch(self.label)
        self.listen(True)
        self.engine.watch(watch)
        while True:
            time.sleep(_FRAME_SECONDS)
            frame = self._frame(watch)
            with self._lock:
                still = [(c, self._send(c, known, watch, *frame)) for c, known in self._clients]
                self._clients = [(c, known) for c, known in still if known is not None]
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
        """Send a frame; the number of names that the client knows now, None if it has left."""
        names = watch.names[known:]
        with contextlib.suppress(OSError):
            client.send_bytes(json.dumps({**head, "names": names}).encode())
            for part in parts:
                client.send_bytes(part)
            return known + len(names)
        client.close()
        return None
