"""Rules of the convolutions, plain and transposed."""

import torch

from ..widen.builder import Builder, Val
from ..widen.rules import ops, rule
from .conv import shared_conv
from .conv_modules import (
    WideConv1d,
    WideConv2d,
    WideConv3d,
    WideConvTranspose1d,
    WideConvTranspose2d,
    WideConvTranspose3d,
)
from .conv_strategies import auto_strategy, conv_choices

_WIDE_CONV = {1: WideConv1d, 2: WideConv2d, 3: WideConv3d}
_WIDE_CONV_TRANSPOSE = {1: WideConvTranspose1d, 2: WideConvTranspose2d, 3: WideConvTranspose3d}


def _batched(b: Builder, x: Val, weight: Val) -> tuple[Val, bool]:
    """A member may leave out the batch dim; a batch of one stands for it."""
    if x.rank == weight.rank - 1:
        return b.call(torch.unsqueeze, x, int(x.wide), wide=x.wide), True
    return x, False


@rule(*ops("conv1d", "conv2d", "conv3d"))
def conv_rule(
    b: Builder, x: Val, weight: Val, bias: Val | None = None, stride=1, padding=0, dilation=1, groups=1
) -> Val:
    primitive = _WIDE_CONV[weight.rank - 2]
    x, single = _batched(b, x, weight)
    rank = weight.rank - 2
    strategy = b.choose(primitive, auto_strategy(rank, x.value), conv_choices(rank, x.value, groups))
    settings = [_spatial(v, weight.rank - 2) for v in (stride, padding, dilation)]
    if not x.wide and weight.wide and strategy != "sequential":
        b.strategy = "one convolution" if groups == 1 else strategy
        out = b.call(shared_conv, x, weight, b.wide(bias), *settings, groups, strategy)
    else:
        out = b.call(primitive.kernel, b.wide(x), b.wide(weight), b.wide(bias), *settings, groups, strategy)
    return b.call(torch.squeeze, out, 1) if single else out


@rule(*ops("conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input"))
def conv_transpose_rule(
    b: Builder,
    x: Val,
    weight: Val,
    bias: Val | None = None,
    stride=1,
    padding=0,
    output_padding=0,
    groups=1,
    dilation=1,
) -> Val:
    primitive = _WIDE_CONV_TRANSPOSE[weight.rank - 2]
    x, single = _batched(b, x, weight)
    strategy = b.choose(primitive, auto_strategy(weight.rank - 2, x.value))
    stride, padding, output_padding, dilation = (
        _spatial(v, weight.rank - 2) for v in (stride, padding, output_padding, dilation)
    )
    out = b.call(
        primitive.kernel,
        *(
            b.wide(x),
            b.wide(weight),
            b.wide(bias),
            stride,
            padding,
            output_padding,
            groups,
            dilation,
            strategy,
        ),
    )
    return b.call(torch.squeeze, out, 1) if single else out


def _spatial(value, rank: int):
    """ATen may be given one number for all spatial dims."""
    if isinstance(value, str):
        return value
    value = list(value) if isinstance(value, (list, tuple)) else [value]
    return tuple(value * rank if len(value) == 1 else value)
