"""Instance norm of N lanes: an instance norm of N*C channels.

Shapes: N lanes, B batch, C channels, P folded N*C; suffixes list the leading axes only.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from ._lanes import check_lanes, flat, fold_channels, unfold_channels
from ._module import WideModule, direct_rule


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
    """Normalise every channel of every sample of every lane over its spatial axes.

    Args:
        x: `[N, B, C, *spatial]`.
        weight, bias: `[N, C]` or None.
        running_mean, running_var: `[N, C]`, contiguous, or None. Updated in place when
            `use_input_stats`.
        use_input_stats: normalise by the sample's own statistics or by the running ones.
        momentum: weight of the new statistics in the running ones.
        eps: added to the variance.

    Returns:
        `[N, B, C, *spatial]`, a view of `[B, N*C, *spatial]`.
    """
    n = check_lanes("wide_instance_norm", x=x, weight=weight, bias=bias, running_mean=running_mean)
    y_BP = F.instance_norm(
        fold_channels(x),
        # view, not flatten: a silent copy here would lose the update of the running statistics.
        None if running_mean is None else running_mean.view(-1),
        None if running_var is None else running_var.view(-1),
        flat(weight),
        flat(bias),
        use_input_stats,
        momentum,
        eps,
    )
    return unfold_channels(y_BP, n)


class WideInstanceNorm(WideModule):
    """N `nn.InstanceNorm1d`, `2d` or `3d` layers: `[N, B, C, *spatial]`, or unbatched `[N, C, *spatial]`."""

    kernel = staticmethod(wide_instance_norm)

    MEMBER: ClassVar[type[nn.Module] | tuple[type[nn.Module], ...]] = (
        nn.InstanceNorm1d,
        nn.InstanceNorm2d,
        nn.InstanceNorm3d,
    )
    CONFIG = ("num_features", "eps", "momentum", "affine", "track_running_stats")
    STRATEGIES = ("wide",)

    weight: Tensor | None
    bias: Tensor | None
    running_mean: Tensor | None
    running_var: Tensor | None

    def setup(self, members: list[Any]) -> None:
        ranks = {nn.InstanceNorm1d: 1, nn.InstanceNorm2d: 2, nn.InstanceNorm3d: 3}
        rank = next(r for kind, r in ranks.items() if isinstance(self.skeleton, kind))
        self.DIMS = (rank + 2, rank + 3)

    def forward(self, x: Tensor) -> Tensor:
        """x: `[N, B, C, *spatial]` or `[N, C, *spatial]` -> the same shape."""
        self.check_input(x)
        unbatched = x.dim() == self.DIMS[0]
        y = self.kernel(
            x.unsqueeze(1) if unbatched else x,
            self.weight,
            self.bias,
            self.running_mean,
            self.running_var,
            self.training or not self.track_running_stats,
            0.0 if self.momentum is None else self.momentum,
            self.eps,
        )
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
