"""One step of `fit`: forward, backward, clipping and optimiser for all lanes, on one or more batches."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import _tree
from ..errors import ArgumentError, InputError
from .data import Batch
from .lane_losses import check_lane_losses
from .lane_scaler import LaneScaler
from .population import Population
from .random_state import random_state, set_random_state
from .step import TrainStep

PRECISIONS = {None: None, "bf16": torch.bfloat16, "fp16": torch.float16}


class LaneStep:
    """Run one step on a list of batches and return the mean loss per lane, `[N]`.

    A single batch without keyword arguments runs in `TrainStep`, which on CUDA records it. Gradient
    accumulation, keyword arguments and float16 loss scaling run without recording.
    """

    def __init__(
        self,
        lanes: Population,
        loss: Callable[..., Tensor],
        door: str,
        clip: float | None = None,
        precision: str | None = None,
    ):
        if precision not in PRECISIONS:
            choices = ", ".join(map(repr, PRECISIONS))
            raise ArgumentError(f"unknown precision {precision!r}; choose one of {choices}")
        if clip is not None and not clip > 0:
            raise ArgumentError(f"clip must be a positive norm, got {clip!r}")
        self.lanes, self.wide, self.optimizer = lanes, lanes.wide, lanes.optimizer
        self.recorded = TrainStep(self.wide, self.optimizer, loss, door, clip, PRECISIONS[precision])
        self.scaler = LaneScaler(self.wide.n, self.wide.parameters()) if precision == "fp16" else None
        self.checked = False
        self.n = self.wide.n

    def __call__(self, batches: Sequence[Batch]) -> Tensor:
        first = batches[0]
        if not self.checked:
            return self._checked(batches)
        if len(batches) == 1 and not first.kwargs and self.scaler is None:
            with self.lanes.held():
                losses = self.recorded(first.args, *first.targets)
            check_lane_losses(losses, self.wide.n)
            return losses
        return self._plainly(batches)

    def select(self, leaving: Any) -> None:
        """Continue with the lanes now in the model; the next step is checked again."""
        if self.wide.n == self.n:
            return
        self.n, self.checked = self.wide.n, False
        if self.scaler is not None:
            self.scaler.select(leaving.kept)

    def _checked(self, batches: Sequence[Batch]) -> Tensor:
        """Run the first step with extra checks. If it raises, buffers and random states are restored."""
        buffers = [(b, b.clone()) for b in self.wide.buffers()]
        random = random_state(self.wide)
        try:
            losses = self._plainly(batches)
        except (ValueError, RuntimeError):
            for buffer, before in buffers:
                buffer.copy_(before)
            set_random_state(self.wide, random)
            self.optimizer.zero_grad(set_to_none=True)
            raise
        self.checked = True
        return losses

    def _plainly(self, batches: Sequence[Batch]) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros(())
        for batch in batches:
            with torch.enable_grad():
                output, losses = self.recorded.forward(batch.args, batch.targets, **batch.kwargs)
                check_lane_losses(losses, self.wide.n)
                if not self.checked:
                    check_lanes_apart(output, losses)
                mean = losses / len(batches)
                (mean if self.scaler is None else mean * self.scaler.scale).sum().backward()
            total = total.to(mean.device) + mean.detach()
        if self.scaler is None:
            self.recorded.clip_gradients()
            with self.lanes.held():
                self.optimizer.step()
        else:
            self._scaled_step(self.scaler)
        return total

    def _scaled_step(self, scaler: LaneScaler) -> None:
        overflowed = scaler.unscale_()
        skipped = (overflowed & self.lanes.active.to(overflowed.device)).nonzero().flatten().tolist()
        self.recorded.clip_gradients()
        if skipped:
            self.lanes.mask(skipped)
        with self.lanes.held():
            self.optimizer.step()
        if skipped:
            self.lanes.unmask(skipped)
        scaler.update(overflowed)


def check_lanes_apart(output: Any, losses: Tensor) -> None:
    """Raise `InputError` if the loss of lane 0 depends on other lanes' outputs, e.g. by a mean over lanes."""
    leaves = [x for x in _tree.flatten(output)[0] if isinstance(x, Tensor) and x.requires_grad]
    if not leaves or not losses.requires_grad or len(losses) < 2:
        return
    for gradient in torch.autograd.grad(losses[0], leaves, retain_graph=True, allow_unused=True):
        if gradient is not None and bool((gradient[1:] != 0).any()):
            raise InputError(
                "the loss of lane 0 depends on the outputs of other lanes: reduce over all dimensions but "
                "the first (lanes are dimension 0 of the output)"
            )
