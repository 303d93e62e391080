"""RMS norm of N lanes: one normalisation, then each lane's own scale.

Shapes: N lanes, `*` any number of axes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from ._lanes import check_lanes
from ._module import WideModule, direct_rule
from .layer_norm import lane_affine


def wide_rms_norm(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """Divide by the root mean square over the last axes, then scale each lane by its own weight.

    Args:
        x: `[N, *, *normalized_shape]`.
        normalized_shape: of one member.
        weight: `[N, *normalized_shape]` or None.
        eps: added to the mean square; None is torch's own choice for the dtype.

    Returns:
        The shape of x.
    """
    check_lanes("wide_rms_norm", x=x, weight=weight)
    return lane_affine(F.rms_norm(x, list(normalized_shape), eps=eps), weight, None)


class WideRMSNorm(WideModule):
    """N `nn.RMSNorm` layers: `[N, *, *normalized_shape]`."""

    kernel = staticmethod(wide_rms_norm)

    MEMBER = nn.RMSNorm
    CONFIG = ("normalized_shape", "eps", "elementwise_affine")
    STRATEGIES = ("wide",)
    ARGUMENTS = ("normalized_shape", "weight", "eps")


direct_rule("rms_norm.default", WideRMSNorm)
