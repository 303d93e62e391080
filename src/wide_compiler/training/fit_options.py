"""FitOptions: the checked arguments of `fit`."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau

from ..errors import ArgumentError
from .data import Shared
from .early_stop import EarlyStop
from .lane_losses import check_loss

SCHEDULES = ("step", "epoch", "validation")


@dataclass(frozen=True)
class FitOptions:
    """Arguments of `fit`; see there."""

    loss: Callable[..., Tensor]
    metrics: dict[str, Any]
    monitor: str
    mode: str
    leave: bool
    data: Shared
    validation: Shared | None
    split: Callable[[Any], tuple[Any, tuple]]
    epochs: int | None
    steps: int | None
    validate_every: int | None
    early_stop: EarlyStop | None
    scheduler: Any
    schedule: str
    clip: float | None
    accumulate: int
    precision: str | None
    checkpoint: str | os.PathLike[str] | None
    checkpoint_every: int | None
    keep: int
    resume: bool | str
    callbacks: tuple[Callable[[Any], Any], ...]
    progress: bool | None

    def __post_init__(self) -> None:
        if self.epochs is None and self.steps is None:
            raise ArgumentError("fit needs an end: epochs=, steps= or both")
        for name in ("epochs", "steps", "validate_every", "accumulate", "checkpoint_every"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise ArgumentError(f"{name} must be a positive integer, got {value!r}")
        check_loss(self.loss)
        if self.monitor not in self.metrics:
            raise ArgumentError(f"monitor={self.monitor!r} is none of the metrics {', '.join(self.metrics)}")
        if self.mode not in ("min", "max"):
            raise ArgumentError(f"mode must be 'min' or 'max', got {self.mode!r}")
        if self.schedule not in SCHEDULES:
            raise ArgumentError(f"schedule must be one of {SCHEDULES}, got {self.schedule!r}")
        if self.early_stop is not None and not isinstance(self.early_stop, EarlyStop):
            raise ArgumentError(f"early_stop must be an EarlyStop or a number, got {self.early_stop!r}")
        if isinstance(self.scheduler, ReduceLROnPlateau):
            raise ArgumentError(
                "ReduceLROnPlateau looks at one number and moves all lanes' rates; give each lane its own: "
                "LaneSchedulers(optimizer, lambda o, lane: ReduceLROnPlateau(o)), schedule='validation'"
            )
        if self.resume not in (True, False, "auto"):
            raise ArgumentError(f"resume must be True, False or 'auto', got {self.resume!r}")
        if self.resume and self.checkpoint is None:
            raise ArgumentError("resume needs the folder of the checkpoints: checkpoint='...'")
        if self.validate_every is not None and self.validation is None:
            raise ArgumentError("validate_every needs data to validate with: validation=...")

    def total_steps(self) -> int | None:
        """Return the number of steps if no lane stops early; None if the data has no length."""
        try:
            batches = len(self.data)
        except TypeError:
            return self.steps
        by_epochs = None if self.epochs is None else self.epochs * -(-batches // self.accumulate)
        return min(x for x in (self.steps, by_epochs) if x is not None)
