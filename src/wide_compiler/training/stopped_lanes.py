"""Lanes stopped under any optimiser, without changing the kernels that the other lanes use."""

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
    """Tracks which lanes are trained, and undoes what an optimiser step does to the others.

    The optimiser's kernels stay the same, so the remaining lanes are bit for bit equal to a run in which none
    has stopped. On CUDA, stopping a lane makes the step be recorded again. (A `Population` masks inside the
    optimiser instead, so a lane can continue later; that may use other kernels.)
    """

    def __init__(self, wide: WideModel, optimizer: torch.optim.Optimizer):
        self.wide, self.optimizer = wide, optimizer
        self.lanes = Population(wide)  # restores the buffers of masked lanes
        if isinstance(optimizer, LaneOptimizer):
            self.mask(~optimizer.active)

    @property
    def active(self) -> Tensor:
        """Lanes that are trained: bool `[N]`."""
        return self.lanes.active

    def mask(self, lanes: Any) -> None:
        """Freeze these lanes."""
        self.lanes.mask(lanes)

    def unmask(self, lanes: Any) -> None:
        """Train these lanes again."""
        self.lanes.unmask(lanes)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Context manager for an optimiser step: restore weights and state of masked lanes on exit."""
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
                else:  # state created by this step
                    tensor.index_fill_(0, index, 0)

    def _tensors(self) -> Iterator[Tensor]:
        """Yield stacked parameters and optimiser state of the same shape."""
        for parameter in self.wide.stacked_parameters():
            yield parameter
            for value in self.optimizer.state.get(parameter, {}).values():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    yield value


Lanes = Population | StoppedLanes


def held(lanes: Lanes) -> Any:
    """Return a context manager in which an optimiser step leaves masked lanes unchanged."""
    return lanes.held() if isinstance(lanes, StoppedLanes) else contextlib.nullcontext()


def lanes_of(wide: WideModel, optimizer: torch.optim.Optimizer | Population) -> Lanes:
    """Return the population itself, or `StoppedLanes` of an optimiser over the parameters of `wide`."""
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
