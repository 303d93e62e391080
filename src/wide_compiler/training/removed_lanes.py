"""Removal of stopped lanes from the computation, and their return at the end."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from .. import _tree
from .fit_options import FitOptions
from .optimizer import LaneOptimizer
from .population import Population
from .schedules import LaneLambdaLR
from .stopped_lanes import StoppedLanes, lane_states

# A new number of lanes is measured and recorded again, so lanes are removed only from this stopped share on.
SHARE = 0.5


class RemovedLanes:
    """Lanes now in the wide model, and the weights and optimiser state of the removed ones.

    Args:
        lanes: model, optimiser and masks of a training run.
        plan: its settings. No lane is removed if lane numbers may be used elsewhere: by a `Population`, a
            callback without `by_number = False`, or a scheduler per lane.
    """

    def __init__(self, lanes: Population, plan: FitOptions):
        self.lanes, self.wide, self.total = lanes, lanes.wide, lanes.wide.n
        self.kept = list(range(self.total))  # original number of each lane in the model
        self.parked: dict[int, list[Tensor]] = {}  # removed lane -> its rows, in the order of `_homes`
        self.lists: dict[str, list[Any]] = {}  # the model's Python lists with one entry per lane
        seen = [c for c in plan.callbacks if getattr(c, "by_number", True)]
        scheduled = plan.scheduler is not None and (
            not isinstance(plan.scheduler, LRScheduler) or isinstance(plan.scheduler, LaneLambdaLR)
        )
        registered = bool(self.wide.registered.builders)  # their N cannot change
        alone = isinstance(lanes, StoppedLanes)
        self.allowed = plan.leave and alone and not (seen or scheduled or registered)

    @property
    def active(self) -> Tensor:
        """Lanes that are still trained: bool `[N]`."""
        active = torch.zeros(self.total, dtype=torch.bool)
        active[self.kept] = self.lanes.active.cpu()
        return active

    def may_leave(self) -> bool:
        """Return whether enough of the lanes in the model have stopped to remove them."""
        active = int(self.lanes.active.sum())
        return self.allowed and 0 < active <= (1 - SHARE) * len(self.kept)

    def leave(self) -> None:
        """Remove the stopped lanes from the model."""
        if not self.parked:
            self.lists = {name: list(getattr(self.wide, name)) for name in getattr(self.wide, "by_lane", ())}
        stays = self.lanes.active.nonzero().flatten().tolist()
        for position in set(range(len(self.kept))) - set(stays):
            rows = [home[name][position].detach().clone() for home, name in self._homes()]
            self.parked[self.kept[position]] = rows
        self._select(stays)
        self.kept = [self.kept[position] for position in stays]

    def come_back(self) -> None:
        """Put all removed lanes back, with the weights and state they had."""
        if len(self.kept) == self.total:
            return
        position = {lane: i for i, lane in enumerate(self.kept)}
        self._select([position.get(lane, 0) for lane in range(self.total)])
        with torch.no_grad():
            for lane, rows in self.parked.items():
                for (home, name), row in zip(self._homes(), rows, strict=True):
                    home[name][lane].copy_(row)
        vars(self.wide).update(self.lists)
        self.lanes.mask(sorted(self.parked))
        self.kept, self.parked = list(range(self.total)), {}

    def positions(self, lanes: Sequence[int]) -> list[int]:
        """Return the positions of these lanes in the model, without the removed ones."""
        return [self.kept.index(lane) for lane in lanes if lane in self.kept]

    def spread(self, values: Tensor) -> Tensor:
        """Expand values of the lanes in the model to all N lanes; nan for removed ones."""
        if len(self.kept) == self.total:
            return values
        full = values.new_full((self.total, *values.shape[1:]), float("nan"))
        return full.index_copy(0, torch.tensor(self.kept, device=values.device), values)

    def rows(self, batch: Any, door: str) -> Any:
        """Select from a batch for N lanes the rows of the lanes in the model."""
        if door == "shared" or len(self.kept) == self.total:
            return batch
        return _tree.tree_map(lambda x: x[self.kept] if isinstance(x, Tensor) else x, batch)

    def _select(self, positions: list[int]) -> None:
        before, optimizer = self.wide.n, self.lanes.optimizer
        own = isinstance(optimizer, LaneOptimizer)
        states = [] if own or before == len(positions) else lane_states(optimizer, self.wide)
        self.lanes.select(positions)
        if own:
            optimizer.select_lanes(positions)
        for state, name in states:
            state[name] = state[name][positions]

    def _homes(self) -> Iterator[tuple[Any, Any]]:
        """Yield (container, key) of every tensor with lanes: weights, buffers, optimiser state."""
        for tensor in self.wide.stacked_tensors():
            yield [tensor.data], 0
        optimizer = self.lanes.optimizer
        own = isinstance(optimizer, LaneOptimizer)
        yield from list(optimizer._lane_tensors(True)) if own else lane_states(optimizer, self.wide)
