"""Early stopping per lane, optionally restoring each lane's best weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import ArgumentError


@dataclass(frozen=True)
class EarlyStop:
    """Rule for stopping a lane.

    Attributes:
        patience: number of validations (epochs if there is no validation data) in a row without improvement.
        min_delta: an improvement must exceed this difference.
        restore: at the end, restore the weights and buffers of each lane's best validation.
    """

    patience: int = 5
    min_delta: float = 0.0
    restore: bool = True

    def __post_init__(self) -> None:
        if type(self.patience) is not int or self.patience < 1:
            raise ArgumentError(f"patience must be a positive integer, got {self.patience!r}")
        if not self.min_delta >= 0:
            raise ArgumentError(f"min_delta must not be negative, got {self.min_delta!r}")


class Best:
    """Per lane: the best value so far, validations since then, and the tensors at that time."""

    def __init__(self, n: int, rule: EarlyStop | None, mode: str = "min"):
        self.rule, self.sign = rule, -1.0 if mode == "max" else 1.0
        self.value = torch.full((n,), self.sign * float("inf"), dtype=torch.float64)
        self.step = torch.full((n,), -1)
        self.waited = torch.zeros(n, dtype=torch.int64)
        self.tensors: dict[str, Tensor] = {}

    def update(
        self, values: Tensor, step: int, active: Tensor, tensors: Mapping[str, Tensor], kept: list[int]
    ) -> list[int]:
        """Record one validation, `[N]`, and return the active lanes whose patience has run out.

        `tensors` hold the lanes `kept` on axis 0; these include all active lanes.
        """
        values, active = values.detach().cpu().double(), active.cpu()
        margin = self.rule.min_delta if self.rule else 0.0
        better = active & (self.sign * values < self.sign * self.value - margin)  # False for nan
        self.value = torch.where(better, values, self.value)
        self.step = torch.where(better, step, self.step)
        self.waited = torch.where(better, 0, self.waited + active.long())
        if self.rule is None:
            return []
        if self.rule.restore:
            self._keep(better, tensors, kept)
        return (active & (self.waited >= self.rule.patience)).nonzero().flatten().tolist()

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy each lane's best tensors into `tensors`, in place; skip lanes without a best value."""
        lanes = (self.step >= 0).nonzero().flatten()
        with torch.no_grad():
            for path, kept in self.tensors.items():
                target = tensors[path]
                index = lanes.to(target.device)
                target[index] = kept.to(target)[index]

    def _keep(self, better: Tensor, tensors: Mapping[str, Tensor], kept: list[int]) -> None:
        lanes = better.nonzero().flatten().tolist()
        positions = [kept.index(lane) for lane in lanes]
        for path, tensor in tensors.items():
            if path not in self.tensors:
                self.tensors[path] = tensor.new_zeros(len(better), *tensor.shape[1:])
            self.tensors[path][lanes] = tensor.detach()[positions]

    def state(self) -> dict[str, Any]:
        return {"value": self.value, "step": self.step, "waited": self.waited, "tensors": self.tensors}

    def load(self, state: Mapping[str, Any], device: torch.device) -> None:
        self.value, self.step, self.waited = state["value"], state["step"], state["waited"]
        self.tensors = {path: tensor.to(device) for path, tensor in state["tensors"].items()}
