"""fit: a small training loop for all lanes."""

import os
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from ..model import WideModel
from .data import as_source, split_batch
from .early_stop import EarlyStop
from .history import History
from .loop import Loop
from .metrics import named_metrics
from .moment import Moment
from .plan import Plan
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
    """Train every lane as it would be trained alone.

    Args:
        wide: a wide model; it is trained in the mode (train or eval, part by part) that it is in.
        optimizer: over `wide.parameters()`: one of this room's, or of torch's; or a `Population`, for
            callbacks that copy or refill lanes.
        loss: `loss(output, *targets)` gives one number per lane `[N]`, as `lane_losses` of this room do.
        data: batches `(inputs, *targets)`, read once per epoch. Any iterable, above all a DataLoader, is
            given to all lanes alike; `Stacked(batches)` has lanes on axis 0 already, `PerLane([...])` one
            source for each lane, and `fold_batches(dataset, k, batch_size)` gives each its own fold.
        epochs, steps: when to end, whichever comes first; one of them must be given.
        validation: batches to validate with, in the same forms.
        metric: what is validated: a function like `loss`, a torchmetrics object (every lane gets its own), or
            a dict of such by name; by default the loss.
        monitor: the name of the metric that early stopping, `best` and schedules go by; by default the first.
        mode: whether a lower ('min') or a higher ('max') number is better.
        validate_every: steps between validations; by default one after each epoch.
        early_stop: when a lane stops; a number is the patience.
        scheduler: one of torch's learning rate schedulers over the optimiser, or one by lane of this room.
        schedule: when it moves: after each 'step', 'epoch' or 'validation' (and is given that, `[N]`).
        clip: the largest norm that the gradients of one lane may have.
        accumulate: so many batches make one step.
        precision: 'bf16' or 'fp16' runs forward and loss under autocast; 'fp16' with a loss scale per lane.
        seed: data order and dropout follow from it; global generators are afterwards what they were before.
        checkpoint: a folder to save to.
        checkpoint_every: steps between checkpoints; by default one after each epoch.
        keep: how many checkpoints to keep.
        resume: True continues from the newest checkpoint in the folder, 'auto' too if there is one.
        callbacks: each is called with a `Moment` after every step, validation and epoch, and
            at the end; its `close()`, if it has one, also after an error.
        split: how a batch is taken apart: `split(batch) -> (inputs, targets)`.
        progress: a line on the terminal; by default if there is one.
        leave: lanes that have stopped leave the computation when they are half of it, and are back at
            the end. Callbacks count lanes by number, so none leaves while there is one that does not say
            `by_number = False`; nor with a `Population` or a scheduler by lane.

    Returns:
        every lane's losses, and what stopped which lane.

    >>> from torch import nn
    >>> import wide_compiler
    >>> wide = wide_compiler.compile(nn.Linear(4, 1), torch.randn(2, 4), n=3)
    >>> batches = [(torch.randn(8, 4), torch.zeros(8, 1)) for _ in range(5)]
    >>> sgd = torch.optim.SGD(wide.parameters(), 0.1)
    >>> history = fit(wide, sgd, lambda y, target: (y - target).square().mean((1, 2)), batches, epochs=2)
    >>> history.losses.shape, bool((history.losses[-1] < history.losses[0]).all())
    (torch.Size([10, 3]), True)
    """
    if isinstance(early_stop, int):
        early_stop = EarlyStop(patience=early_stop)
    lanes = lanes_of(wide, optimizer)
    metrics = named_metrics(metric, loss)
    plan = Plan(
        loss=loss,
        metrics=metrics,
        monitor=next(iter(metrics)) if monitor is None else monitor,
        mode=mode,
        leave=leave,
        data=as_source(data, wide.n),
        validation=None if validation is None else as_source(validation, wide.n),
        split=split,
        epochs=epochs,
        steps=steps,
        validate_every=validate_every,
        early_stop=early_stop,
        scheduler=scheduler,
        schedule=schedule,
        clip=clip,
        accumulate=accumulate,
        precision=precision,
        checkpoint=checkpoint,
        checkpoint_every=checkpoint_every,
        keep=keep,
        resume=resume,
        callbacks=tuple(callbacks),
        progress=progress,
    )
    with seeded(wide, seed):
        return Loop(lanes, plan).run()
