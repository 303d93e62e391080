"""Inspection of workers, placements and compiled signals."""

from typing import Any

import torch

from ..errors import ArgumentError
from ..explain import Explanation, Row
from . import op_plans, runtime, scope
from .tensor import SignalTensor


def worker_stats() -> list[dict[str, Any]]:
    """Return one dict per worker: `instructions` by op, `bytes_sent`, `live_tensors`, `memory` in bytes.

    `ways` counts how ops ran.
    """
    engine = runtime.engine()
    engine.synchronize()
    return engine.ask_each("stats")


def placement(x: torch.Tensor) -> tuple[tuple[int, ...], str]:
    """Return the workers that hold a tensor, and its placement.

    `S(axis)`: cut along the axis; `R`: each worker has all of it; `P(sum)`: partial sums, still to be added;
    `whole`: on one worker. On a mesh of several dimensions, one entry for each.
    """
    if not isinstance(x, SignalTensor):
        raise ArgumentError(
            f"debug.placement: expected a tensor on workers (signals.tensor(x) makes one), "
            f"got a {type(x).__name__}"
        )
    mesh = x._ref.home.mesh
    held = x._ref.engine.ask("placement", (x._ref.number,), mesh, "placement", (x._ref.number,))
    return mesh.workers, held


def explain() -> Explanation:
    """Report for each signal with `compile: true` whether it is 'compiled' or runs as a 'loop' of ops."""
    regions = runtime.engine().regions
    tallies = [stats["regions"] for stats in worker_stats()]
    rows = []
    for name in sorted({*regions.shipped, *regions.reasons}):
        told = [tally[name] for tally in tallies if name in tally]
        parts = [f"{regions.shipped[name]} region(s) shipped, replayed {regions.replays[name]} times"]
        if name in regions.reasons:
            parts.append(f"cut in pieces: {regions.reasons[name]}")
        if told:
            first = next(worker for worker, tally in enumerate(tallies) if name in tally)
            parts.append(f"on worker {first} {told[0]['compiled']} compiled")
            parts += [
                f"not compiled: {reason}" for reason in sorted({t["reason"] for t in told if t["reason"]})
            ]
        how = "compiled" if told and told[0]["compiled"] else "loop"
        rows.append(Row(name, "signal", how, "; ".join(parts)))
    return Explanation(rows, name="signals")


def bookkeeping() -> dict[str, int]:
    """Return the sizes of the controller's tables; they must stay bounded over a long run."""
    engine = runtime.engine()
    engine.synchronize()
    return {
        "plans": op_plans.plan_count(),
        "ranges": scope.range_count(),
        "in_flight": len(engine.in_flight),
        "answers": len(engine.answers),
        "dead": len(engine.failures.dead),
    }
