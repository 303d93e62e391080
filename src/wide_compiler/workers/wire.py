"""Messages between script and workers. A connection has proved the secret before anything is unpickled."""

import contextlib
import logging
import os
import pickle
import queue
import socket
import threading
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any

log = logging.getLogger(__name__)


def dump(message: Any) -> bytes:
    return pickle.dumps(message, 5)


def load(data: bytes) -> Any:
    return pickle.loads(data)


def send_at_once(connection: Connection) -> None:
    """No waiting for more to send: an answer that travels in two pieces would wait 40 ms between them."""
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        same.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class Door:
    """Listens for workers, and lets in those who know the secret."""

    def __init__(self, host: str, secret: bytes) -> None:
        self.secret = secret
        self.socket = socket.create_server((host, 0), backlog=64)
        self.address = self.socket.getsockname()
        self.admitted: queue.SimpleQueue[Connection] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            try:
                client, address = self.socket.accept()
            except OSError:
                return  # closed: all workers are here
            # A handshake each in a thread of its own: a silent stranger keeps nobody waiting.
            threading.Thread(target=self._check, args=(client, address), daemon=True).start()

    def _check(self, client: socket.socket, address: tuple) -> None:
        connection = Connection(client.detach())
        send_at_once(connection)
        try:
            deliver_challenge(connection, self.secret)
            answer_challenge(connection, self.secret)
        except (AuthenticationError, EOFError, OSError) as error:
            log.warning("refused a connection from %s:%s: wrong secret (%s)", *address[:2], error)
            connection.close()
            return
        self.admitted.put(connection)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # nobody is connected: nothing to shut down
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
