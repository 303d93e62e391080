"""Lanes under an optimiser that knows nothing of lanes: masked ones are put back after each step."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..model import WideModel
from .optimizer import LaneOptimizer
from .population import Population


class StockLanes:
    """What `fit` needs of a `Population`, for torch's own optimisers: which lanes learn.

    Weights and state of a masked lane are put back after every step; counters that an optimiser keeps for all
    lanes together go on.
    """

    def __init__(self, wide: WideModel, optimizer: torch.optim.Optimizer):
        self.wide, self.optimizer = wide, optimizer
        self.lanes = Population(wide)  # holds the buffers of masked lanes
        self.hooks: list[Any] = []
        self.kept: list[tuple[Tensor, Tensor]] = []

    @property
    def active(self) -> Tensor:
        """The lanes that learn: bool `[N]`."""
        return self.lanes.active

    def mask(self, lanes: Any) -> None:
        """These lanes stay as they are."""
        self.lanes.mask(lanes)
        self._hook()

    def unmask(self, lanes: Any) -> None:
        """These lanes learn again."""
        self.lanes.unmask(lanes)
        self._hook()

    def _hook(self) -> None:
        """Only while there is something to put back: hooks keep a step from being recorded."""
        for hook in self.hooks:
            hook.remove()
        self.hooks = []
        if not bool(self.active.all()):
            before = self.optimizer.register_step_pre_hook(lambda *_: self._keep())
            after = self.optimizer.register_step_post_hook(lambda *_: self._put_back())
            self.hooks = [before, after]

    def _keep(self) -> None:
        masked = (~self.active).nonzero().flatten()
        self.kept = [(t, t.detach().index_select(0, masked.to(t.device))) for t in self._tensors()]

    def _put_back(self) -> None:
        masked = (~self.active).nonzero().flatten()
        with torch.no_grad():
            for tensor, rows in self.kept:
                tensor.index_copy_(0, masked.to(tensor.device), rows)
        self.kept = []

    def _tensors(self) -> Iterator[Tensor]:
        """Stacked parameters and the state that is shaped like them."""
        for parameter in self.wide.stacked_parameters():
            yield parameter
            for value in self.optimizer.state.get(parameter, {}).values():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    yield value


Lanes = Population | StockLanes


def lanes_of(wide: WideModel, optimizer: torch.optim.Optimizer | Population) -> Lanes:
    """The population itself, or one made for this optimiser."""
    if isinstance(optimizer, Population):
        if optimizer.wide is not wide:
            raise ValueError("the population is of another wide model; pass population.wide")
        return optimizer
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(f"expected an optimiser or a Population, got {type(optimizer).__name__}")
    _check_parameters(wide, optimizer)
    return (
        Population(wide, optimizer) if isinstance(optimizer, LaneOptimizer) else StockLanes(wide, optimizer)
    )


def _check_parameters(wide: WideModel, optimizer: torch.optim.Optimizer) -> None:
    """An optimiser over another model's parameters would train nothing, without a word."""
    own = {id(p) for p in wide.parameters()}
    if not any(id(p) in own for group in optimizer.param_groups for p in group["params"]):
        raise ValueError("the optimiser has none of this model's parameters; make it over wide.parameters()")
