"""Every lane stops when it has stopped getting better, and may have its best weights back."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import ArgumentError


@dataclass(frozen=True)
class EarlyStop:
    """When a lane stops.

    Attributes:
        patience: so many validations (epochs, without validation data) in a row without a better one.
        min_delta: better means lower (with mode='max' higher) by more than this.
        restore: at the end every lane gets the weights and buffers of its best validation.
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
    """Each lane's best value so far, how long ago it was, and the tensors it had then."""

    def __init__(self, n: int, rule: EarlyStop | None, mode: str = "min"):
        self.rule, self.sign = rule, -1.0 if mode == "max" else 1.0
        self.value = torch.full((n,), self.sign * float("inf"), dtype=torch.float64)
        self.step = torch.full((n,), -1)
        self.waited = torch.zeros(n, dtype=torch.int64)
        self.tensors: dict[str, Tensor] = {}

    def update(
        self, values: Tensor, step: int, active: Tensor, tensors: Mapping[str, Tensor], kept: list[int]
    ) -> list[int]:
        """Take in one validation `[N]`; the active lanes whose patience is over.

        `tensors` have the lanes `kept`, among them all that are active.
        """
        values, active = values.detach().cpu().double(), active.cpu()
        margin = self.rule.min_delta if self.rule else 0.0
        better = active & (self.sign * values < self.sign * self.value - margin)  # never where a value is nan
        self.value = torch.where(better, values, self.value)
        self.step = torch.where(better, step, self.step)
        self.waited = torch.where(better, 0, self.waited + active.long())
        if self.rule is None:
            return []
        if self.rule.restore:
            self._keep(better, tensors, kept)
        return (active & (self.waited >= self.rule.patience)).nonzero().flatten().tolist()

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Every lane that had a best value gets the tensors it had then."""
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
