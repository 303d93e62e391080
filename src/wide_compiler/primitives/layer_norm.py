"""Norms over the last axes of N lanes: one normalisation, then scale (and shift) per lane.

Shapes: N lanes, `*` any number of axes, S the normalised axes (`normalized_shape`).
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ._lanes import align, check_lanes
from ._module import WideModule, direct_rule


def lane_affine(y: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Compute `y * weight + bias` in y's dtype: y `[N, *, S]`, weight and bias `[N, S]` or None."""
    if weight is None:
        return y if bias is None else (y + align(bias, y.dim(), y)).to(y.dtype)
    if bias is None:
        return (y * align(weight, y.dim(), y)).to(y.dtype)
    return torch.addcmul(align(bias, y.dim(), y), y, align(weight, y.dim(), y)).to(y.dtype)


def wide_layer_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Layer norm of x `[N, *, *normalized_shape]` over the last axes.

    Each lane has its own scale and shift `[N, *normalized_shape]`, or none. `normalized_shape` is that of one
    member.
    """
    check_lanes("wide_layer_norm", x=x, weight=weight, bias=bias)
    return lane_affine(F.layer_norm(x, list(normalized_shape), eps=eps), weight, bias)


class WideLayerNorm(WideModule):
    """N `nn.LayerNorm` layers: `[N, *, *normalized_shape]`."""

    kernel = staticmethod(wide_layer_norm)
    MEMBER = nn.LayerNorm
    CONFIG = ("normalized_shape", "eps", "elementwise_affine")
    ARGUMENTS = ("normalized_shape", "weight", "bias", "eps")


direct_rule("layer_norm.default", WideLayerNorm)


def wide_rms_norm(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """Divide x `[N, *, *normalized_shape]` by the root mean square over the last axes.

    Then each lane is scaled by its own weight `[N, *normalized_shape]`, if there is one. `eps` is added to
    the mean square; None uses torch's default for the dtype.
    """
    check_lanes("wide_rms_norm", x=x, weight=weight)
    return lane_affine(F.rms_norm(x, list(normalized_shape), eps=eps), weight, None)


class WideRMSNorm(WideModule):
    """N `nn.RMSNorm` layers: `[N, *, *normalized_shape]`."""

    kernel = staticmethod(wide_rms_norm)
    MEMBER = nn.RMSNorm
    CONFIG = ("normalized_shape", "eps", "elementwise_affine")
    ARGUMENTS = ("normalized_shape", "weight", "eps")


direct_rule("rms_norm.default", WideRMSNorm)
