"""Population: lanes of a wide model that are copied, masked and replaced, with their optimiser state."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ArgumentError, WrongTypeError
from ..initialize import INITS, reinitialize
from ..model import WideModel
from .lane_losses import check_lane_losses
from .lane_numbers import lane_indices
from .optimizer import LaneOptimizer

WEIGHTS = "weights"


class Population:
    """Lanes that are masked, copied, changed and replaced in memory during training.

    Operations are in place where possible, so views of lanes and recorded steps stay valid. Only `select` and
    `resize` to another number of lanes allocate new tensors (inside the same parameters).

    Args:
        wide: a wide model.
        optimizer: an optimiser of `wide_compiler.training` over its parameters; None for no training.

    >>> import wide_compiler
    >>> from wide_compiler.training import SGD
    >>> wide = wide_compiler.compile(nn.Linear(4, 2), torch.randn(2, 4), n=4)
    >>> population = Population(wide, SGD(wide.parameters(), lr=[0.1, 0.2, 0.3, 0.4]))
    >>> population.copy(source=[0], target=[3])
    >>> population.optimizer.lane_values("lr")
    tensor([0.1000, 0.2000, 0.3000, 0.1000], dtype=torch.float64)
    """

    def __init__(self, wide: WideModel, optimizer: LaneOptimizer | None = None):
        if optimizer is not None and not isinstance(optimizer, LaneOptimizer):
            raise WrongTypeError(
                f"a population needs an optimiser that knows lanes, got {type(optimizer).__name__}; "
                f"wide_compiler.training has {', '.join(_names())}, and lift() for others"
            )
        if optimizer is not None and optimizer.n != wide.n:
            raise ArgumentError(
                f"the optimiser is of {optimizer.n} lanes, the wide model has {wide.n}; make it over "
                f"wide.parameters()"
            )
        self.wide = wide
        self._optimizer = optimizer
        self._active = torch.ones(wide.n, dtype=torch.bool)
        self._follow_optimizer()
        if optimizer is not None:  # loading a checkpoint may change the masks
            optimizer.register_load_state_dict_post_hook(lambda _: self._follow_optimizer())

    @property
    def n(self) -> int:
        return self.wide.n

    @property
    def optimizer(self) -> LaneOptimizer:
        if self._optimizer is None:
            raise ArgumentError("this population has no optimiser; give one: Population(wide, optimizer)")
        return self._optimizer

    @property
    def active(self) -> Tensor:
        """Lanes that are trained: bool `[N]`."""
        return self._active.clone()

    def mask(self, lanes: Any) -> None:
        """Freeze lanes bit for bit: weights, optimiser state and buffers.

        They still take part in forward and backward, but are not written.
        """
        chosen = lane_indices(lanes, self.n)
        for path, p in self.wide.named_parameters() if len(chosen) else ():
            if p.requires_grad and not self.wide.has_lanes(path):
                raise ArgumentError(
                    f"{path} is one parameter for all lanes and learns from each of them, so that no lane "
                    f"can be masked; freeze it, or leave the lane's loss out of the sum"
                )
        self._set_active(self._active.index_fill(0, chosen, False))

    def unmask(self, lanes: Any = slice(None)) -> None:
        """Train these lanes again, from their current state."""
        self._set_active(self._active.index_fill(0, lane_indices(lanes, self.n), True))

    def held(self) -> AbstractContextManager[Any]:
        """Context manager in which an optimiser step leaves masked lanes unchanged."""
        return nullcontext()

    def _set_active(self, active: Tensor) -> None:
        self._active = active
        if self._optimizer is not None:
            self._optimizer.set_active(active)
        self.wide.hold_lanes((~active).nonzero().flatten().tolist())

    def _follow_optimizer(self) -> None:
        if self._optimizer is not None:
            self._active = self._optimizer.active
        self.wide.hold_lanes((~self._active).nonzero().flatten().tolist())

    def report(self, losses: Tensor, gradients: bool = False, mask: bool = False) -> dict[int, str]:
        """Return the lanes whose loss or gradient is not finite, each with the reason.

        Masked lanes are skipped. This synchronises with the device.

        Args:
            losses: one per lane, `[N]`.
            gradients: also check the gradients.
            mask: mask these lanes.
        """
        check_lane_losses(losses, self.n)
        found: dict[int, str] = {}
        for lane in self._bad(losses):
            found[lane] = f"the loss is {float(losses.detach()[lane])}"
        for path, p in self.wide.named_parameters() if gradients else ():
            if p.grad is not None and self.wide.has_lanes(path):
                for lane in self._bad(p.grad):
                    found.setdefault(lane, f"the gradient of {path} is not finite")
        if mask and found:
            self.mask(list(found))
        return found

    def _bad(self, tensor: Tensor) -> list[int]:
        fine = tensor.detach().isfinite().reshape(self.n, -1).all(1).cpu()
        return (~fine & self._active).nonzero().flatten().tolist()

    @torch.no_grad()
    def copy(self, source: Any, target: Any, hyper: bool = True) -> None:
        """Copy weights, buffers and optimiser state of lanes `source` to lanes `target`.

        Args:
            source: one lane per target, or one lane for all targets.
            target: lanes to overwrite, including masked ones.
            hyper: also copy the hyper-parameters.
        """
        source, target = lane_indices(source, self.n), lane_indices(target, self.n)
        if len(source) not in (1, len(target)):
            raise ArgumentError(
                f"copy: {len(source)} source lanes for {len(target)} targets; give as many, or one"
            )
        if len(set(target.tolist())) < len(target):
            raise ArgumentError(f"copy: target lanes {target.tolist()} name a lane twice")
        source = source.expand(len(target))
        for tensor in self.wide.stacked_tensors():
            data = tensor.data
            data.index_copy_(0, target.to(data.device), data.index_select(0, source.to(data.device)))
        if self._optimizer is not None:
            self._optimizer.copy_lanes(source, target, hyper)

    def select(self, indices: Any) -> None:
        """Keep, reorder or repeat lanes: new lane i is old lane `indices[i]`, including its mask."""
        chosen = lane_indices(indices, self.n)
        if not len(chosen):
            raise ArgumentError("select: a population has at least one lane, got none")
        active = self._active[chosen]
        self.wide.select_lanes(chosen.tolist())
        if self._optimizer is not None:
            self._optimizer.select_lanes(chosen)
        self._set_active(active)

    def resize(self, n: int, init: Any = "copy") -> None:
        """Change the number of lanes: keep the first `n`, or append new ones.

        Args:
            n: new number of lanes.
            init: initialisation of new lanes: 'copy' repeats the existing lanes in order, with optimiser
                state and hyper-parameters; otherwise as in `refill`.
        """
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise ArgumentError(f"n must be a positive integer, got {n!r}")
        before = self.n
        new = list(range(before, n))
        # Created first, so that an error leaves the population unchanged.
        members = [self._new_member(lane % before, init) for lane in new] if init != "copy" else []
        self.select([lane % before for lane in range(n)])
        for lane, member in zip(new, members, strict=False):
            self.wide.load_lane(lane, member)
        if members and self._optimizer is not None:
            self._optimizer.reset_lanes(new)
        self.unmask(new)

    def refill(self, lanes: Any, init: str | Callable[..., Any] = "fresh", **hyper: Any) -> None:
        """Restart lanes: new weights, new optimiser state, not masked.

        Args:
            lanes: lanes to restart.
            init: 'fresh' initialises the weights, 'copy' keeps them; a function `(model, lane)` initialises
                the given ordinary model in place or returns another.
            hyper: hyper-parameters by name (`lr=...`, `beta1=...`), each a number or one per chosen lane.
        """
        chosen = lane_indices(lanes, self.n)
        members = [self._new_member(lane, init) for lane in chosen.tolist()] if init != "copy" else []
        for lane, member in zip(chosen.tolist(), members, strict=False):
            self.wide.load_lane(lane, member)
        if self._optimizer is not None:
            self._optimizer.reset_lanes(chosen)
            for name, values in hyper.items():
                self._optimizer.set_lane_values(name, values, chosen)
        elif hyper:
            self.optimizer  # noqa: B018  (raises: there is none)
        self.unmask(chosen)

    def _new_member(self, lane: int, init: Any) -> nn.Module:
        if not callable(init) and init not in INITS:
            raise ArgumentError(f"unknown init {init!r}; choose one of {', '.join(INITS)} or give a callable")
        member = self.wide.lane(lane)
        if init == "fresh":
            reinitialize(member)
            return member
        result = init(member, lane)
        return result if isinstance(result, nn.Module) else member

    @torch.no_grad()
    def perturb(
        self,
        lanes: Any,
        by: float | Callable[[Tensor], Tensor],
        what: str = WEIGHTS,
        generator: torch.Generator | None = None,
    ) -> None:
        """Change some lanes at random.

        Args:
            lanes: lanes to change.
            by: for weights, the standard deviation of the noise to add; for a hyper-parameter, a factor to
                multiply or divide by, with equal probability. Or a function from the current values (`[k,
                ...]` for each parameter, `[k]` for a hyper-parameter) to new ones.
            what: 'weights', or the name of a hyper-parameter: 'lr', 'weight_decay', 'beta1', ... For betas,
                the factor applies to the distance from 1.
            generator: a CPU generator for the random numbers.
        """
        chosen = lane_indices(lanes, self.n)
        if what == WEIGHTS:
            for p in self.wide.stacked_parameters():
                index = chosen.to(p.device)
                rows = p.data.index_select(0, index)
                if callable(by):
                    new = by(rows)
                else:
                    drawn = torch.randn(rows.shape, generator=generator, dtype=torch.float32)
                    new = rows + (by * drawn).to(rows)
                p.data.index_copy_(0, index, new)
            return
        now = self.optimizer.lane_values(what).cpu()[chosen]
        if callable(by):
            new = by(now)
        else:
            if by <= 0:
                raise ArgumentError(f"perturb: a factor for {what} must be above 0, got {by:g}")
            flips = torch.rand(len(chosen), generator=generator) < 0.5
            factor = torch.where(flips, torch.tensor(by).double(), 1 / torch.tensor(by).double())
            if what == "lr":
                self.optimizer.scale_lane_rates(factor, chosen)
                return
            beta = self.optimizer.limits[what].below == 1
            new = 1 - ((1 - now) * factor).clamp(max=1.0) if beta else now * factor
        self.optimizer.set_lane_values(what, new, chosen)


def _names() -> Sequence[str]:
    return sorted(kind.__name__ for kind in LaneOptimizer.__subclasses__())
