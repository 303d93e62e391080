"""Whether two ways of computing the same thing did: rounding aside, both give the same."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..widen.helpers import exact_products

# How far results may be apart, in the norm of a tensor. Rounding may turn a ReLU round here and there, which
# moves single numbers by much and the norm by little; another computation moves it by as much as it is.
TOLERANCES = {torch.float64: 1e-8, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}
# Convolutions on a GPU round to ten bits unless told otherwise, each kernel in its own order.
TF32 = 2e-2
# Where it can be measured how far rounding alone moves a result, so many times that is still rounding.
NOISE = 3.0
# How far a single number may be off, relative to the largest.
SINGLE = 0.2
# A tensor of numbers that are tiny beside the others (the gradient of a bias in front of a batch norm is mere
# rounding) is held to this share of the largest.
NEGLIGIBLE = 1e-2


def difference(
    got: Sequence[Tensor | None], want: Sequence[Tensor | None], noise: Sequence[float] | None = None
) -> str | None:
    """In what respect `got` is not `want`, or None. An absent tensor counts as zeros.

    `noise` tells how far rounding alone moves each tensor, where that is known (see `distances`).
    """
    if len(got) != len(want):
        return "gives another number of results"
    largest = max((_mean_size(w) for w in want), default=0.0)
    for one, other, rounding in zip(got, want, noise or [0.0] * len(want), strict=True):
        problem = _difference(one, other, largest, rounding)
        if problem:
            return problem
    return None


def distances(one: Sequence[Tensor | None], other: Sequence[Tensor | None]) -> list[float]:
    """How far each tensor is from its counterpart, in the mean; 0 for what cannot be compared."""
    return [
        _mean_size(_dense(a) - _dense(b))
        if a is not None and b is not None and a.is_floating_point()
        else 0.0
        for a, b in zip(one, other, strict=True)
    ]


def rounding(
    results: Sequence[Sequence[Tensor | None]], again: Callable[[], Sequence[Sequence[Tensor | None]]]
) -> list[list[float] | None]:
    """How far products rounded to ten bits, as a GPU may, move each of these results; `again` runs for them
    once more."""
    with exact_products():
        exact = again()
    return [distances(*pair) for pair in zip(results, exact, strict=True)]


def _difference(one: Tensor | None, other: Tensor | None, largest: float, noise: float) -> str | None:
    if one is None or other is None:
        there = one if other is None else other
        return "a gradient is missing" if there is not None and _mean_size(there) > 0 else None
    one, other = _dense(one), _dense(other)
    if one.shape != other.shape or one.dtype != other.dtype:
        return f"gives {tuple(one.shape)} {one.dtype}, expected {tuple(other.shape)} {other.dtype}"
    if not one.dtype.is_floating_point and not one.dtype.is_complex:
        return None if torch.equal(one, other) else "gives other whole numbers"
    if not torch.equal(one.isfinite(), other.isfinite()) or not torch.equal(one.isnan(), other.isnan()):
        return "is not finite elsewhere"
    apart = (one - other).nan_to_num(0.0, 0.0, 0.0)
    tolerance = TOLERANCES.get(one.dtype, 1e-3)
    if one.is_cuda and one.dtype == torch.float32:
        tolerance = TF32
    size = max(_mean_size(other), NEGLIGIBLE * largest)
    single = max(float(other.nan_to_num(0.0, 0.0, 0.0).abs().max()) if other.numel() else 0.0, size)
    if (
        _mean_size(apart) <= max(tolerance * size, NOISE * noise)
        and not (apart.abs() > SINGLE * single).any()
    ):
        return None
    return f"differs by {_mean_size(apart):.1e} of {size:.1e}"


def _dense(tensor: Tensor) -> Tensor:
    return tensor.detach() if tensor.layout == torch.strided else tensor.detach().to_dense()


def _mean_size(tensor: Tensor | None) -> float:
    """The root of the mean square of what is finite."""
    if tensor is None or not tensor.numel() or not (tensor.is_floating_point() or tensor.is_complex()):
        return 0.0
    return float(_dense(tensor).nan_to_num(0.0, 0.0, 0.0).abs().float().square().mean().sqrt())
