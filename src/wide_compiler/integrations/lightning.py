"""WideLightningModule: all lanes under one Lightning Trainer."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import ArgumentError, needs
from ..model import WideModel
from ..training.clipping import clip_lane_norms_, clip_lane_values_
from ..training.data import Batch, Stacked, as_source, make_batch, split_batch
from ..training.evaluate import MeanByLane
from ..training.lane_losses import check_lane_losses

LightningModule: Any = needs("lightning", "lightning").LightningModule


class WideLightningModule(LightningModule):
    """A wide model as a LightningModule: the Trainer sees one model, one optimiser and one loss.

    The loss passed to Lightning is the sum over lanes, so every lane gets the gradient of its own loss.
    Logged are `train_loss` and `val_loss`, each as `_best`, `_median` and `_worst` of the lanes;
    `lane_losses` and `lane_validation` hold the values per lane, `[N]`. `Trainer(gradient_clip_val=...)`
    clips per lane.

    Args:
        wide: a wide model.
        loss: `loss(output, *targets)` returns one number per lane `[N]`.
        optimizer: function from parameters to an optimiser, `lambda p: AdamW(p, lr=[...])`.
        scheduler: function from the optimiser to a `torch.optim.lr_scheduler`.
        schedule: call the scheduler after each 'step' or each 'epoch'.
        stacked: whether batches have lanes on axis 0; by default all lanes get the same batches.
        metric: the validation metric; the loss by default.
        split: `split(batch) -> (inputs, targets)`.
    """

    def __init__(
        self,
        wide: WideModel,
        loss: Callable[..., Tensor],
        optimizer: Callable[[Any], torch.optim.Optimizer],
        *,
        scheduler: Callable[[torch.optim.Optimizer], Any] | None = None,
        schedule: str = "step",
        stacked: bool = False,
        metric: Callable[..., Tensor] | None = None,
        split: Callable[[Any], tuple[Any, tuple]] = split_batch,
    ):
        super().__init__()
        if schedule not in ("step", "epoch"):
            raise ArgumentError(f"schedule must be 'step' or 'epoch', got {schedule!r}")
        self.wide, self.loss, self.metric, self.split = wide, loss, metric or loss, split
        self.make_optimizer, self.make_scheduler, self.schedule = optimizer, scheduler, schedule
        self.source = as_source(Stacked([]) if stacked else [], wide.n)
        self.lane_losses: Tensor | None = None
        self.lane_validation: Tensor | None = None
        self._mean = MeanByLane(self.metric, wide.n)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output of all lanes, `[N, B, ...]`."""
        return getattr(self.wide, self.source.door)(*args, **kwargs)

    def training_step(self, raw: Any, index: int) -> Tensor:
        output, batch = self._output(raw)
        losses = check_lane_losses(self.loss(output, *batch.targets), self.wide.n)
        self.lane_losses = losses.detach()
        self._log_spread("train_loss", self.lane_losses, batch.size)
        return losses.sum()

    def on_validation_epoch_start(self) -> None:
        self._mean = MeanByLane(self.metric, self.wide.n)

    def validation_step(self, raw: Any, index: int) -> None:
        output, batch = self._output(raw)
        self._mean.update(output, batch.targets, batch.size, self.source.door)

    def on_validation_epoch_end(self) -> None:
        if self._mean.samples:
            self.lane_validation = self._mean.compute().to(self.wide._device())
            self._log_spread("val_loss", self.lane_validation, self._mean.samples)

    def configure_optimizers(self) -> Any:
        optimizer = self.make_optimizer(self.wide.parameters())
        if self.make_scheduler is None:
            return optimizer
        scheduler = {"scheduler": self.make_scheduler(optimizer), "interval": self.schedule}
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip per lane; Lightning would use the norm over all lanes."""
        if not gradient_clip_val:
            return
        clip = clip_lane_values_ if gradient_clip_algorithm == "value" else clip_lane_norms_
        clip(self.wide.parameters(), gradient_clip_val)

    def _output(self, raw: Any) -> tuple[Any, Batch]:
        self.source.check_batch(raw)
        batch = make_batch(raw, self.split, self.wide._device(), self.source.door)
        return self(*batch.args, **batch.kwargs), batch

    def _log_spread(self, name: str, values: Tensor, size: int) -> None:
        numbers = {"best": values.min(), "median": values.median(), "worst": values.max()}
        shown = {f"{name}_{which}": number.float() for which, number in numbers.items()}
        self.log_dict(shown, prog_bar=True, batch_size=size)
