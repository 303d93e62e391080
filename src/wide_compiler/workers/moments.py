"""Means, variances and batch norm of sharded tensors, computed from sums, so only sums are communicated.

Each function takes and returns DTensors, or returns NotImplemented where it does not apply.
"""

import math
from typing import Any

import torch
from torch import Tensor

from .sharded_value import reduced

aten = torch.ops.aten
_NARROW = (torch.float16, torch.bfloat16)


def mean(x: Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    """Compute the mean as a sum and a division; DTensor would gather uneven shards for a mean."""
    dims = dim if dim else range(x.ndim)
    count = math.prod(x.shape[d] for d in dims)
    total = x.sum(dtype=dtype) if not dim else x.sum(dim, keepdim, dtype=dtype)
    return total / count if count else total / 0.0


def mse_loss(x: Tensor, y: Tensor, reduction: int = 1) -> Tensor:
    squares = (x - y) ** 2
    if reduction == 0:
        return squares
    return mean(squares) if reduction == 1 else squares.sum()


def _centred(x: Any, dims: list[int]) -> tuple[Tensor, Tensor, int]:
    """Return the mean `[.., 1, ..]` without partial sums, x minus the mean, and the count per mean."""
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
    """Batch norm as `aten._native_batch_norm_legit_functional`.

    Returns the result, mean, 1/deviation, new running mean and new running variance.
    """
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
    """Batch norm as `aten._native_batch_norm_legit.no_stats`; returns the result, mean and 1/deviation."""
    return _normalised(x, weight, bias, eps)[:3] if _fits(x) else NotImplemented


def _normalised(x: Any, weight: Any, bias: Any, eps: float) -> tuple[Any, Any, Any, Any, int]:
    """Return the result; mean, 1/deviation and variance of each channel; and the count per channel."""
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
