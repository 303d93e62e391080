"""Moment: the argument of a callback of `fit`."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from .history import History
from .population import Population


@dataclass(frozen=True)
class Moment:
    """State of a training run, passed to callbacks.

    Attributes:
        event: 'step', 'validation', 'epoch' or 'end'.
        step, epoch: number completed.
        losses: `[N]`, of the last step.
        metrics: name -> `[N]`, of the last validation; empty before the first.
        validation: `[N]`, the last value of the monitored metric; None before the first validation.
        active: `[N]`, lanes that are still trained.
        total: number of steps planned; None if unknown.
        lanes: model, optimiser and active lanes; the one that `fit` was given, if it was a `Population`.
        history: the history so far; losses are added to it at intervals and at the end.
        stop: `stop(lanes, reason)` stops the training of these lanes.
    """

    event: str
    step: int
    epoch: int
    losses: Tensor
    metrics: dict[str, Tensor]
    validation: Tensor | None
    active: Tensor
    total: int | None
    lanes: Population
    history: History
    stop: Callable[..., None]
