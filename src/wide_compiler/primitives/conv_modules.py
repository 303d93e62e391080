"""Modules and rules of N convolutions: plain and transposed, in 1, 2 or 3 dimensions.

Shapes: N lanes, B batch, C in-channels, O out-channels.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ArgumentError
from ..widen.builder import Builder, Val
from ..widen.rules import ops, rule
from ._lanes import fold_channels, unfold_channels
from ._module import WideModule
from .conv import (
    CONV_STRATEGIES,
    TRANSPOSE_STRATEGIES,
    auto_strategy,
    conv_choices,
    shared_conv,
    wide_conv,
    wide_conv_transpose,
)


def pad_spatial(x: Tensor, pads: Sequence[int], mode: str) -> Tensor:
    """Pad the spatial axes of `[N, B, C, *spatial]` (or `[N, C, *spatial]`) with `F.pad`.

    The lanes are folded into the channels because F.pad supports a limited rank; the fold of the following
    convolution is then a view.
    """
    if x.dim() == len(pads) // 2 + 2:
        return pad_spatial(x.unsqueeze(1), pads, mode).squeeze(1)
    return unfold_channels(F.pad(fold_channels(x), list(pads), mode=mode), x.shape[0])


_CONFIG = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups")


class _WideConv(WideModule):
    kernel = staticmethod(wide_conv)
    CONFIG = (*_CONFIG, "padding_mode", "_reversed_padding_repeated_twice")
    STRATEGIES: ClassVar[tuple[str, ...]] = CONV_STRATEGIES

    def forward(self, x: Tensor) -> Tensor:
        """Convolve x `[N, B, C, *spatial]` or `[N, C, *spatial]`; returns the same layout with O channels."""
        self.check_input(x)
        padding = self.padding
        if self.padding_mode != "zeros":
            x = pad_spatial(x, self._reversed_padding_repeated_twice, self.padding_mode)
            padding = 0
        options = (self.stride, padding, self.dilation, self.groups, self.strategy)
        return self.kernel(x, self.weight, self.bias, *options)


class WideConv1d(_WideConv):
    """N `nn.Conv1d` layers: `[N, B, C, L]`."""

    MEMBER = nn.Conv1d
    STRATEGIES = ("grouped", "streams", "sequential")
    DIMS = (3, 4)


class WideConv2d(_WideConv):
    """N `nn.Conv2d` layers: `[N, B, C, H, W]`."""

    MEMBER = nn.Conv2d
    DIMS = (4, 5)


class WideConv3d(_WideConv):
    """N `nn.Conv3d` layers: `[N, B, C, D, H, W]`."""

    MEMBER = nn.Conv3d
    STRATEGIES = ("grouped", "channels_last", "streams", "sequential")
    DIMS = (5, 6)


class _WideConvTranspose(WideModule):
    kernel = staticmethod(wide_conv_transpose)
    CONFIG = (*_CONFIG, "output_padding")
    STRATEGIES: ClassVar[tuple[str, ...]] = TRANSPOSE_STRATEGIES

    def _output_padding(self, x: Tensor, output_size: Sequence[int] | None) -> Sequence[int]:
        """Return the output padding that gives the spatial size in the last axes of `output_size`."""
        if output_size is None:
            return self.output_padding
        rank = len(self.kernel_size)
        want, have = tuple(output_size)[-rank:], x.shape[-rank:]
        per_axis = zip(want, have, self.kernel_size, self.stride, self.padding, self.dilation, strict=True)
        extra = [w - ((h - 1) * s - 2 * p + d * (k - 1) + 1) for w, h, k, s, p, d in per_axis]
        if any(not 0 <= e < max(s, d) for e, s, d in zip(extra, self.stride, self.dilation, strict=True)):
            least = [w - e for w, e in zip(want, extra, strict=True)]
            most = [m + max(s, d) - 1 for m, s, d in zip(least, self.stride, self.dilation, strict=True)]
            raise ArgumentError(
                f"{type(self).__name__}: output_size {tuple(output_size)} cannot be reached from an input of "
                f"size {tuple(have)}; each axis must lie between {least} and {most}"
            )
        return extra

    def forward(self, x: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """Convolve x `[N, B, C, *spatial]` or `[N, C, *spatial]`; returns the same layout with O channels.

        `output_size`: the spatial size of the result where the stride leaves it ambiguous, as in torch.
        """
        self.check_input(x)
        size = self.stride, self.padding, self._output_padding(x, output_size)
        return self.kernel(x, self.weight, self.bias, *size, self.groups, self.dilation, self.strategy)


class WideConvTranspose1d(_WideConvTranspose):
    """N `nn.ConvTranspose1d` layers: `[N, B, C, L]`."""

    MEMBER = nn.ConvTranspose1d
    STRATEGIES = ("grouped", "sequential")
    DIMS = (3, 4)


class WideConvTranspose2d(_WideConvTranspose):
    """N `nn.ConvTranspose2d` layers: `[N, B, C, H, W]`."""

    MEMBER = nn.ConvTranspose2d
    DIMS = (4, 5)


class WideConvTranspose3d(_WideConvTranspose):
    """N `nn.ConvTranspose3d` layers: `[N, B, C, D, H, W]`."""

    MEMBER = nn.ConvTranspose3d
    DIMS = (5, 6)


_WIDE_CONV = {1: WideConv1d, 2: WideConv2d, 3: WideConv3d}
_WIDE_CONV_TRANSPOSE = {1: WideConvTranspose1d, 2: WideConvTranspose2d, 3: WideConvTranspose3d}


@rule(*ops("conv1d", "conv2d", "conv3d"))
def conv_rule(
    b: Builder, x: Val, weight: Val, bias: Val | None = None, stride=1, padding=0, dilation=1, groups=1
) -> Val:
    rank = weight.rank - 2
    primitive = _WIDE_CONV[rank]
    strategy = b.choose(primitive, auto_strategy(rank, x.value), conv_choices(rank, x.value, groups))
    settings = [_spatial(v, rank) for v in (stride, padding, dilation)]
    if not x.wide and weight.wide and strategy != "sequential":
        b.strategy = "one convolution" if groups == 1 else strategy
        return b.call(shared_conv, x, weight, b.wide(bias), *settings, groups, strategy)
    return b.call(primitive.kernel, *map(b.wide, (x, weight, bias)), *settings, groups, strategy)


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
    rank = weight.rank - 2
    primitive = _WIDE_CONV_TRANSPOSE[rank]
    strategy = b.choose(primitive, auto_strategy(rank, x.value))
    *sizes, dilation = (_spatial(v, rank) for v in (stride, padding, output_padding, dilation))
    tensors = map(b.wide, (x, weight, bias))
    return b.call(primitive.kernel, *tensors, *sizes, groups, dilation, strategy)


def _spatial(value, rank: int):
    """Repeat a single number for all spatial axes, as ATen does."""
    if isinstance(value, str):
        return value
    value = list(value) if isinstance(value, (list, tuple)) else [value]
    return tuple(value * rank if len(value) == 1 else value)
