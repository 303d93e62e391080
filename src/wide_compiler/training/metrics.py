"""Validation metrics by name: functions that return one number per lane, or torchmetrics objects."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from .. import _tree
from ..errors import ArgumentError
from .lane_losses import check_lane_losses


def named_metrics(metric: Any, loss: Callable[..., Tensor] | None = None) -> dict[str, Any]:
    """Return name -> metric; a single metric, or the loss, is named 'validation'."""
    metrics = dict(metric) if isinstance(metric, Mapping) else {"validation": metric or loss}
    for name, one in metrics.items():
        if not (callable(one) or _is_object(one)):
            raise ArgumentError(f"metric {name!r} must be a function or a torchmetrics object, got {one!r}")
    if not metrics:
        raise ArgumentError("metric is an empty dict; leave it out to validate the loss")
    return metrics


class MeanByLane:
    """Mean of `metric(output, *targets)`, `[N]`, over samples."""

    def __init__(self, metric: Callable[..., Tensor], n: int):
        self.metric, self.n, self.samples = metric, n, 0
        self.total: Any = 0.0

    def update(self, output: Any, targets: tuple, size: int, door: str) -> None:
        values = check_lane_losses(self.metric(output, *targets), self.n)
        self.total = self.total + values.double() * size
        self.samples += size

    def compute(self) -> Tensor:
        return (self.total / self.samples).cpu()


class ObjectByLane:
    """One torchmetrics object per lane, updated with that lane's output and targets."""

    def __init__(self, metric: Any, n: int, device: torch.device):
        self.objects = [metric.clone().to(device) for _ in range(n)]
        for one in self.objects:
            one.reset()

    def update(self, output: Any, targets: tuple, size: int, door: str) -> None:
        for lane, one in enumerate(self.objects):
            row = functools.partial(_row, lane=lane)
            own = targets if door == "shared" else _tree.tree_map(row, targets)
            one.update(_tree.tree_map(row, output), *own)

    def compute(self) -> Tensor:
        return torch.stack([torch.as_tensor(one.compute()).double().cpu() for one in self.objects])


def by_lane(metric: Any, n: int, device: torch.device) -> MeanByLane | ObjectByLane:
    return ObjectByLane(metric, n, device) if _is_object(metric) else MeanByLane(metric, n)


def _is_object(metric: Any) -> bool:
    return all(hasattr(metric, name) for name in ("update", "compute", "reset", "clone"))


def _row(leaf: Any, lane: int) -> Any:
    return leaf[lane] if isinstance(leaf, Tensor) and leaf.dim() else leaf
