"""Messages between script and workers; a connection is authenticated before anything is unpickled."""

import contextlib
import fcntl
import logging
import os
import pickle
import queue
import socket
import struct
import threading
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any, NamedTuple

log = logging.getLogger(__name__)
_LOST_SECONDS = 8
_SIOCGIFADDR = 0x8915  # Linux ioctl: address of an interface


class NoAnswer(NamedTuple):
    """Sent instead of a reply that cannot be pickled."""

    why: str


def dump(message: Any) -> bytes:
    return pickle.dumps(message, 5)


def load(data: bytes) -> Any:
    return pickle.loads(data)


def tune(connection: Connection) -> None:
    """Set the socket options of a connection between script and worker.

    No delay: a message in two pieces would wait 40 ms between them. Keep-alive: a peer whose machine is
    unreachable counts as gone after `_LOST_SECONDS`; the kernel answers for a busy process.
    """
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        same.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        same.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (
            ("TCP_KEEPIDLE", 2),
            ("TCP_KEEPINTVL", 1),
            ("TCP_KEEPCNT", _LOST_SECONDS - 2),
            ("TCP_USER_TIMEOUT", 1000 * _LOST_SECONDS),
        ):
            if hasattr(socket, option):  # Linux has all four
                same.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def own_address(connection: Connection) -> str:
    """Return this machine's address on the route to the peer."""
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        return same.getsockname()[0]


def interface_of(address: str) -> str | None:
    """Return the name of the network interface with this IPv4 address, or None."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # interface without an address
                found = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name[:15].encode()))
                if socket.inet_ntoa(found[20:24]) == address:
                    return name
    return None


class WorkerListener:
    """Listens for workers and admits those that know the secret."""

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
                return  # closed: all workers are connected
            # Each handshake has its own thread, so that a silent client blocks no one.
            threading.Thread(target=self._check, args=(client, address), daemon=True).start()

    def _check(self, client: socket.socket, address: tuple) -> None:
        connection = Connection(client.detach())
        tune(connection)
        try:
            deliver_challenge(connection, self.secret)
            answer_challenge(connection, self.secret)
        except (AuthenticationError, EOFError, OSError) as error:
            log.warning("refused a connection from %s:%s: wrong secret (%s)", *address[:2], error)
            connection.close()
            return
        self.admitted.put(connection)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # not connected: nothing to shut down
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
