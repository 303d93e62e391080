"""Group norm of N lanes: a group norm of N*C channels in N*num_groups groups.

Shapes: N lanes, B batch, C channels, P folded N*C; suffixes list the leading axes only.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from ._lanes import check_lanes, flat, fold_channels, unfold_channels
from ._module import WideModule, direct_rule


def wide_group_norm(
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Group norm, each lane with its own scale and shift.

    The lanes are folded into the channels: no group crosses a lane, the scale and shift stay inside
    the one call, and after a convolution the fold is free.

    Args:
        x: `[N, B, C, *spatial]` (no spatial axes: `[N, B, C]`).
        num_groups: of ONE member.
        weight, bias: `[N, C]` or None.
        eps: added to the variance.

    Returns:
        `[N, B, C, *spatial]`, a view of `[B, N*C, *spatial]`.
    """
    n = check_lanes("wide_group_norm", x=x, weight=weight, bias=bias)
    return unfold_channels(F.group_norm(fold_channels(x), n * num_groups, flat(weight), flat(bias), eps), n)


class WideGroupNorm(WideModule):
    """N `nn.GroupNorm` layers: `[N, B, C, *]`."""

    kernel = staticmethod(wide_group_norm)

    MEMBER = nn.GroupNorm
    CONFIG = ("num_groups", "num_channels", "eps", "affine")
    STRATEGIES = ("wide",)
    ARGUMENTS = ("num_groups", "weight", "bias", "eps")


direct_rule("group_norm.default", WideGroupNorm)
