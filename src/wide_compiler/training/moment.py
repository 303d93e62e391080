"""What a callback of `fit` sees."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from .history import History
from .stopped_lanes import Lanes


@dataclass(frozen=True)
class Moment:
    """Where a training is.

    Attributes:
        event: 'step', 'validation', 'epoch' or 'end'.
        step, epoch: how many are completed.
        losses: `[N]`, of the last step.
        metrics: name -> `[N]`, the latest; empty before the first validation.
        validation: `[N]`, the latest of the metric that is judged by; None before the first.
        active: `[N]`, which lanes still learn.
        total: how many steps there will be, None if nobody knows.
        lanes: the model, the optimiser and which lanes are active; the `Population`, if `fit` was given one.
        history: so far; losses are added to it now and then, and at the end.
        stop: `stop(lanes, reason)`: these lanes no longer move.
    """

    event: str
    step: int
    epoch: int
    losses: Tensor
    metrics: dict[str, Tensor]
    validation: Tensor | None
    active: Tensor
    total: int | None
    lanes: Lanes
    history: History
    stop: Callable[..., None]
