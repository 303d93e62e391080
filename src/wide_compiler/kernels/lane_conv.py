"""2-D convolutions of N lanes as one implicit matrix product in Triton, with bias and ReLU fused.

A grouped convolution uses a kernel made for many channels on small groups. Here each lane is a separate
product: rows M are the output pixels of the batch, columns the output channels O, and the sum runs over (c,
kh, kw). Import this module only if `_triton.available()`: it needs triton.

Shapes: N lanes, B batch, C in-channels, O out-channels, H x W the input, OH x OW the output, M = B*OH*OW. The
result is laid out in memory as `[B, OH, OW, N, O]`, which is channels-last of the folded `[B, N*O, OH, OW]`;
layers that fold their lanes read it without a copy.
"""

from collections.abc import Sequence

import torch
import triton
from torch import Tensor

from ..errors import ArgumentError
from ._triton import next_pow2, on_device, products, span
from .conv_backward import backward, setup_context
from .conv_forward import conv_kernel
from .operands import packed
from .streams import Ints, per_axis, plain_padding

ACTIVATIONS = ("none", "relu")
BACKWARDS = ("own", "library")


def _empty_output(x: Tensor, weight: Tensor, stride, padding, dilation) -> Tensor:
    """Return an empty output `[N, B, O, OH, OW]` in the module's memory order."""
    pads = zip(x.shape[3:], weight.shape[3:], stride, padding, dilation, strict=True)
    OH, OW = ((size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, s, p, d in pads)
    return x.new_empty(x.shape[1], OH, OW, x.shape[0], weight.shape[1]).permute(3, 0, 4, 1, 2)


@torch.library.custom_op("wide_compiler::lane_conv2d", mutates_args=())
def _lane_conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    activation: str,
    backward: str = "own",
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """Run `lane_conv2d`; scale, shift and residual get no gradient."""
    y = _empty_output(x, weight, stride, padding, dilation)
    (N, B, O, OH, OW), (C, H, W), (KH, KW) = y.shape, x.shape[2:], weight.shape[3:]
    if y.numel() == 0:
        return y
    M = B * OH * OW
    last = x.stride(2) == 1 and C > 1
    mode = products(x, "conv")
    given, weight = weight, packed(weight, 2, M, mode)
    in_order = (1, KW * C, C) if last else (KH * KW, KW, 1)
    vectors = [x if v is None else v.contiguous() for v in (bias, scale, shift)]
    reach = [span(t) for t in (x, y, residual) if t is not None]
    with on_device(x):
        conv_kernel[lambda meta: (triton.cdiv(M, meta["BM"]) * triton.cdiv(O, meta["BN"]), N)](
            x, weight, *vectors, x if residual is None else residual, y, N, M,
            *x.stride(), *weight.stride(), *((0,) * 5 if residual is None else residual.stride()),
            next_pow2(M),  # batches of similar size share the tuned blocks
            C=C, O=O, H=H, W=W, OH=OH, OW=OW, KH=KH, KW=KW, SH=stride[0], SW=stride[1],
            PH=padding[0], PW=padding[1], DH=dilation[0], DW=dilation[1],
            LONG=max(reach) >= 2**31, LAST=last, PACKED=weight.stride()[2:] == in_order,
            HAS_BIAS=bias is not None, HAS_SCALE=scale is not None, HAS_SHIFT=shift is not None,
            HAS_RESIDUAL=residual is not None, RELU=activation == "relu",
            PRECISION=mode, W_ROUNDED=weight is not given,
        )  # fmt: skip
    return y


@_lane_conv2d.register_fake
def _(x, weight, bias, stride, padding, dilation, *options):
    return _empty_output(x, weight, stride, padding, dilation)


_lane_conv2d.register_autograd(backward, setup_context=setup_context)


def lane_conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: Ints | str = 0,
    dilation: Ints = 1,
    activation: str = "none",
    backward: str = "own",
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """Compute `y[n] = activation(conv2d(x[n], weight[n], bias[n]))` for every lane n, as one kernel.

    With any of scale, shift and residual: `activation(conv2d(..) * scale + shift + residual)`, without
    gradients. The result `[N, B, O, OH, OW]` is laid out in memory as `[B, OH, OW, N, O]`.

    Args:
        x: `[N, B, C, H, W]`, any strides; expand an input shared by all lanes.
        weight, bias: `[N, O, C, kh, kw]` of any strides, and `[N, O]` or None.
        activation: "none" or "relu".
        backward: "own" (Triton kernels) or "library" (torch's grouped convolution in channels-last).
        scale, shift, residual: `[N, O]`, `[N, O]` and `[N, B, O, OH, OW]`, or None.
    """
    if activation not in ACTIVATIONS:
        raise ArgumentError(f"lane_conv2d: unknown activation {activation!r}; choose one of {ACTIVATIONS}")
    if backward not in BACKWARDS:
        raise ArgumentError(f"lane_conv2d: unknown backward {backward!r}; choose one of {BACKWARDS}")
    stride, dilation = per_axis(stride, 2), per_axis(dilation, 2)
    x, padding = plain_padding(x, weight.shape[3:], padding, dilation)
    extra = scale, shift, residual
    given = [t for t in (x, weight, bias, *extra) if t is not None]
    inference = any(t is not None for t in extra)
    if inference and torch.is_grad_enabled() and any(t.requires_grad for t in given):
        raise ArgumentError(
            "lane_conv2d: scale, shift and residual are for inference; they have no gradients"
        )
    return _lane_conv2d(x, weight, bias, stride, padding, dilation, activation, backward, *extra)
