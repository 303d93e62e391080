"""Batch, group and instance norm of N lanes, each computed as the same norm over N*C channels.

Shapes: N lanes, B batch, C channels, P folded N*C; suffixes list the leading axes only.
"""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..widen.builder import Builder, Val
from ..widen.rules import ops, rule
from ._lanes import check_lanes, flat, fold_channels, unfold_channels
from ._module import WideModule, direct_rule


def wide_batch_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    training: bool = False,
    momentum: float | Tensor = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise every channel of every lane over the batch and the spatial axes.

    Args:
        x: `[N, B, C, *spatial]`; the result is a view of `[B, N*C, *spatial]`.
        weight, bias: `[N, C]` or None.
        running_mean, running_var: `[N, C]`, contiguous, or None. Updated in place when training.
        training: normalise by the batch statistics; if False, by the running ones.
        momentum: weight of the new statistics in the running ones; a tensor `[N]` has one for each lane.
    """
    n = check_lanes("wide_batch_norm", x=x, weight=weight, bias=bias, running_mean=running_mean)
    x_BP, w_P, b_P = fold_channels(x), flat(weight), flat(bias)
    if running_mean is None or running_var is None:
        y_BP = F.batch_norm(x_BP, None, None, w_P, b_P, training=True, eps=eps)
    elif training and isinstance(momentum, Tensor):
        # F.batch_norm takes one momentum; with 1.0 it writes the batch's own statistics.
        mean_NC, var_NC = torch.zeros_like(running_mean), torch.zeros_like(running_var)
        y_BP = F.batch_norm(x_BP, mean_NC.view(-1), var_NC.view(-1), w_P, b_P, True, 1.0, eps)
        with torch.no_grad():
            running_mean.lerp_(mean_NC, momentum.to(running_mean.dtype).unsqueeze(1))
            running_var.lerp_(var_NC, momentum.to(running_var.dtype).unsqueeze(1))
    else:
        # view, not flatten: a silent copy here would lose the update of the running statistics.
        factor = 0.0 if isinstance(momentum, Tensor) else momentum
        mean_P, var_P = running_mean.view(-1), running_var.view(-1)
        y_BP = F.batch_norm(x_BP, mean_P, var_P, w_P, b_P, training, factor, eps)
    return unfold_channels(y_BP, n)


class _WideBatchNorm(WideModule):
    kernel = staticmethod(wide_batch_norm)
    CONFIG = ("num_features", "eps", "momentum", "affine", "track_running_stats")

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x `[N, B, C, *spatial]`; returns the same shape."""
        self.check_input(x)
        momentum: float | Tensor = 0.0 if self.momentum is None else self.momentum
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:  # cumulative average; counts may differ between lanes
                momentum = self.num_batches_tracked.to(torch.float64).reciprocal()
        kept = not self.training or self.track_running_stats
        mean, var = (self.running_mean, self.running_var) if kept else (None, None)
        training = self.training or self.running_mean is None
        return self.kernel(x, self.weight, self.bias, mean, var, training, momentum, self.eps)


class WideBatchNorm1d(_WideBatchNorm):
    """N `nn.BatchNorm1d` layers: `[N, B, C]` or `[N, B, C, L]`."""

    MEMBER = nn.BatchNorm1d
    DIMS = (3, 4)


class WideBatchNorm2d(_WideBatchNorm):
    """N `nn.BatchNorm2d` layers: `[N, B, C, H, W]`."""

    MEMBER = nn.BatchNorm2d
    DIMS = (5,)


class WideBatchNorm3d(_WideBatchNorm):
    """N `nn.BatchNorm3d` layers: `[N, B, C, D, H, W]`."""

    MEMBER = nn.BatchNorm3d
    DIMS = (6,)


_BY_RANK = {2: WideBatchNorm1d, 3: WideBatchNorm1d, 4: WideBatchNorm2d, 5: WideBatchNorm3d}


@rule(*ops("batch_norm.default"))
def batch_norm_rule(b: Builder, x: Val, *args, cudnn_enabled=None) -> Val:
    primitive = _BY_RANK.get(x.rank, WideBatchNorm1d)
    b.choose(primitive, "wide")
    return b.call(primitive.kernel, *map(b.wide, (x, *args[:7])))


def wide_group_norm(
    x: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Group norm of x `[N, B, C, *spatial]`, each lane with its own scale and shift `[N, C]`.

    The lanes are folded into the channels: no group crosses a lane, scale and shift are applied in the same
    call, and after a convolution the fold is a view. `num_groups` is that of one member.
    """
    n = check_lanes("wide_group_norm", x=x, weight=weight, bias=bias)
    return unfold_channels(F.group_norm(fold_channels(x), n * num_groups, flat(weight), flat(bias), eps), n)


class WideGroupNorm(WideModule):
    """N `nn.GroupNorm` layers: `[N, B, C, *]`."""

    kernel = staticmethod(wide_group_norm)
    MEMBER = nn.GroupNorm
    CONFIG = ("num_groups", "num_channels", "eps", "affine")
    ARGUMENTS = ("num_groups", "weight", "bias", "eps")


direct_rule("group_norm.default", WideGroupNorm)


def wide_instance_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise every channel of every sample of every lane of x `[N, B, C, *spatial]` over its spatial axes.

    With `use_input_stats` by the sample's statistics, else by the running ones. The other arguments are those
    of `wide_batch_norm`, with one momentum for all lanes.
    """
    n = check_lanes("wide_instance_norm", x=x, weight=weight, bias=bias, running_mean=running_mean)
    # view, not flatten: a silent copy here would lose the update of the running statistics.
    mean, var = (None if t is None else t.view(-1) for t in (running_mean, running_var))
    w_P, b_P = flat(weight), flat(bias)
    y_BP = F.instance_norm(fold_channels(x), mean, var, w_P, b_P, use_input_stats, momentum, eps)
    return unfold_channels(y_BP, n)


class WideInstanceNorm(WideModule):
    """N `nn.InstanceNorm1d`, `2d` or `3d` layers: `[N, B, C, *spatial]`, or unbatched `[N, C, *spatial]`."""

    kernel = staticmethod(wide_instance_norm)
    MEMBER: ClassVar[Any] = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
    CONFIG = ("num_features", "eps", "momentum", "affine", "track_running_stats")

    def setup(self, members: list[Any]) -> None:
        ranks = {nn.InstanceNorm1d: 1, nn.InstanceNorm2d: 2, nn.InstanceNorm3d: 3}
        rank = next(r for kind, r in ranks.items() if isinstance(self.skeleton, kind))
        self.DIMS = (rank + 2, rank + 3)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x `[N, B, C, *spatial]` or `[N, C, *spatial]`; returns the same shape."""
        self.check_input(x)
        unbatched = x.dim() == self.DIMS[0]
        tensors = (self.weight, self.bias, self.running_mean, self.running_var)
        own = self.training or not self.track_running_stats
        momentum = 0.0 if self.momentum is None else self.momentum
        y = self.kernel(x.unsqueeze(1) if unbatched else x, *tensors, own, momentum, self.eps)
        return y.squeeze(1) if unbatched else y


class WideInstanceNorm1d(WideInstanceNorm):
    """N `nn.InstanceNorm1d` layers: `[N, B, C, L]` or `[N, C, L]`."""

    MEMBER = nn.InstanceNorm1d


class WideInstanceNorm2d(WideInstanceNorm):
    """N `nn.InstanceNorm2d` layers: `[N, B, C, H, W]` or `[N, C, H, W]`."""

    MEMBER = nn.InstanceNorm2d


class WideInstanceNorm3d(WideInstanceNorm):
    """N `nn.InstanceNorm3d` layers: `[N, B, C, D, H, W]` or `[N, C, D, H, W]`."""

    MEMBER = nn.InstanceNorm3d


direct_rule("instance_norm.default", WideInstanceNorm)
