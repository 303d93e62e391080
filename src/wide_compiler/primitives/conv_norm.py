"""Convolution, batch norm, residual and ReLU in one kernel, for inference.

A batch norm in eval mode is a scale and a shift of each channel. `fuse_conv_norms` is a pass over the
finished lane graph and fuses after convolutions with strategy "implicit_gemm".
"""

from typing import Any

import torch
from torch import Tensor, fx

from ._lanes import autocast_dtype, cast
from .chain import fuse, only_user
from .channel_norms import wide_batch_norm
from .conv import implicit_gemm_fits, wide_conv

aten = torch.ops.aten


def wide_conv_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    norm: tuple | None,
    residual: Tensor | None,
    relu: bool,
) -> Tensor:
    """Compute `relu(batch_norm(conv(x)) + residual)` in every lane; norm, residual and relu are optional.

    No gradients flow through it. `norm` is (weight, bias, running mean, running variance, eps) of the batch
    norm, tensors `[N, O]`; `residual` has the shape of the result, `[N, B, O, OH, OW]`.
    """
    if x.dim() != 5 or not implicit_gemm_fits(2, x, 1):
        y = wide_conv(x, weight, bias, stride, padding, dilation)
        if norm is not None:
            gamma, beta, mean, var, eps = norm
            y = wide_batch_norm(y, gamma, beta, mean, var, training=False, eps=eps)
        y = y if residual is None else y + residual
        return torch.relu(y) if relu else y
    from ..kernels.lane_conv import lane_conv2d

    x, weight, bias = cast(autocast_dtype(x), x, weight, bias)  # type: ignore[assignment]
    scale = shift = None
    if norm is not None:
        gamma, beta, mean, var, eps = norm
        scale = torch.rsqrt(var + eps) if gamma is None else gamma * torch.rsqrt(var + eps)
        shift = -mean * scale if beta is None else beta - mean * scale
    act = "relu" if relu else "none"
    options: dict[str, Any] = {"scale": scale, "shift": shift, "residual": residual}
    return lane_conv2d(x, weight, bias, stride, padding, dilation, act, **options)


def _is_frozen_norm(node: fx.Node, x: fx.Node) -> bool:
    if node.target is not wide_batch_norm or node.args[0] is not x:
        return False
    mean, var, training = node.args[3:6]
    return isinstance(mean, fx.Node) and isinstance(var, fx.Node) and training is False


def _fits(node: fx.Node) -> bool:
    if node.target is not wide_conv or node.args[-1] != "implicit_gemm":
        return False
    padding, groups = node.args[4], node.args[6]
    return bool(groups == 1) and not isinstance(padding, str)


def fuse_conv_norms(graph: fx.Graph) -> None:
    """Fuse batch norm, sum and ReLU into the "implicit_gemm" convolution of which they are the only users."""
    for conv in [node for node in graph.nodes if _fits(node)]:
        nodes, norm, residual = [conv], None, None
        user = only_user(conv)
        if user is not None and _is_frozen_norm(user, conv):
            norm = (*user.args[1:5], user.args[7])
            nodes.append(user)
            user = only_user(user)
        # The other operand of the sum is the residual; both must have the shape of the result.
        if user is not None and _is_residual_sum(user, nodes[-1]):
            residual = user.args[1] if user.args[0] is nodes[-1] else user.args[0]
            nodes.append(user)
            user = only_user(user)
        relu = user is not None and user.target is aten.relu.default
        if user is not None and relu:
            nodes.append(user)
        if len(nodes) > 1:
            fuse(graph, nodes, wide_conv_norm, (*conv.args[:6], norm, residual, relu))


def _is_residual_sum(total: fx.Node, one: fx.Node) -> bool:
    added = total.target is aten.add.Tensor and not total.kwargs
    if not (added and all(isinstance(a, fx.Node) for a in total.args)):
        return False
    other = total.args[1] if total.args[0] is one else total.args[0]
    shapes = [getattr(node, "meta", {}).get("shape") for node in (total, other)]
    return other is not one and shapes[0] is not None and shapes[0] == shapes[1]
