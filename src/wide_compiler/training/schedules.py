"""Learning rate schedules per lane. For a schedule shared by all lanes use `torch.optim.lr_scheduler`."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ..errors import ArgumentError
from ..model.marks import has_lanes
from .optimizer import LaneOptimizer


class LaneLambdaLR(LRScheduler):
    """`torch.optim.lr_scheduler.LambdaLR` with one factor per lane.

    Args:
        optimizer: an optimiser of `wide_compiler.training`.
        factors: function from the number of steps taken to a factor of the initial learning rates, a number
            or `[N]`.

    >>> import wide_compiler
    >>> from wide_compiler.training import SGD
    >>> wide = wide_compiler.compile(torch.nn.Linear(4, 2), torch.randn(2, 4), n=2)
    >>> sgd = SGD(wide.parameters(), lr=0.1)
    >>> schedule = LaneLambdaLR(sgd, lambda step: [0.5**step, 1 / (1 + step)])
    >>> sgd.step(), schedule.step(), sgd.lane_values("lr")[0]
    (None, None, tensor(0.0500, dtype=torch.float64))
    """

    def __init__(self, optimizer: LaneOptimizer, factors: Callable[[int], Any], last_epoch: int = -1):
        self.factors = factors
        self.lanes = optimizer
        self.first = [optimizer.lane_values("lr", index) for index in range(len(optimizer.param_groups))]
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """Set the learning rates per lane, and return the groups' own `lr` unchanged."""
        _check_lanes(self.lanes, len(self.first[0]))
        factors = torch.as_tensor(self.factors(self.last_epoch), dtype=torch.float64)
        if factors.shape not in ((), (self.lanes.n,)):
            raise ArgumentError(
                f"expected a factor or {self.lanes.n}, one per lane, at step {self.last_epoch}, "
                f"got a shape of {tuple(factors.shape)}"
            )
        for index, group in enumerate(self.lanes.param_groups):
            if any(map(has_lanes, group["params"])):
                rates = self.first[index] * factors.to(self.first[index].device)
                self.lanes.set_lane_values("lr", rates, group=index)
        return [group["lr"] for group in self.lanes.param_groups]

    def state_dict(self) -> dict[str, Any]:
        return {"last_epoch": self.last_epoch, "_step_count": self._step_count, "first": self.first}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.__dict__.update(state_dict)


class LaneSchedulers:
    """One `torch.optim.lr_scheduler` per lane, each with its own settings.

    Args:
        optimizer: an optimiser of `wide_compiler.training`.
        make: `make(stand_in, lane)` returns a scheduler of `stand_in`, an optimiser that holds the
            hyper-parameters of one lane.

    >>> import wide_compiler
    >>> from torch.optim.lr_scheduler import StepLR
    >>> from wide_compiler.training import SGD
    >>> wide = wide_compiler.compile(torch.nn.Linear(4, 2), torch.randn(2, 4), n=2)
    >>> sgd = SGD(wide.parameters(), lr=0.1)
    >>> schedule = LaneSchedulers(sgd, lambda optimizer, lane: StepLR(optimizer, 1, gamma=0.5 + 0.1 * lane))
    >>> schedule.step()
    >>> sgd.lane_values("lr")
    tensor([0.0500, 0.0600], dtype=torch.float64)
    """

    def __init__(self, optimizer: LaneOptimizer, make: Callable[[Optimizer, int], Any]):
        self.optimizer = optimizer
        names = [name for name in ("beta1", "momentum") if name in optimizer.limits]
        self.driven = ["lr", *names]  # hyper-parameters that a scheduler may change
        self.stand_ins = [_OneLane(optimizer, lane) for lane in range(optimizer.n)]
        self.schedulers = [make(stand_in, lane) for lane, stand_in in enumerate(self.stand_ins)]
        self._write()

    def step(self, metrics: Tensor | None = None) -> None:
        """Step every lane's scheduler. `metrics`, `[N]`, is for those that need one (ReduceLROnPlateau)."""
        _check_lanes(self.optimizer, len(self.schedulers))
        values = None if metrics is None else torch.as_tensor(metrics).tolist()
        if values is not None and len(values) != len(self.schedulers):
            raise ArgumentError(f"expected {len(self.schedulers)} metrics, one per lane, got {len(values)}")
        for lane, scheduler in enumerate(self.schedulers):
            self.stand_ins[lane].step()
            scheduler.step() if values is None else scheduler.step(values[lane])
        self._write()

    def _write(self) -> None:
        """Copy the hyper-parameters set by the schedulers to the lanes."""
        for index, group in enumerate(self.optimizer.param_groups):
            if not any(map(has_lanes, group["params"])):
                continue
            for name in self.driven:
                new = [stand_in.value(name, index) for stand_in in self.stand_ins]
                if new != self.optimizer.lane_values(name, index).tolist():
                    self.optimizer.set_lane_values(name, new, group=index)

    def state_dict(self) -> dict[str, Any]:
        return {
            "schedulers": [scheduler.state_dict() for scheduler in self.schedulers],
            "groups": [stand_in.numbers() for stand_in in self.stand_ins],
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        for scheduler, state in zip(self.schedulers, state_dict["schedulers"], strict=True):
            scheduler.load_state_dict(state)
        for stand_in, groups in zip(self.stand_ins, state_dict["groups"], strict=True):
            for group, numbers in zip(stand_in.param_groups, groups, strict=True):
                group.update(numbers)
        self._write()


def _check_lanes(optimizer: LaneOptimizer, n: int) -> None:
    if optimizer.n != n:
        raise ArgumentError(
            f"this schedule was made for {n} lanes, the optimiser now has {optimizer.n}; make a new schedule"
        )


class _OneLane(Optimizer):
    """Holds the hyper-parameters of one lane under torch's names, for a scheduler; updates nothing."""

    def __init__(self, lanes: LaneOptimizer, lane: int):
        numbers = [lanes.lane_numbers(i, lane) for i in range(len(lanes.param_groups))]
        super().__init__([{"params": [torch.zeros(1)], **own} for own in numbers], numbers[0])

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Do nothing; schedulers check that it was called."""

    def value(self, name: str, index: int) -> float:
        group = self.param_groups[index]
        return float(group["betas"][0] if name == "beta1" else group[name])

    def numbers(self) -> list[dict[str, Any]]:
        return [{k: v for k, v in group.items() if k != "params"} for group in self.param_groups]
