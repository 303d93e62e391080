"""PReLU of N lanes.

Shapes: N lanes, B batch, C channels.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ArgumentError
from ._lanes import check_lanes, fold_channels, unfold_channels
from ._module import WideModule, direct_rule


def wide_prelu(x: Tensor, weight: Tensor) -> Tensor:
    """Return x `[N, B, C, *]` where it is positive, `weight * x` elsewhere, with weight `[N, C]`.

    With one slope per lane, weight `[N, 1]`, x may be `[N, *]` of any rank.
    """
    n = check_lanes("wide_prelu", x=x, weight=weight)
    slopes = weight.shape[1]
    if slopes == 1:  # F.prelu's channel axis is dimension 1: use it for the lanes
        return F.prelu(x.unsqueeze(0), weight.flatten()).squeeze(0)
    if x.dim() < 3 or x.shape[2] != slopes:
        raise ArgumentError(
            f"wide_prelu: expected x [N, B, C, *] with C = {slopes} channels (from the weight "
            f"{tuple(weight.shape)}), got {tuple(x.shape)}"
        )
    return unfold_channels(F.prelu(fold_channels(x), weight.flatten()), n)


class WidePReLU(WideModule):
    """N `nn.PReLU` layers: `[N, B, C, *]`, or any `[N, *]` with one slope per lane."""

    kernel = staticmethod(wide_prelu)
    MEMBER = nn.PReLU
    CONFIG = ("num_parameters",)
    ARGUMENTS = ("weight",)


direct_rule("prelu.default", WidePReLU)
