"""Rules of image and signal ops that take one batch dim: lanes and batch are folded into one."""

from typing import Any

import torch
from torch import Tensor

from ..widen.builder import Builder, Val
from ..widen.helpers import fold, fold_pair
from ..widen.rules import lane_rule, ops, rule

# By rank of the op's batched input. For an unbatched member (one less) the lanes are the batch.
_BATCHED: dict[int, str] = {
    0: "feature_dropout feature_alpha_dropout",
    2: "stft",
    3: """
    max_pool1d avg_pool1d adaptive_max_pool1d adaptive_avg_pool1d max_pool1d_with_indices reflection_pad1d
    replication_pad1d upsample_linear1d upsample_nearest1d _upsample_nearest_exact1d col2im istft
    """,
    4: """
    max_pool2d avg_pool2d adaptive_max_pool2d adaptive_avg_pool2d max_pool2d_with_indices reflection_pad2d
    replication_pad2d upsample_bilinear2d upsample_nearest2d upsample_bicubic2d _upsample_nearest_exact2d
    _upsample_bilinear2d_aa _upsample_bicubic2d_aa im2col channel_shuffle native_channel_shuffle
    """,
    5: """
    max_pool3d avg_pool3d adaptive_max_pool3d adaptive_avg_pool3d max_pool3d_with_indices reflection_pad3d
    replication_pad3d upsample_trilinear3d upsample_nearest3d _upsample_nearest_exact3d
    """,
}


def folded(op: Any, batched_rank: int) -> Any:
    def run(b: Builder, x: Val, *args: Any, **kwargs: Any) -> Val:
        x = b.wide(x)  # random ops are called with a shared input too
        if x.rank == batched_rank - 1:
            return b.call(op, x, *args, **kwargs)
        return b.call(fold, op, x, *args, **kwargs)

    return run


for _rank, _names in _BATCHED.items():
    for _op in ops(_names):
        rule(_op)(folded(_op, _rank))


@rule(*ops("grid_sampler", "grid_sampler_2d", "grid_sampler_3d"))
def grid_sampler(b: Builder, x: Val, grid: Val, *args: Any) -> Val:
    op = ops("grid_sampler.default")[0]
    return b.call(fold_pair, op, b.wide(x), b.wide(grid), *args)


def fractional_pool(op: Any, batched_rank: int) -> Any:
    def run(b: Builder, x: Val, kernel: list[Any], size: list[Any], samples: Val) -> Val:
        return b.call(pool_at_samples, op, b.wide(x), kernel, size, b.wide(samples), x.rank == batched_rank)

    return run


def pool_at_samples(op: Any, x: Tensor, kernel: Any, size: Any, samples: Tensor, batched: bool) -> Any:
    """Run `op` on x `[N, B, C, ...]` and samples `[N, B, C, dims]`.

    For an unbatched member x has no B, and samples have B = 1.
    """
    results = op(x.flatten(0, 1) if batched else x, kernel, size, samples.flatten(0, 1))
    return tuple(r.unflatten(0, x.shape[:2]) if batched else r for r in results)


for _rank, _name in ((4, "fractional_max_pool2d.default"), (5, "fractional_max_pool3d.default")):
    for _op in ops(_name):
        rule(_op)(fractional_pool(_op, _rank))


@lane_rule("affine_grid_generator")
def lane_affine_grid(theta: Tensor, size: list[int], align_corners: bool) -> Tensor:
    """Return the grids of theta `[N, B, 2, 3]`; `size` is the member's, with its batch in front."""
    n, b = theta.shape[:2]
    grid = torch.nn.functional.affine_grid(theta.flatten(0, 1), [n * b, *size[1:]], align_corners)
    return grid.unflatten(0, (n, b))
