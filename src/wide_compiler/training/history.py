"""What a training has seen: every lane's losses, and what became of each lane."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass
class Stop:
    """Why a lane no longer moves."""

    step: int
    reason: str

    def __str__(self) -> str:
        return f"step {self.step}: {self.reason}"


@dataclass(eq=False)
class History:
    """The result of `fit`.

    Attributes:
        n: how many lanes.
        losses: `[steps, N]`, as seen before each step; nan for lanes that have left the computation.
        validation: `[validations, N]`, of the metric that is judged by.
        metrics: name -> `[validations, N]`, of every metric.
        validated_at: the step of each validation.
        mode: whether the lowest ('min') or highest ('max') validation is the best.
        best: `[N]`, each lane's best validation while it learned (training loss of an epoch without one).
        best_step: `[N]`, the step of it; -1 if there was none.
        stopped: lanes that stopped before the end -> when and why.
        epochs: how many epochs were completed.
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
        """Lanes whose loss is not a finite number in some step that they took part in."""
        lanes = []
        for lane in range(self.n):
            upto = self.stopped[lane].step if lane in self.stopped else self.steps
            if self.steps and not bool(self.losses[:upto, lane].isfinite().all()):
                lanes.append(lane)
        return lanes

    @property
    def best_lane(self) -> int:
        """The lane with the best `best`, or if there is none yet, with the lowest last loss."""
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
        """For a checkpoint."""
        return {**vars(self), "stopped": {lane: vars(stop) for lane, stop in self.stopped.items()}}

    @classmethod
    def of_state(cls, state: dict[str, Any]) -> "History":
        return cls(**{**state, "stopped": {lane: Stop(**stop) for lane, stop in state["stopped"].items()}})
