"""Statistics and timings that a worker reports while the script is observed."""

import os
from array import array
from collections import deque
from typing import Any

import torch

from .worker_state import WorkerState


def take_spans(spans: deque[tuple[float, float, float]]) -> bytes:
    """Remove the finished instructions from `spans`; returns (number, start, end) each, as packed doubles."""
    taken = array("d")
    for _ in range(len(spans)):  # fixed count: spans added meanwhile are taken next time
        taken.extend(spans.popleft())
    return taken.tobytes()


def take_stats(worker: WorkerState) -> dict[str, Any]:
    """Return current counters and sizes; reads a running worker without stopping it."""
    cuda = worker.device.type == "cuda"
    return {
        "ops": sum(list(worker.instructions.values())),
        "bytes_sent": worker.bytes_sent,
        "live_tensors": len(worker.values),
        "memory": torch.cuda.memory_allocated(worker.device) if cuda else _resident(),
        "device": str(worker.device),
    }


def _resident() -> int:
    """Return the resident memory of this process in bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
