"""What observers of this script see of signals and lanes; active while workers run."""

from __future__ import annotations

import logging
import os
import time
from typing import Any

import torch

from ..observe.endpoint import Endpoint
from ..training import progress_line
from . import runtime, scope, signal_config

log = logging.getLogger(__name__)


class LaneLosses:
    """The latest losses of a population in training: a callback of `fit`, registered while observed."""

    def __init__(self) -> None:
        self.latest: dict[str, Any] | None = None
        self._at = 0.0

    def told(self, moment: progress_line.Moment) -> None:
        now = time.monotonic()
        if moment.event == "end" or (
            moment.event == "step" and now - self._at > progress_line.SECONDS_BETWEEN
        ):
            self._at = now
            losses, active = moment.losses.detach().cpu().tolist(), moment.active.cpu().tolist()
            self.latest = {"step": moment.step, "losses": losses, "active": active}

    def listen(self, on: bool) -> None:
        if on:
            progress_line.listeners.append(self.told)
        elif self.told in progress_line.listeners:
            progress_line.listeners.remove(self.told)


def label() -> tuple[str, str]:
    """Return the signal and the pass of the op that is being recorded."""
    if torch._C._current_graph_task_id() != -1:
        node = torch._C._current_autograd_node()
        placement = None if node is None else scope.backward_placement(node._sequence_nr())
        return (placement.name if placement is not None else scope.lanes_of.get(), "backward")
    placement, lanes = scope.current(), scope.lanes_of.get()
    # A wide model's graph is recorded inside an autograd function, where gradients are off.
    forward = torch.is_grad_enabled() or lanes
    return placement.name if placement is not None else lanes, "forward" if forward else "no grad"


def open_endpoint() -> Endpoint | None:
    """Open the socket for observers of the engine that has just started; None if there can be none."""
    engine = runtime.running()
    assert engine is not None
    if runtime.in_process():
        return None
    losses = LaneLosses()

    def about() -> dict[str, Any]:
        signals = {
            name: list(found.shard.workers)
            for name, found in sorted(signal_config.signals().items())
            if found.shard is not None
        }
        return {"pid": os.getpid(), "signals": signals, "losses": losses.latest}

    try:
        return Endpoint(engine, label, about, losses.listen)
    except OSError as error:  # the script must run even if it cannot be observed
        log.warning("this run cannot be watched: %s", error)
        return None


runtime.while_running.append(open_endpoint)
