"""Means, variances and batch norm of sharded tensors, as sums: only the sums travel, never the rows.

Each takes and gives DTensors, and gives NotImplemented where it does not apply.
"""

import math
from typing import Any

import torch
from torch import Tensor

from .values import reduced

aten = torch.ops.aten
_NARROW = (torch.float16, torch.bfloat16)


def mean(x: Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    """A sum and a division: DTensor would gather uneven shards for a mean."""
    dims = dim if dim else range(x.ndim)
    count = math.prod(x.shape[d] for d in dims)
    total = x.sum(dtype=dtype) if not dim else x.sum(dim, keepdim, dtype=dtype)
    return total / count if count else total / 0.0


def mean_of_all(x: Tensor, dtype: Any = None) -> Tensor:
    return mean(x, dtype=dtype)


def mse_loss(x: Tensor, y: Tensor, reduction: int = 1) -> Tensor:
    squares = (x - y) ** 2
    if reduction == 0:
        return squares
    return mean(squares) if reduction == 1 else squares.sum()


def _centred(x: Any, dims: list[int]) -> tuple[Tensor, Tensor, int]:
    """The mean [.., 1, ..] with no partial sums left, `x` less it, and how many values each mean is of."""
    count = math.prod(x.shape[d] for d in dims)
    average: Any = x.sum(dims, keepdim=True) / count
    average = reduced(average)
    return average, x - average, count


def var(x: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    both = var_mean(x, dim, correction=correction, keepdim=keepdim)
    return both if both is NotImplemented else both[0]


def var_mean(x: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    if x.ndim == 0 or not _fits(x):
        return NotImplemented
    dims = [d % x.ndim for d in dim] if dim else list(range(x.ndim))
    average, rest, count = _centred(reduced(x), dims)
    divisor = float(max(count - (1 if correction is None else correction), 0))
    variance = (rest**2).sum(dims, keepdim=keepdim) / divisor
    return variance, average if keepdim else average.sum(dims)


def batch_norm(
    x: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """`aten._native_batch_norm_legit_functional`: result, mean, 1/deviation, and the new statistics."""
    if not training or not _fits(x):
        return NotImplemented
    out, average, inverse, variance, count = _normalised(x, weight, bias, eps)
    unbiased = variance * (count / max(count - 1, 1))
    return (
        out,
        average,
        inverse,
        running_mean * (1 - momentum) + average * momentum,
        running_var * (1 - momentum) + unbiased * momentum,
    )


def batch_norm_without_statistics(
    x: Any, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> Any:
    """`aten._native_batch_norm_legit.no_stats`: result, mean, 1/deviation."""
    return _normalised(x, weight, bias, eps)[:3] if _fits(x) else NotImplemented


def _normalised(x: Any, weight: Any, bias: Any, eps: float) -> tuple[Any, Any, Any, Any, int]:
    """Result, and for each channel mean, 1/deviation, variance; and how many values a channel has."""
    dims = [d for d in range(x.ndim) if d != 1]
    shape = [1, x.shape[1]] + [1] * (x.ndim - 2)
    average, rest, count = _centred(reduced(x), dims)
    variance: Any = (rest**2).sum(dims, keepdim=True) / count
    variance = reduced(variance)
    inverse = (variance + eps).rsqrt()
    out = rest * inverse
    if weight is not None:
        out = out * weight.view(shape)
    if bias is not None:
        out = out + bias.view(shape)
    return out, average.sum(dims), inverse.sum(dims), variance.sum(dims), count


def _fits(x: Any) -> bool:
    return x.numel() > 0 and x.dtype.is_floating_point and x.dtype not in _NARROW
