"""Backward of `lane_conv2d`: by Triton kernels, or by torch's grouped convolution.

Shapes as in `lane_conv`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from .conv_dw import lane_conv2d_dw
from .conv_dx import lane_conv2d_dx


def setup_context(ctx, inputs, output):
    """Save the tensors that `backward` needs."""
    x, weight, _, *ctx.geometry, ctx.activation, ctx.backward, _, _, _ = inputs
    ctx.save_for_backward(x, weight, output if ctx.activation == "relu" else None)


def backward(ctx, dy):
    """Return the gradients of x, weight and bias that are needed; dy as in `conv_dx`."""
    x, weight, y = ctx.saved_tensors
    if ctx.activation == "relu":
        dy = torch.ops.aten.threshold_backward(dy, y, 0)
    need_x, need_weight, need_bias = needed = ctx.needs_input_grad[:3]
    if ctx.backward == "library":
        return (*library_backward(dy, x, weight, ctx.geometry, needed), *[None] * 8)
    dw = lane_conv2d_dw(dy, x, weight.shape[3:], *ctx.geometry) if need_weight else None
    if dw is not None and dw.stride() != weight.stride():
        dw = torch.empty_like(weight).copy_(dw)  # same strides: later ops need no transpose
    dx = lane_conv2d_dx(dy, weight, x.shape[3:], *ctx.geometry) if need_x else None
    return dx, dw, dy.sum((1, 3, 4)) if need_bias else None, *[None] * 8


def _folded(t: Tensor) -> Tensor:
    """Return `[N, B, C, H, W]` as channels-last `[B, N*C, H, W]`; a view if the memory order matches."""
    return t.permute(1, 3, 4, 0, 2).contiguous().flatten(3).permute(0, 3, 1, 2)


def library_backward(
    dy: Tensor, x: Tensor, weight: Tensor, geometry: Sequence[Sequence[int]], needed: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of input, weight and bias by torch's grouped convolution; None if not needed."""
    n, channels = weight.shape[:2]
    settings = (*map(list, geometry), False, [0, 0], n, list(needed))
    folded = (_folded(dy), _folded(x), weight.flatten(0, 1), [n * channels])
    dx, dw, db = torch.ops.aten.convolution_backward(*folded, *settings)
    dx = dx.unflatten(1, (n, -1)).transpose(0, 1) if needed[0] else None
    dw = dw.unflatten(0, (n, -1)) if needed[1] else None
    return dx, dw, db.unflatten(0, (n, -1)) if needed[2] else None
