"""Who may give instructions: nobody without the secret of this run."""

import logging
import socket
import time
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client

import pytest

from wide_compiler.workers.wire import WorkerListener


@pytest.fixture
def door():
    door = WorkerListener("127.0.0.1", b"right")
    yield door
    door.close()


def test_the_right_secret(door):
    client = Client(door.address, authkey=b"right")
    admitted = door.admitted.get(timeout=120)
    client.send_bytes(b"hello")
    assert admitted.recv_bytes() == b"hello"


def test_a_wrong_secret_is_refused_and_logged(door, caplog):
    with caplog.at_level(logging.WARNING), pytest.raises((AuthenticationError, EOFError, OSError)):
        Client(door.address, authkey=b"wrong")
    deadline = time.monotonic() + 120
    while "wrong secret" not in caplog.text and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "refused a connection from 127.0.0.1" in caplog.text
    assert door.admitted.empty()


def test_a_silent_stranger_keeps_nobody_waiting(door):
    with socket.create_connection(door.address):
        Client(door.address, authkey=b"right")
        door.admitted.get(timeout=120)


def test_loopback_only(door):
    assert door.address[0] == "127.0.0.1"
