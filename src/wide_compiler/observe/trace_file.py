"""Trace files: one line of JSON about the run, then one per instruction and worker."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import ArgumentError, MissingFileError
from .attach import Span, choose, frames
from .blocks import blocks

_HEAD = "wide_compiler_trace"


class WorkerTrace(NamedTuple):
    """`about`: fields of the last frame; `spans`: sorted by start."""

    about: dict[str, Any]
    spans: list[Span]


def record(seconds: float, folder: Path, pid: int | None = None) -> tuple[Path, int]:
    """Record the workers of a running script to a file. Returns the file and the number of spans."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe_{time.time_ns()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ArgumentError(f"cannot write traces to {folder}: {error.strerror}") from None
    pid, socket = choose(pid)
    spans: list[Span] = []
    about: dict[str, Any] = {}
    begin = time.time()
    # Workers report twice a second, so wait a little longer for the last spans.
    for frame in frames(socket):
        about = frame.about
        spans.extend(s for s in frame.spans if s.start - begin < seconds)
        if time.time() - begin > seconds + 1:
            break
    path = folder / f"trace_{pid}_{time.strftime('%H%M%S')}.log"
    write(path, WorkerTrace({**about, "seconds": seconds}, spans))
    return path, len(spans)


def write(path: Path, trace: WorkerTrace) -> None:
    with open(path, "w") as file:
        file.write(json.dumps({_HEAD: 1, **trace.about}) + "\n")
        for span in sorted(trace.spans, key=lambda s: s.start):
            file.write(json.dumps(span._asdict()) + "\n")


def read(paths: Iterable[Path]) -> WorkerTrace:
    """Read one trace from one or several files."""
    about: dict[str, Any] = {}
    spans: list[Span] = []
    for path in paths:
        if not path.is_file():
            raise MissingFileError(f"no trace at {path}")
        head, *lines = path.read_text().splitlines() or [""]
        try:
            found = json.loads(head)
            if _HEAD not in found:
                raise ValueError("it has another first line")
            about.update(found)
            spans.extend(Span(**json.loads(line)) for line in lines)
        except (ValueError, TypeError) as error:
            raise ArgumentError(f"{path} is not a trace of `wide_compiler signals trace`: {error}") from None
    if not spans:
        raise ArgumentError("the trace is empty: the workers ran nothing while it was recorded")
    return WorkerTrace(about, sorted(spans, key=lambda s: s.start))


def chrome(spans: Sequence[Span]) -> dict[str, Any]:
    """Chrome's trace format, for ui.perfetto.dev: one row per worker, with one slice per block of a signal
    and pass, and the instructions inside it."""
    zero = spans[0].start
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": w, "args": {"name": f"worker {w}"}}
        for w in sorted({s.worker for s in spans})
    ]
    events.insert(0, {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "wide_compiler signals"}})

    def event(name: str, kind: str, worker: int, start: float, end: float, **args: Any) -> None:
        times = {"ts": round((start - zero) * 1e6, 3), "dur": round((end - start) * 1e6, 3)}
        events.append({"ph": "X", "name": name, "cat": kind, "pid": 0, "tid": worker, **times, "args": args})

    for block in blocks(spans):
        event(block.name, block.way, block.worker, block.start, block.end, instructions=block.instructions)
    for s in spans:
        event(s.op, s.way, s.worker, s.start, s.end, signal=s.signal, number=s.seq, line=s.at)
    return {"traceEvents": events, "displayTimeUnit": "ms"}
