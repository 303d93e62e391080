"""Processes on this machine: what happens to their connections."""

import threading
from multiprocessing.connection import Connection

from wide_compiler.workers.local import LocalPool


def test_no_connection_is_closed_under_a_writer(monkeypatch):
    """Its number may belong to another file by the time the bytes are written."""
    pool = LocalPool(["cpu"])
    pool.start()
    connection, (inside, go) = pool._connections[0], (threading.Event(), threading.Event())
    send = Connection._send

    def slowly(self, *given):
        if self is connection:
            inside.set()
            assert go.wait(60)
        return send(self, *given)

    monkeypatch.setattr(Connection, "_send", slowly)
    writer = threading.Thread(target=pool.post, args=(0, b"x"))
    writer.start()
    assert inside.wait(60)
    pool.kill()
    pool._reader.join(2)
    assert not connection.closed
    go.set()
    writer.join(60)
    pool._reader.join(60)
    assert connection.closed and not writer.is_alive()
