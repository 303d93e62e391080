"""Look at the workers."""

from typing import Any

import torch

from . import plans, runtime, scope
from .tensor import SignalTensor


def worker_stats() -> list[dict[str, Any]]:
    """One dict for each worker: `instructions` by op, `bytes_sent`, `live_tensors`, and how ops ran
    (`ways`)."""
    engine = runtime.engine()
    engine.synchronize()
    return engine.ask_each("stats")


def placement(x: torch.Tensor) -> tuple[tuple[int, ...], str]:
    """The workers that hold a tensor, and how: `whole`, `R`, `S(axis)` or `P(sum)`."""
    if not isinstance(x, SignalTensor):
        raise ValueError(f"debug.placement: a tensor on workers is needed, got a {type(x).__name__}")
    mesh = x._ref.home.mesh
    held = x._ref.engine.ask("placement", (x._ref.number,), mesh, "placement", (x._ref.number,))
    return mesh.workers, held


def explain() -> dict[str, str]:
    """What became of each signal with `compile: true`."""
    regions = runtime.engine().regions
    said = {
        name: f"{shipped} region(s) shipped, replayed {regions.replays[name]} times"
        for name, shipped in regions.shipped.items()
    }
    said.update({name: f"runs uncompiled: {reason}" for name, reason in regions.reasons.items()})
    return said


def bookkeeping() -> dict[str, int]:
    """What the controller itself remembers: must stay flat over a long run."""
    engine = runtime.engine()
    engine.synchronize()
    return {
        "plans": plans.plan_count(),
        "ranges": scope.range_count(),
        "in_flight": len(engine.in_flight),
        "answers": len(engine.answers),
        "dead": len(engine.failures.dead),
    }
