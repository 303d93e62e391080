"""What a worker tells of itself while the script is being watched: how it is, and when it ran what."""

import os
from array import array
from collections import deque
from typing import Any

import torch

from .table import Table


def take_spans(spans: deque[tuple[float, float, float]]) -> bytes:
    """Remove the finished instructions from `spans`: (number, start, end) each, as packed doubles."""
    taken = array("d")
    for _ in range(len(spans)):  # those that end meanwhile are for the next time
        taken.extend(spans.popleft())
    return taken.tobytes()


def take_stats(worker: Table) -> dict[str, Any]:
    """Counters and sizes as they are now; read beside the running worker, which goes on."""
    cuda = worker.device.type == "cuda"
    return {
        "ops": sum(list(worker.instructions.values())),
        "bytes_sent": worker.bytes_sent,
        "live_tensors": len(worker.values),
        "memory": torch.cuda.memory_allocated(worker.device) if cuda else _resident(),
        "device": str(worker.device),
    }


def _resident() -> int:
    """Bytes of memory of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
