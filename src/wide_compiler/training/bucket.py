"""Buckets: parameters updated together, and arithmetic on lists of tensors."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..remote_tensors import memory_id
from .lane_numbers import LaneNumber

Factor = float | list[Tensor]
Tensors = list[Tensor] | tuple[Tensor, ...]
_LOW_PRECISION = (torch.bfloat16, torch.float16)


@dataclass
class Bucket:
    """Parameters of one group with the same device, dtype and step count, with gradients and state.

    If `stacked`, every parameter, gradient and state tensor has shape `[N, ...]`.
    """

    params: list[Tensor]
    grads: list[Tensor]
    state: dict[str, list[Tensor]]
    step: Tensor | None  # steps taken: `[]`, or `[N]` if lanes have taken different numbers of steps
    stacked: bool

    def tensors(self) -> Iterator[Tensor]:
        """Yield every tensor an update writes, except the step count."""
        yield from self.params
        for tensors in self.state.values():
            yield from tensors

    def alike(self) -> bool:
        """Return whether all tensors are in this process and share strides, as flat kernels require."""
        if memory_id(self.params[0]) is not None:
            return False
        layouts = [p.stride() for p in self.params]
        return all([t.stride() for t in tensors] == layouts for tensors in (self.grads, *self.state.values()))

    def lane_by_lane(self) -> list["Bucket"]:
        """Return one bucket of views per lane. Each lane must be contiguous in memory."""
        n = len(self.params[0])
        steps = [None] * n if self.step is None else self.step.expand(n).unbind(0)
        state = {name: _lanes(tensors) for name, tensors in self.state.items()}
        return [
            Bucket(params, grads, {name: lanes[lane] for name, lanes in state.items()}, step, False)
            for lane, (params, grads, step) in enumerate(
                zip(_lanes(self.params), _lanes(self.grads), steps, strict=True)
            )
        ]

    def in_one_piece(self) -> bool:
        """Return whether every tensor is dense in memory; if stacked, lane after lane."""
        return self.lanes_in_one_piece() if self.stacked else all(p.is_contiguous() for p in self.params)

    def lanes_in_one_piece(self) -> bool:
        return all(p.stride(0) * len(p) == p.numel() for p in self.params)

    def real(self) -> "Bucket":
        """View complex tensors as pairs of real numbers, as torch's optimisers do."""
        return self._mapped(torch.view_as_real) if self.params[0].is_complex() else self

    @property
    def low_precision(self) -> bool:
        return self.params[0].dtype in _LOW_PRECISION

    def in_float32(self) -> "Bucket":
        """Return a float32 copy; values such as a beta of 0.999 are not representable in half precision."""
        return self._mapped(Tensor.float)

    def take(self, other: "Bucket") -> None:
        for mine, theirs in zip(self.tensors(), other.tensors(), strict=True):
            mine.copy_(theirs)

    def _mapped(self, function: Callable[[Tensor], Tensor]) -> "Bucket":
        state = {name: [function(t) for t in tensors] for name, tensors in self.state.items()}
        params, grads = [function(t) for t in self.params], [function(t) for t in self.grads]
        return Bucket(params, grads, state, self.step, self.stacked)


def in_layout_of(p: Tensor, grad: Tensor) -> Tensor:
    """Return the gradient with the strides of its parameter; one that differs would stop all fused kernels.

    Strides of axes of size 1 often differ (a layer with one output), which takes only a view.
    """
    if grad.stride() == p.stride() or memory_id(p) is not None:
        return grad
    if all(a == b for size, a, b in zip(p.shape, p.stride(), grad.stride(), strict=True) if size != 1):
        return grad.as_strided(p.shape, p.stride())
    return torch.empty_like(p).copy_(grad)


def _lanes(tensors: list[Tensor]) -> list[list[Tensor]]:
    return [list(lane) for lane in zip(*[t.unbind(0) for t in tensors], strict=True)]


def spread(factor: LaneNumber, tensors: Sequence[Tensor]) -> Factor:
    """Shape a factor to broadcast over each tensor: a number is returned as it is, `[N]` as `[N, 1, ...]`."""
    if not isinstance(factor, Tensor):
        return factor
    cast = factor.to(tensors[0].dtype)
    if cast.dim() == 0:
        return [cast] * len(tensors)
    ranks = {t.dim(): cast.view(-1, *[1] * (t.dim() - 1)) for t in tensors}
    return [ranks[t.dim()] for t in tensors]


def add_scaled(tensors: Tensors, others: Tensors, factor: LaneNumber) -> Tensors:
    """`tensors + factor * others`, in new tensors."""
    factors = spread(factor, tensors)
    if isinstance(factors, list):
        return torch._foreach_addcmul(tensors, others, factors)
    return torch._foreach_add(tensors, others, alpha=factors)


def add_scaled_(tensors: Tensors, others: Tensors, factor: LaneNumber) -> None:
    """`tensors += factor * others`"""
    factors = spread(factor, tensors)
    if isinstance(factors, list):
        torch._foreach_addcmul_(tensors, others, factors)
    else:
        torch._foreach_add_(tensors, others, alpha=factors)


def scale_(tensors: Tensors, factor: LaneNumber) -> None:
    """`tensors *= factor`"""
    torch._foreach_mul_(tensors, spread(factor, tensors))


def average_(averages: Tensors, values: Tensors, keep: LaneNumber) -> None:
    """`averages = keep * averages + (1 - keep) * values`"""
    torch._foreach_lerp_(averages, values, spread(1 - keep, averages))


def average_squares_(averages: Tensors, values: Tensors, keep: LaneNumber) -> None:
    """`averages = keep * averages + (1 - keep) * values ** 2`"""
    if isinstance(keep, Tensor):
        average_(averages, torch._foreach_mul(values, values), keep)
        return
    torch._foreach_mul_(averages, keep)
    torch._foreach_addcmul_(averages, values, values, 1 - keep)


def add_divided_(tensors: Tensors, values: Tensors, by: Tensors, factor: LaneNumber) -> None:
    """`tensors += factor * values / by`"""
    if isinstance(factor, Tensor):
        add_scaled_(tensors, torch._foreach_div(values, by), factor)
    else:
        torch._foreach_addcdiv_(tensors, values, by, factor)
