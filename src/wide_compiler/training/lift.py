"""lift(): use a `torch.optim` class with one learning rate per lane, if its update rule allows it."""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..errors import ArgumentError
from ..model.marks import has_lanes
from .groups import MASKED, RATIO, LaneGroups
from .lane_numbers import Limits
from .optimizer import LaneOptimizer


def lift(kind: type[Optimizer]) -> type[LaneOptimizer]:
    """Return an optimiser class for wide models that wraps `kind`; only `lr` may differ between lanes.

    `kind` must make updates proportional to the learning rate, and elementwise. Both are checked here by
    running it, so any class may be given; otherwise `ArgumentError` names the reason. Supported classes of
    `torch.optim`: SGD, Adam, AdamW, NAdam, RAdam, Adamax, Adadelta, RMSprop, Adagrad. Not supported: Rprop
    and ASGD (not proportional), LBFGS (needs a closure), and Adafactor, Muon, LAMB and LARS (norms over whole
    tensors would mix lanes).

    The step count is shared by all lanes, so it keeps counting while a lane is masked. The optimisers of
    `wide_compiler.training` count per lane.

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
    """A `torch.optim` optimiser over all lanes; its updates are then scaled per lane."""

    kind: Callable[..., Optimizer]
    limits = {"lr": Limits()}

    def __init__(self, params: Iterable[Any], lr: Any = 1e-3, **options: Any):
        LaneGroups.__init__(self, params, {"lr": lr, "capturable": False, **options})
        own = [{k: v for k, v in group.items() if k not in (RATIO, MASKED)} for group in self.param_groups]
        if "capturable" not in options:
            own = [{k: v for k, v in group.items() if k != "capturable"} for group in own]
        self.inner = type(self).kind(own)
        for mine, theirs in zip(self.param_groups, self.inner.param_groups, strict=True):
            mine.update({key: value for key, value in theirs.items() if key not in mine})
        self.defaults = {**self.inner.defaults, **self.defaults}  # for groups that are added later
        self.state.update(self.inner.state)  # some optimisers create state in __init__
        self._link()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "inner": self.inner}

    def _link(self) -> None:
        """Share groups and state with the inner optimiser, so it sees changes by schedulers and masks."""
        self.inner.param_groups, self.inner.state = self.param_groups, self.state

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        before: list[tuple[Tensor, Tensor, dict[str, Any]]] = []
        kept: list[tuple[Tensor, Tensor, Tensor]] = []
        begun: list[tuple[Tensor, Tensor]] = []  # parameters whose state the step creates, and masked lanes
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
                    state = self._by_lane(p)
                    begun += [] if state else [(p, group[MASKED])]
                    kept += [(t, group[MASKED], t.index_select(0, group[MASKED])) for t in (p, *state)]
        self.inner.step()
        for p, old, group in before:
            ratio = group[RATIO].to(p.dtype).view(-1, *[1] * (p.dim() - 1))
            p.copy_(torch.lerp(old, p, ratio))
        for tensor, lanes, rows in kept:
            tensor.index_copy_(0, lanes, rows)
        for p, lanes in begun:
            for tensor in self._by_lane(p):
                tensor.index_fill_(0, lanes, 0)
        return loss

    def _by_lane(self, p: Tensor) -> list[Tensor]:
        return [t for t in self.state[p].values() if isinstance(t, Tensor) and t.shape == p.shape]

    def fresh_state(self, group: dict[str, Any]) -> dict[str, float]:
        return {
            name: 0.0
            for p in group["params"]
            for name, value in self.state.get(p, {}).items()
            if isinstance(value, Tensor) and value.shape == p.shape
        }

    def reset_lanes(self, lanes: Any) -> None:
        raise ArgumentError(
            f"{type(self).__name__} is a lifted optimiser and cannot reset single lanes; copy a lane "
            f"instead, or take an optimiser of wide_compiler.training"
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
        """Do nothing: the step count is shared by all lanes."""

    def _join_steps(self) -> None:
        """Do nothing: the step count is shared by all lanes."""


def _why_not(kind: type[Optimizer]) -> str:
    """Return why an optimiser class cannot be lifted, found by running it; '' if it can."""
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
    """Return the updates `[3, 2, ...]` of three steps on two lanes, each from the same parameters."""
    generator = torch.Generator().manual_seed(0)
    place = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64)
    other = torch.tensor([1.0, 100.0 if spoiled else 1.0], dtype=torch.float64).view(2, 1, 1)
    place *= other  # scales the second lane only
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
