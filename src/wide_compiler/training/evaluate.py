"""A number for every lane over a whole set of batches."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from ..model import WideModel
from .data import as_source, make_batch, split_batch
from .losses import check_lane_losses
from .random_state import untouched_random_state
from .step import autocast_to


def evaluate(
    wide: WideModel,
    metric: Callable[..., Tensor],
    data: Any,
    *,
    split: Callable[[Any], tuple[Any, tuple]] = split_batch,
    autocast: torch.dtype | None = None,
) -> Tensor:
    """The mean of `metric(output, *targets)` over all samples, in evaluation mode: float64 `[N]` on the CPU.

    Batches count by their size. Train flags and random numbers are afterwards what they were.

    Args:
        data: as in `fit`: any iterable of batches, or `Stacked`, `PerLane`, one of `fold_batches`.
    """
    source = as_source(data, wide.n)
    flags = [(module, module.training) for module in wide.modules()]
    door = getattr(wide, source.door)
    total, samples = torch.zeros(wide.n, dtype=torch.float64, device=wide._device()), 0
    wide.eval()
    try:
        with torch.no_grad(), untouched_random_state(wide), autocast_to(autocast, wide):
            for raw in source:
                batch = make_batch(raw, split, wide._device(), source.door)
                values = metric(door(*batch.args, **batch.kwargs), *batch.targets)
                check_lane_losses(values, wide.n)
                total += values.double() * batch.size
                samples += batch.size
    finally:
        for module, training in flags:
            module.training = training
    if not samples:
        raise InputError("the validation data gave no batches; a generator can be read only once")
    return (total / samples).cpu()
