"""Corrections of DTensor, by op: operands to redistribute first, replacement rules, and rules to avoid.

They cover ops for which DTensor gives wrong results, raises, or is slower than necessary.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor._ops import _tensor_ops

from . import moments
from .sharded_value import local_of, wrap

aten = torch.ops.aten
Op = torch._ops.OpOverload


def _whole(x: DTensor | None) -> DTensor | None:
    return x if x is None else x.redistribute(placements=[Replicate()] * x.device_mesh.ndim)


def _batch_of(x: DTensor) -> list[Placement]:
    """Return the placements of x with all but sharding along dimension 0 replicated."""
    return [p if p == Shard(0) else Replicate() for p in x.placements]


def _prepare_convolution(args: tuple) -> tuple:
    x, weight, bias = args[:3]
    return (x.redistribute(placements=_batch_of(x)), _whole(weight), _whole(bias), *args[3:])


def _prepare_convolution_backward(args: tuple) -> tuple:
    grad, x, weight = args[:3]
    batch = _batch_of(x)
    cut = grad.redistribute(placements=batch), x.redistribute(placements=batch)
    return (*cut, _whole(weight), *args[3:])


def _prepare_view(args: tuple) -> tuple:
    """Make a contiguous copy of a shard whose strides differ from the whole tensor's, so `view` works."""
    x = args[0]
    if x.is_contiguous() and not _in_order(local_of(x)):
        x = wrap(local_of(x).clone(memory_format=torch.contiguous_format), x, x.shape, x.stride())
    return (x, *args[1:])


def _prepare_picking(args: tuple) -> tuple:
    """Replicate the operands of `gather` or `scatter` unless data and index have equal sizes.

    DTensor shards data and index alike, which is right only if all dimensions but `dim` are equal.
    """
    x, dim, index = args[:3]
    rows = [
        (a, b)
        for d, (a, b) in enumerate(zip(x.shape, index.shape, strict=False))
        if x.ndim and d != dim % x.ndim
    ]
    if all(a == b for a, b in rows):
        return args
    return tuple([_whole(a) if isinstance(a, DTensor) else a for a in args])


def _resolve(args: tuple) -> tuple:
    """Resolve a lazy conjugation first, as eager PyTorch does; the script's handles do not track it."""
    x = args[0]
    return (wrap(local_of(x).resolve_conj(), x, x.shape, x.stride()),)


def _in_order(x: Tensor) -> bool:
    """Return whether x is contiguous, with the default stride also in dimensions of size 1.

    A shard of one row must be judged as the larger shards of the other workers are.
    """
    expected = 1
    for size, stride in zip(reversed(x.shape), reversed(x.stride()), strict=True):
        if stride != expected:
            return False
        expected *= max(size, 1)
    return True


def _whole_at(*places: int) -> Callable[[tuple], tuple]:
    """Return a function that replicates the operands at these positions before DTensor's rule runs."""

    def prepare(args: tuple) -> tuple:
        return tuple(_whole(a) if i in places else a for i, a in enumerate(args))

    return prepare


def _squeeze(x: DTensor) -> DTensor:
    for d in reversed(range(x.ndim)):
        if x.shape[d] == 1:
            x = aten.squeeze.dim(x, d)
    return x


def beyond_rules(func: Op, indices: Any) -> bool:
    """Return whether DTensor's indexing rules cannot be used for these indices.

    They treat a mask as an index that selects as many rows as it has entries, and the rules for writing with
    several indices take minutes to find a layout.
    """
    given = [i for i in indices if isinstance(i, Tensor)]
    return any(i.dtype in (torch.bool, torch.uint8) for i in given) or (
        func is not aten.index.Tensor and len(given) > 1
    )


INDEXING = {aten.index.Tensor, aten.index_put.default, aten._unsafe_index_put.default}
# Replacements for DTensor's rules.
OWN_RULES: dict[Op, Callable] = {
    aten.mean.default: moments.mean,
    aten.mean.dim: moments.mean,
    aten.mse_loss.default: moments.mse_loss,
    aten.var.correction: moments.var,
    aten.var_mean.correction: moments.var_mean,
    aten._native_batch_norm_legit_functional.default: moments.batch_norm,
    aten._native_batch_norm_legit.no_stats: moments.batch_norm_without_statistics,
}
# Operands to redistribute first; otherwise DTensor gives wrong results or raises.
PREPARE: dict[Op, Callable[[tuple], tuple]] = {
    aten.convolution.default: _prepare_convolution,
    aten.convolution_backward.default: _prepare_convolution_backward,
    aten.view.default: _prepare_view,
    aten._unsafe_view.default: _prepare_view,
    aten.view_as_real.default: _resolve,
    aten.gather.default: _prepare_picking,
    aten.scatter.src: _prepare_picking,
    aten.scatter.value: _prepare_picking,
    aten.scatter_add.default: _prepare_picking,
    aten.scatter_reduce.two: _prepare_picking,
}
if hasattr(_tensor_ops, "prop_index_put"):  # PyTorch 2.11 shards the values along the indexed dimension
    PREPARE[aten.index_put.default] = _whole_at(0, 2)
    PREPARE[aten.index_add.default] = _whole_at(0, 2, 3)
    PREPARE[aten.native_layer_norm_backward.default] = _whole_at(5, 6)  # it leaves the weights sharded
    OWN_RULES[aten.squeeze.default] = _squeeze  # it squeezes a shard of one row
# DTensor would shard the channels; with fewer channels than workers some shards are empty, which the kernels
# reject. As a sum over rows the batch stays sharded.
WRONG_RULE: set[Op] = {
    aten._native_batch_norm_legit_functional.default,
    aten.native_batch_norm_backward.default,
    aten._native_batch_norm_legit.no_stats,
    aten._native_batch_norm_legit_no_training.default,
    # They take sizes of the whole tensor as arguments, which do not fit a shard.
    aten.native_group_norm.default,
    aten.native_group_norm_backward.default,
    # Their operands have different dimension orders.
    aten.fractional_max_pool2d.default,
    aten.fractional_max_pool3d.default,
    aten.fractional_max_pool2d_backward.default,
    aten.fractional_max_pool3d_backward.default,
    aten._adaptive_avg_pool2d_backward.default,
    aten._adaptive_avg_pool3d_backward.default,
    aten.linalg_ldl_solve.default,
}
