"""fit: a training loop for all lanes."""

import os
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from ..model import WideModel
from .data import as_source, split_batch
from .early_stop import EarlyStop
from .evaluate import named_metrics
from .fit_loop import FitLoop
from .fit_options import FitOptions
from .history import History
from .moment import Moment
from .population import Population
from .random_state import seeded
from .stopped_lanes import lanes_of


def fit(
    wide: WideModel,
    optimizer: torch.optim.Optimizer | Population,
    loss: Callable[..., Tensor],
    data: Any,
    *,
    epochs: int | None = None,
    steps: int | None = None,
    validation: Any = None,
    metric: Any = None,
    monitor: str | None = None,
    mode: Literal["min", "max"] = "min",
    validate_every: int | None = None,
    early_stop: EarlyStop | int | None = None,
    scheduler: Any = None,
    schedule: Literal["step", "epoch", "validation"] = "step",
    clip: float | None = None,
    accumulate: int = 1,
    precision: Literal["bf16", "fp16"] | None = None,
    seed: int | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int | None = None,
    keep: int = 2,
    resume: bool | Literal["auto"] = False,
    callbacks: Sequence[Callable[[Moment], Any]] = (),
    split: Callable[[Any], tuple[Any, tuple]] = split_batch,
    progress: bool | None = None,
    leave: bool = True,
) -> History:
    """Train every lane as if it were trained alone.

    Args:
        wide: a wide model. Its train/eval flags are left as they are, module by module.
        optimizer: an optimiser over `wide.parameters()`, from this package or `torch.optim`; or a
            `Population`, for callbacks that copy or reinitialise lanes.
        loss: `loss(output, *targets)` returns one number per lane `[N]`, as the functions in `lane_losses`
            do.
        data: batches `(inputs, *targets)`, read once per epoch. Any iterable, such as a DataLoader, gives all
            lanes the same batches. `Stacked(batches)` has lanes on axis 0, `PerLane([...])` has one source
            per lane, and `fold_batches(dataset, k, batch_size)` gives each lane its fold.
        epochs, steps: end of training, whichever comes first; at least one must be given.
        validation: validation batches, in the same forms as `data`.
        metric: the validation metric: a function like `loss`, a torchmetrics object (copied per lane), or a
            dict of these by name; the loss by default.
        monitor: name of the metric used for early stopping, `best` and schedules; the first by default.
        mode: whether a lower ('min') or a higher ('max') metric is better.
        validate_every: steps between validations; once per epoch by default.
        early_stop: when a lane stops; an int is the patience.
        scheduler: a `torch.optim` learning rate scheduler of the optimiser, or a scheduler per lane.
        schedule: call the scheduler after each 'step', 'epoch', or 'validation' (passing the metric `[N]`).
        clip: maximum gradient norm per lane.
        accumulate: number of batches per optimiser step.
        precision: 'bf16' or 'fp16' runs forward and loss under autocast; 'fp16' uses a loss scale per lane.
        seed: seed of data order and dropout; the global generators are restored afterwards.
        checkpoint: folder for checkpoints.
        checkpoint_every: steps between checkpoints; once per epoch by default.
        keep: number of checkpoints to keep.
        resume: True continues from the newest checkpoint; 'auto' does so if one exists.
        callbacks: functions called with a `Moment` after every step, validation and epoch, and at the end. If
            a callback has `close()`, it is called at the end and after an error.
        split: `split(batch) -> (inputs, targets)`.
        progress: show a progress line; by default, if the output is a terminal.
        leave: remove stopped lanes from the computation once they are half of it, and put them back at the
            end. This changes lane numbers, so it is off while any callback lacks `by_number = False`, with a
            `Population`, and with a scheduler per lane.

    Returns:
        the losses and validations of every lane, and the lanes that stopped early with the reasons.

    >>> from torch import nn
    >>> import wide_compiler
    >>> wide = wide_compiler.compile(nn.Linear(4, 1), torch.randn(2, 4), n=3)
    >>> batches = [(torch.randn(8, 4), torch.zeros(8, 1)) for _ in range(5)]
    >>> sgd = torch.optim.SGD(wide.parameters(), 0.1)
    >>> history = fit(wide, sgd, lambda y, target: (y - target).square().mean((1, 2)), batches, epochs=2)
    >>> history.losses.shape, bool((history.losses[-1] < history.losses[0]).all())
    (torch.Size([10, 3]), True)
    """
    given = {**locals()}  # the arguments by name; `FitOptions` has fields of the same names
    del given["wide"], given["optimizer"], given["metric"], given["seed"]
    metrics = named_metrics(metric, loss)
    given |= {
        "metrics": metrics,
        "monitor": next(iter(metrics)) if monitor is None else monitor,
        "data": as_source(data, wide.n),
        "validation": None if validation is None else as_source(validation, wide.n),
        "early_stop": EarlyStop(patience=early_stop) if isinstance(early_stop, int) else early_stop,
        "callbacks": tuple(callbacks),
    }
    lanes, options = lanes_of(wide, optimizer), FitOptions(**given)
    with seeded(wide, seed):
        return FitLoop(lanes, options).run()
