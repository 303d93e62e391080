"""lift(): a stock optimiser for lanes with learning rates of their own, if its steps allow it."""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..errors import ArgumentError
from ..model.marks import has_lanes
from .groups import MASKED, RATIO
from .lane_numbers import Limits
from .optimizer import LaneOptimizer


def lift(kind: type[Optimizer]) -> type[LaneOptimizer]:
    """An optimiser class for wide models made of one for ordinary models; only `lr` may be one per lane.

    It can be lifted if a step is proportional to the learning rate, and if what happens to an element does
    not depend on others. Both are tried out here, so that any class may be given; one that cannot be lifted
    is refused by name, with the reason. Of `torch.optim`, these can: SGD, Adam, AdamW, NAdam, RAdam, Adamax,
    Adadelta, RMSprop, Adagrad. Rprop and ASGD are not proportional, LBFGS wants a closure, and Adafactor,
    Muon, LAMB or LARS take norms over whole tensors, which would mix the lanes.

    Such an optimiser counts steps once for all lanes: a lane that was masked has a later count when it goes
    on. The optimisers of `wide_compiler.training` count by lane.

    >>> import wide_compiler
    >>> wide = wide_compiler.compile(torch.nn.Linear(4, 2), torch.randn(2, 4), n=2)
    >>> lift(torch.optim.NAdam)(wide.parameters(), lr=[1e-3, 1e-2]).lane_values("lr")
    tensor([0.0010, 0.0100], dtype=torch.float64)
    >>> try:
    ...     lift(torch.optim.Rprop)
    ... except ValueError as error:
    ...     print(error)
    Rprop cannot be lifted: its steps are not proportional to the learning rate
    """
    why = _why_not(kind)
    if why:
        raise ArgumentError(f"{kind.__name__} cannot be lifted: {why}")
    return _lifted(kind)  # type: ignore[arg-type]


@functools.cache
def _lifted(kind: Any) -> type[LaneOptimizer]:
    return type(f"Lane{kind.__name__}", (LiftedOptimizer,), {"kind": kind, "__doc__": kind.__doc__})


class LiftedOptimizer(LaneOptimizer):
    """A stock optimiser over all lanes, whose steps are then scaled lane by lane."""

    kind: Callable[..., Optimizer]
    limits = {"lr": Limits()}

    def __init__(self, params: Iterable[Any], lr: Any = 1e-3, **options: Any):
        super().__init__(params, {"lr": lr, "capturable": False, **options})
        own = [{k: v for k, v in group.items() if k not in (RATIO, MASKED)} for group in self.param_groups]
        if "capturable" not in options:
            own = [{k: v for k, v in group.items() if k != "capturable"} for group in own]
        self.inner = type(self).kind(own)
        for mine, theirs in zip(self.param_groups, self.inner.param_groups, strict=True):
            mine.update({key: value for key, value in theirs.items() if key not in mine})
        self.state.update(self.inner.state)  # some make it before the first step
        self._link()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "inner": self.inner}

    def _link(self) -> None:
        """One set of groups and state: schedulers and masks work on what the stock optimiser reads."""
        self.inner.param_groups, self.inner.state = self.param_groups, self.state

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        before: list[tuple[Tensor, Tensor, dict[str, Any]]] = []
        kept: list[tuple[Tensor, Tensor, Tensor]] = []
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                if not has_lanes(p):
                    self._refuse_lanes_on_trunk(group, p)
                    continue
                if group[RATIO] is not None:
                    before.append((p, p.clone(), group))
                if group[MASKED] is not None:
                    state = [
                        t for t in self.state[p].values() if isinstance(t, Tensor) and t.shape == p.shape
                    ]
                    kept += [(t, group[MASKED], t.index_select(0, group[MASKED])) for t in (p, *state)]
        self.inner.step()
        for p, old, group in before:
            ratio = group[RATIO].to(p.dtype).view(-1, *[1] * (p.dim() - 1))
            p.copy_(torch.lerp(old, p, ratio))
        for tensor, lanes, rows in kept:
            tensor.index_copy_(0, lanes, rows)
        return loss

    def fresh_state(self, group: dict[str, Any]) -> dict[str, float]:
        names = {
            name: 0.0
            for p in group["params"]
            for name, value in self.state.get(p, {}).items()
            if isinstance(value, Tensor) and value.shape == p.shape
        }
        return names

    def reset_lanes(self, lanes: Any) -> None:
        raise ArgumentError(
            f"{type(self).__name__} is a lifted optimiser and cannot begin anew in some lanes only; copy a "
            f"lane instead, or take an optimiser of wide_compiler.training"
        )

    def load_lane_state(self, lane: int, state_dict: Mapping[str, Any]) -> None:
        raise ArgumentError(
            f"{type(self).__name__} is a lifted optimiser, which counts steps for all lanes together: one "
            f"lane's state cannot be loaded; load_state_dict loads all"
        )

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._link()

    def _part_steps(self) -> None:
        """Steps are counted together."""

    def _join_steps(self) -> None:
        """Steps are counted together."""


def _why_not(kind: type[Optimizer]) -> str:
    """What keeps an optimiser class from being lifted, found by trying; '' if nothing does."""
    rates = torch.tensor([1e-3, 3e-3, 5e-4], dtype=torch.float64)
    try:
        one, driven = _tried(kind, [1e-3] * 3), _tried(kind, rates.tolist())
        other = _tried(kind, [1e-3] * 3, spoiled=True)
    except (TypeError, ValueError, RuntimeError) as error:
        return f"it does not step a tensor [N, A, B] by its gradient ({error})"
    scale = float(one.abs().max())
    if not torch.allclose(one[:, 0], other[:, 0], rtol=1e-9, atol=scale * 1e-9):
        return "a step of one lane depends on the others', as by a norm over the whole tensor"
    expected = one * (rates / rates[0]).view(3, 1, 1, 1)
    if not torch.allclose(expected, driven, rtol=1e-6, atol=scale * 1e-9):
        return "its steps are not proportional to the learning rate"
    return ""


def _tried(kind: Callable[..., Optimizer], rates: list[float], spoiled: bool = False) -> Tensor:
    """The moves `[3, 2, ...]` that a class makes with two lanes in three steps, each from the same place."""
    generator = torch.Generator().manual_seed(0)
    place = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64)
    other = torch.tensor([1.0, 100.0 if spoiled else 1.0], dtype=torch.float64).view(2, 1, 1)
    place *= other  # of the second lane
    p = torch.nn.Parameter(place.clone())
    optimizer = kind([p], lr=rates[0])
    moves = []
    for lr in rates:
        optimizer.param_groups[0]["lr"] = lr
        p.grad = other * torch.randn(2, 3, 4, generator=generator, dtype=torch.float64)
        optimizer.step()
        moves.append(p.detach() - place)
        p.data.copy_(place)
    return torch.stack(moves)
