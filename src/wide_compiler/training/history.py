"""History of a training run: losses per lane, and which lanes stopped early."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass
class Stop:
    """When and why a lane stopped."""

    step: int
    reason: str

    def __str__(self) -> str:
        return f"step {self.step}: {self.reason}"


@dataclass(eq=False)
class History:
    """The result of `fit`.

    Attributes:
        n: number of lanes.
        losses: `[steps, N]`, computed before each step; nan for lanes removed from the computation.
        validation: `[validations, N]`, the monitored metric.
        metrics: name -> `[validations, N]`, for every metric.
        validated_at: step of each validation.
        mode: whether the lowest ('min') or the highest ('max') value is best.
        best: `[N]`, best validation of each lane while it was trained (without validation data: the best
            training loss of an epoch).
        best_step: `[N]`, step of the best validation; -1 if there was none.
        stopped: lanes that stopped before the end -> when and why.
        epochs: number of completed epochs.
        ended: why the training ended.
    """

    n: int
    losses: Tensor = field(default_factory=lambda: torch.empty(0))
    validation: Tensor = field(default_factory=lambda: torch.empty(0))
    metrics: dict[str, Tensor] = field(default_factory=dict)
    mode: str = "min"
    validated_at: list[int] = field(default_factory=list)
    best: Tensor = field(default_factory=lambda: torch.empty(0))
    best_step: Tensor = field(default_factory=lambda: torch.empty(0))
    stopped: dict[int, Stop] = field(default_factory=dict)
    epochs: int = 0
    ended: str = ""

    @property
    def steps(self) -> int:
        return len(self.losses)

    @property
    def nan_lanes(self) -> list[int]:
        """Lanes with a non-finite loss in any step before they stopped."""
        lanes = []
        for lane in range(self.n):
            upto = self.stopped[lane].step if lane in self.stopped else self.steps
            if self.steps and not bool(self.losses[:upto, lane].isfinite().all()):
                lanes.append(lane)
        return lanes

    @property
    def best_lane(self) -> int:
        """The lane with the best `best`; if there is none yet, the lane with the lowest last loss."""
        if self.mode == "max" and bool(self.best.isfinite().any()):
            return int(self.best.nan_to_num(-float("inf"), -float("inf"), -float("inf")).argmax())
        values = self.best if bool(self.best.isfinite().any()) else self.losses[-1]
        return int(values.nan_to_num(float("inf"), float("inf")).argmin())

    def __str__(self) -> str:
        lines = [f"{self.steps} steps of {self.n} lanes, {self.epochs} epochs; {self.ended}"]
        if self.steps:
            last = self.losses[-1][~self.losses[-1].isnan()]
            last = last if len(last) else self.losses[-1]
            lines.append(f"loss: best {last.min():.4g}, median {last.median():.4g}, worst {last.max():.4g}")
        lines += [f"lane {lane} stopped at {stop}" for lane, stop in sorted(self.stopped.items())]
        return "\n".join(lines)

    def state(self) -> dict[str, Any]:
        """Return the history as plain values, for a checkpoint."""
        return {**vars(self), "stopped": {lane: vars(stop) for lane, stop in self.stopped.items()}}

    @classmethod
    def of_state(cls, state: dict[str, Any]) -> "History":
        return cls(**{**state, "stopped": {lane: Stop(**stop) for lane, stop in state["stopped"].items()}})
