"""The observer's side: find running scripts, connect, and read their frames."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import ArgumentError
from .endpoint import folder

_REMEMBERED = 1 << 18  # instructions whose spans may still arrive


class Span(NamedTuple):
    """One instruction on one worker; `way` is forward, backward or no grad, times are epoch seconds."""

    worker: int
    seq: int
    op: str
    signal: str
    way: str
    at: str
    start: float
    end: float


class ObserverFrame(NamedTuple):
    """`about` has `time`, `pid`, `workers`, `meshes`, `signals`, `done`, `stats` by worker, `losses`."""

    about: dict[str, Any]
    spans: list[Span]


def running() -> dict[int, Path]:
    """This user's running scripts with workers: process id -> socket."""
    found = {}
    for path in sorted(folder().glob("*.sock")):
        try:
            Client(str(path), "AF_UNIX").close()
        except OSError:
            path.unlink(missing_ok=True)  # left behind by a killed script
        else:
            found[int(path.stem)] = path
    return found


def choose(pid: int | None) -> tuple[int, Path]:
    """(pid, socket) of the script with this process id, or of the only one; raises `ArgumentError`."""
    scripts = running()
    names = ", ".join(map(str, scripts)) or "none"
    if pid is not None:
        if pid not in scripts:
            raise ArgumentError(f"process {pid} has no workers to look at; running with workers: {names}")
        return pid, scripts[pid]
    if not scripts:
        raise ArgumentError(
            "no running script has workers; start one that uses wide_compiler.signals (as this user, and "
            "not with WIDE_COMPILER_WORKERS=0), then look again"
        )
    if len(scripts) > 1:
        raise ArgumentError(f"several scripts have workers: {names}; choose one with --pid")
    return next(iter(scripts.items()))


def frames(path: Path) -> Iterator[ObserverFrame]:
    """Yield frames of a script until it ends."""
    names: list[tuple[str, str, str, str]] = []
    sent: dict[int, int] = {}
    with Client(str(path), "AF_UNIX") as connection:
        try:
            while True:
                yield _read(connection, names, sent)
        except (EOFError, OSError):
            return


def _read(connection: Connection, names: list, sent: dict[int, int]) -> ObserverFrame:
    head = json.loads(connection.recv_bytes())
    names.extend(map(tuple, head.pop("names")))
    pairs = array("q", connection.recv_bytes())
    sent.update(zip(pairs[0::2], pairs[1::2], strict=True))
    spans: list[Span] = []
    for worker in head.pop("spans"):
        values = array("d", connection.recv_bytes())
        numbers = array("q", map(int, values[0::3]))
        spans += [
            Span._make((worker, seq, *names[number], start, end))
            for seq, start, end in zip(numbers, values[1::3], values[2::3], strict=True)
            # Skips instructions that were sent before the observer connected, or that only free memory.
            if (number := sent.get(seq)) is not None
        ]
    for seq in list(sent)[: max(0, len(sent) - _REMEMBERED)]:
        del sent[seq]
    return ObserverFrame(head, spans)
