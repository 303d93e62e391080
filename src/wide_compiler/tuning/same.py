"""Whether two ways of computing the same thing did: rounding aside, both give the same."""

from collections.abc import Sequence

import torch
from torch import Tensor

# How far results may be apart, relative to the largest number of a tensor.
TOLERANCES = {torch.float64: 1e-8, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}
# A tensor of numbers that are tiny beside the others (the gradient of a bias in front of a batch norm is mere
# rounding) is held to this share of the largest.
NEGLIGIBLE = 1e-2


def difference(got: Sequence[Tensor | None], want: Sequence[Tensor | None]) -> str | None:
    """In what respect `got` is not `want`, or None. An absent tensor counts as zeros."""
    if len(got) != len(want):
        return "gives another number of results"
    largest = max((_largest(w) for w in want), default=0.0)
    for one, other in zip(got, want, strict=True):
        problem = _difference(one, other, largest)
        if problem:
            return problem
    return None


def _difference(one: Tensor | None, other: Tensor | None, largest: float) -> str | None:
    if one is None or other is None:
        there = one if other is None else other
        return "a gradient is missing" if there is not None and _largest(there) > 0 else None
    if one.layout != torch.strided or other.layout != torch.strided:
        one, other = one.to_dense(), other.to_dense()
    if one.shape != other.shape or one.dtype != other.dtype:
        return f"gives {tuple(one.shape)} {one.dtype}, expected {tuple(other.shape)} {other.dtype}"
    if not one.dtype.is_floating_point and not one.dtype.is_complex:
        return None if torch.equal(one, other) else "gives other whole numbers"
    scale = max(_largest(other), NEGLIGIBLE * largest)
    atol = scale * TOLERANCES.get(one.dtype, 1e-3)
    if torch.isclose(one, other, rtol=0.0, atol=atol, equal_nan=True).all():
        return None
    return f"differs by {float((one - other).abs().nan_to_num(0.0).max()):.1e}, at most {scale:.1e} large"


def _largest(tensor: Tensor | None) -> float:
    if tensor is None or not tensor.numel() or not (tensor.is_floating_point() or tensor.is_complex()):
        return 0.0
    dense = tensor.detach() if tensor.layout == torch.strided else tensor.detach().to_dense()
    return float(dense.abs().nan_to_num(0.0, 0.0, 0.0).max())
