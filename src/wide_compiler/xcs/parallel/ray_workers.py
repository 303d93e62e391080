"""Ray's workers, where the program has connected to a Ray. It is never imported or started from here."""

import sys
from typing import Any

from .receiving import run_chunk

START_SECONDS = 4.0  # to start its workers, which import PyTorch with this package
_met: set[Any] = set()  # connections whose workers have


def connected() -> bool:
    ray = sys.modules.get("ray")
    # A module that is being imported, or another one of that name, has no such function.
    return bool(getattr(ray, "is_initialized", bool)())


def started() -> bool:
    """Has this connection run chunks before?"""
    return _connection() in _met


def count() -> int:
    """How many chunks the cluster runs at a time."""
    ray: Any = sys.modules["ray"]
    return max(int(ray.cluster_resources().get("CPU", 1)), 1)


def answers(payloads: list[bytes]) -> list[bytes]:
    """Of all chunks, in order. What goes wrong there is raised here, as an error of Ray's."""
    ray: Any = sys.modules["ray"]
    remote = ray.remote(run_chunk)
    found = ray.get([remote.remote(payload) for payload in payloads])
    _met.add(_connection())
    return found


def _connection() -> Any:
    ray: Any = sys.modules["ray"]
    context = ray.get_runtime_context()
    return context.gcs_address, context.get_job_id()
