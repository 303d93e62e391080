"""Evaluate metrics per lane over a data set."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..errors import InputError
from ..model import WideModel
from .data import as_source, make_batch, split_batch
from .metrics import by_lane, named_metrics
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
    judges = {name: by_lane(one, wide.n, wide._device()) for name, one in metrics.items()}
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
