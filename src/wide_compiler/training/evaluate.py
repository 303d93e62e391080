"""Evaluation per lane over a data set, by functions that return one number per lane or by torchmetrics."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from .. import _tree
from ..errors import ArgumentError, InputError
from ..model import WideModel
from .data import as_source, make_batch, split_batch
from .lane_losses import check_lane_losses
from .random_state import untouched_random_state
from .step import autocast_to


def evaluate(
    wide: WideModel,
    metric: Any,
    data: Any,
    *,
    split: Callable[[Any], tuple[Any, tuple]] = split_batch,
    autocast: torch.dtype | None = None,
    leaving: Any = None,
) -> Any:
    """Return a metric over all samples, computed in evaluation mode: float64 `[N]` on the CPU.

    Training flags and random states are restored afterwards.

    Args:
        metric: `metric(output, *targets)` returns one number per lane `[N]`, averaged over batches weighted
            by size; or a torchmetrics object, copied per lane; or a dict of these, for which a dict is
            returned.
        data: as in `fit`: any iterable of batches, `Stacked`, `PerLane`, or a result of `fold_batches`.
        leaving: selects the lanes still in the model, if the data has more lanes than the model.
    """
    source = as_source(data, wide.n if leaving is None else leaving.total)
    metrics = named_metrics(metric)
    judges = {name: _by_lane(one, wide) for name, one in metrics.items()}
    flags = [(module, module.training) for module in wide.modules()]
    door = getattr(wide, source.door)
    samples = 0
    wide.eval()
    try:
        with torch.no_grad(), untouched_random_state(wide), autocast_to(autocast, wide):
            for raw in source:
                raw = raw if leaving is None else leaving.rows(raw, source.door)
                batch = make_batch(raw, split, wide._device(), source.door)
                output = door(*batch.args, **batch.kwargs)
                for judge in judges.values():
                    judge.update(output, batch.targets, batch.size, source.door)
                samples += batch.size
    finally:
        for module, training in flags:
            module.training = training
    if not samples:
        raise InputError("the validation data gave no batches; a generator can be read only once")
    found = {name: judge.compute() for name, judge in judges.items()}
    return found if isinstance(metric, Mapping) else found["validation"]


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
        self.total = self.total + values.detach().double() * size
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


def _is_object(metric: Any) -> bool:
    return all(hasattr(metric, name) for name in ("update", "compute", "reset", "clone"))


def _row(leaf: Any, lane: int) -> Any:
    return leaf[lane] if isinstance(leaf, Tensor) and leaf.dim() else leaf


def _by_lane(metric: Any, wide: WideModel) -> MeanByLane | ObjectByLane:
    return ObjectByLane(metric, wide.n, wide._device()) if _is_object(metric) else MeanByLane(metric, wide.n)
