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


class StoppedLanes(Population):
    """Tracks which lanes are trained, and undoes what an optimiser step does to the others.

    The optimiser's kernels stay the same, so the remaining lanes are bit for bit equal to a run in which none
    has stopped. On CUDA, stopping a lane makes the step be recorded again. (A `Population` masks inside the
    optimiser instead, so a lane can continue later; that may use other kernels.)
    """

    def __init__(self, wide: WideModel, optimizer: torch.optim.Optimizer):
        super().__init__(wide)  # without the optimiser, which it would mask; restores the lanes' buffers
        self.stock = optimizer
        if isinstance(optimizer, LaneOptimizer):
            self.mask(~optimizer.active)

    @property
    def optimizer(self) -> Any:
        return self.stock

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Restore weights and state of masked lanes on exit."""
        active = self.active
        if bool(active.all()):
            yield
            return
        masked = (~active).nonzero().flatten()
        kept = {id(t): t.detach().index_select(0, masked.to(t.device)) for t in self._tensors()}
        try:
            yield
        finally:
            self._put_back(masked, kept)

    @torch.no_grad()
    def _put_back(self, masked: Tensor, kept: dict[int, Tensor]) -> None:
        for tensor in self._tensors():
            index = masked.to(tensor.device)
            if id(tensor) in kept:
                tensor.index_copy_(0, index, kept[id(tensor)])
            else:  # state created by this step
                tensor.index_fill_(0, index, 0)

    def _tensors(self) -> Iterator[Tensor]:
        """Yield stacked parameters and optimiser state of the same shape."""
        yield from self.wide.stacked_parameters()
        yield from (state[name] for state, name in lane_states(self.stock, self.wide))


def lane_states(optimizer: torch.optim.Optimizer, wide: WideModel) -> list[tuple[dict[str, Any], str]]:
    """Return (state, name) of the optimiser's tensors that have the shape of their stacked parameter."""
    states = [(p, optimizer.state[p]) for p in wide.stacked_parameters() if p in optimizer.state]
    return [
        (state, name)
        for p, state in states
        for name, value in state.items()
        if isinstance(value, Tensor) and value.shape == p.shape
    ]


def lanes_of(wide: WideModel, optimizer: torch.optim.Optimizer | Population) -> Population:
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
