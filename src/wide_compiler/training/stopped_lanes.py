"""Lanes that stop for good while the others go on with the same kernels, and so the same bits."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..errors import ArgumentError
from ..model import WideModel
from .optimizer import LaneOptimizer
from .population import Population


class StoppedLanes:
    """Which lanes learn, under any optimiser: what a step does to the others is taken back.

    The optimiser does not know. So its kernels stay the same, and the lanes that go on are to the last bit
    what they would be if none had stopped. On CUDA a step is recorded once more then. (A `Population` masks
    inside the optimiser instead, so that a lane can go on later; that may take other kernels.)
    """

    def __init__(self, wide: WideModel, optimizer: torch.optim.Optimizer):
        self.wide, self.optimizer = wide, optimizer
        self.lanes = Population(wide)  # holds the buffers of masked lanes
        if isinstance(optimizer, LaneOptimizer):
            self.mask(~optimizer.active)

    @property
    def active(self) -> Tensor:
        """The lanes that learn: bool `[N]`."""
        return self.lanes.active

    def mask(self, lanes: Any) -> None:
        """These lanes stay as they are."""
        self.lanes.mask(lanes)

    def unmask(self, lanes: Any) -> None:
        """These lanes learn again."""
        self.lanes.unmask(lanes)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Around a step: weights and state of masked lanes are afterwards what they were."""
        active = self.active
        if bool(active.all()):
            yield
            return
        masked = (~active).nonzero().flatten()
        kept = {id(t): t.detach().index_select(0, masked.to(t.device)) for t in self._tensors()}
        yield
        with torch.no_grad():
            for tensor in self._tensors():
                index = masked.to(tensor.device)
                if id(tensor) in kept:
                    tensor.index_copy_(0, index, kept[id(tensor)])
                else:  # state that this step has made
                    tensor.index_fill_(0, index, 0)

    def _tensors(self) -> Iterator[Tensor]:
        """Stacked parameters and the state that is shaped like them."""
        for parameter in self.wide.stacked_parameters():
            yield parameter
            for value in self.optimizer.state.get(parameter, {}).values():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    yield value


Lanes = Population | StoppedLanes


def held(lanes: Lanes) -> Any:
    """Around a step: masked lanes do not move."""
    return lanes.held() if isinstance(lanes, StoppedLanes) else contextlib.nullcontext()


def lanes_of(wide: WideModel, optimizer: torch.optim.Optimizer | Population) -> Lanes:
    """The population itself, or the lanes of this optimiser."""
    if isinstance(optimizer, Population):
        if optimizer.wide is not wide:
            raise ArgumentError("the population is of another wide model; pass population.wide")
        return optimizer
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ArgumentError(f"expected an optimiser or a Population, got {type(optimizer).__name__}")
    own = {id(p) for p in wide.parameters()}
    if not any(id(p) in own for group in optimizer.param_groups for p in group["params"]):
        raise ArgumentError(
            "the optimiser has none of this model's parameters; make it over wide.parameters()"
        )
    return StoppedLanes(wide, optimizer)
