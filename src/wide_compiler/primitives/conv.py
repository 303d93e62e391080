"""Convolutions of N lanes as one grouped convolution.

Shapes: N lanes, B batch, C in-channels, O out-channels, G groups of one member, P folded N*C (or N*O).
Suffixes list the leading axes only; 1, 2 or 3 spatial axes follow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import kernels
from ..widen.builder import Builder, Val
from ..widen.rules import ops, rule
from ._lanes import check_lanes, flat, fold_channels, per_lane, resolve, unfold_channels
from ._module import WideModule

CONV_STRATEGIES = ("grouped", "channels_last", "implicit_gemm", "implicit_forward", "streams", "sequential")
TRANSPOSE_STRATEGIES = ("grouped", "channels_last", "sequential")

Ints = int | Sequence[int]

_CONV: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_CONV_TRANSPOSE: dict[int, Callable[..., Tensor]] = {
    1: F.conv_transpose1d,
    2: F.conv_transpose2d,
    3: F.conv_transpose3d,
}
_CHANNELS_LAST = {2: torch.channels_last, 3: torch.channels_last_3d}


def auto_strategy(rank: int, x: Tensor) -> str:
    """A CPU runs groups of few channels two to four times slower in the contiguous format."""
    return "channels_last" if rank in _CHANNELS_LAST and x.device.type == "cpu" else "grouped"


def conv_choices(rank: int, x: Tensor, groups: int) -> tuple[str, ...]:
    """The strategies worth trying on `x`, for members with so many groups."""
    choices = ["grouped", "sequential"]
    if rank in _CHANNELS_LAST:
        choices.insert(1, "channels_last")
    if x.is_cuda:
        choices.insert(-1, "streams")
        if implicit_gemm_fits(rank, x, groups):
            choices[-1:-1] = ["implicit_gemm", "implicit_forward"]
    return tuple(choices)


def implicit_gemm_fits(rank: int, x: Tensor, groups: int) -> bool:
    return rank == 2 and groups == 1 and x.is_cuda and kernels.can_run(x)


def _possible(kind: str, rank: int, x: Tensor, groups: int) -> str:
    """`kind`, or what stands in for it where it cannot run."""
    if kind.startswith("implicit") and not implicit_gemm_fits(rank, x, groups):
        return "grouped"
    return "sequential" if kind == "streams" and not x.is_cuda else kind


def _spatial_rank(op: str, x: Tensor, weight: Tensor, strategy: str) -> tuple[int, str]:
    """The number of spatial axes of a stacked kernel `[N, O, C, *k]` and the strategy it runs with."""
    rank = weight.dim() - 3
    if rank not in _CONV:
        raise ValueError(
            f"{op}: expected a weight [N, O, C, *kernel] with 1, 2 or 3 kernel axes, "
            f"got {tuple(weight.shape)}"
        )
    choices = [s for s in CONV_STRATEGIES if s != "channels_last" or rank in _CHANNELS_LAST]
    return rank, resolve(strategy, choices, auto_strategy(rank, x), op=f"{op} with {rank} spatial axes")


def _wide(
    op: str,
    fn: Callable[..., Tensor],
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    rank: int,
    kind: str,
    groups: int,
    options: dict[str, object],
) -> Tensor:
    """What the plain and the transposed convolution have in common: fold, one call, unfold."""
    n = check_lanes(op, x=x, weight=weight, bias=bias)
    if x.dim() == rank + 2:  # unbatched member input [C, *spatial]
        y = _wide(op, fn, x.unsqueeze(1), weight, bias, rank, kind, groups, options)
        return y.squeeze(1)
    if x.dim() != rank + 3:
        raise ValueError(
            f"{op}: expected x [N, B, C, *spatial] with {rank} spatial axes (from the weight "
            f"{tuple(weight.shape)}), got {tuple(x.shape)}"
        )
    if kind == "sequential":
        lanes = zip(x.unbind(0), weight.unbind(0), per_lane(bias, n), strict=True)
        return torch.stack([fn(x_, w_, b_, groups=groups, **options) for x_, w_, b_ in lanes])
    x_BP = fold_channels(x)
    if kind == "channels_last":
        # The backend follows the input's format for the kernel and the output.
        x_BP = x_BP.contiguous(memory_format=_CHANNELS_LAST[rank])
    y_BP = fn(x_BP, weight.flatten(0, 1), flat(bias), groups=n * groups, **options)
    return unfold_channels(y_BP, n)


def wide_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: Ints | str = 0,
    dilation: Ints = 1,
    groups: int = 1,
    strategy: str = "auto",
) -> Tensor:
    """Convolution in 1, 2 or 3 dimensions, each lane with its own kernel.

    Args:
        x: `[N, B, C, *spatial]`, or `[N, C, *spatial]` for an unbatched member.
        weight: `[N, O, C/groups, *kernel]`; its rank says how many spatial axes there are.
        bias: `[N, O]` or None.
        stride, dilation: of the member, an int or one per spatial axis.
        padding: the same, or "same" / "valid".
        groups: of ONE member.
        strategy: "grouped" (one convolution of `N*groups` groups), "channels_last" (the same in
            channels-last memory format, 2-D and 3-D only), "implicit_gemm" (an own kernel, 2-D on CUDA with
            groups == 1, else "grouped"), "implicit_forward" (the same, backward as "channels_last"),
            "streams" (one call per lane on several CUDA streams),
            "sequential" (one call per lane), or "auto", which is "channels_last" for 2-D and 3-D on a CPU
            and "grouped" elsewhere.

    Returns:
        `[N, B, O, *spatial]`; for the folded strategies a view of `[B, N*O, *spatial]`, which the
        next convolution or batch norm folds back without a copy.
    """
    rank, kind = _spatial_rank("wide_conv", x, weight, strategy)
    kind = _possible(kind, rank, x, groups)
    if kind == "streams" and x.dim() == rank + 3:
        from ..kernels.streams import streamed_conv

        return streamed_conv(x, weight, bias, stride, padding, dilation, groups)
    if kind.startswith("implicit") and x.dim() == rank + 3:
        from ..kernels.conv import lane_conv2d

        backward = "own" if kind == "implicit_gemm" else "library"
        return lane_conv2d(x, weight, bias, stride, padding, dilation, backward=backward)
    options: dict[str, object] = {"stride": stride, "padding": padding, "dilation": dilation}
    return _wide("wide_conv", _CONV[rank], x, weight, bias, rank, kind, groups, options)


def wide_conv_transpose(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: Ints = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
    strategy: str = "auto",
) -> Tensor:
    """Transposed convolution in 1, 2 or 3 dimensions, each lane with its own kernel.

    Args:
        x: `[N, B, C, *spatial]`, or `[N, C, *spatial]` for an unbatched member.
        weight: `[N, C, O/groups, *kernel]`.
        bias: `[N, O]` or None.
        stride, padding, output_padding, dilation: of the member, an int or one per spatial axis.
        groups: of ONE member.
        strategy: as in `wide_conv`.

    Returns:
        `[N, B, O, *spatial]`, laid out as in `wide_conv`.
    """
    rank, kind = _spatial_rank("wide_conv_transpose", x, weight, strategy)
    options: dict[str, object] = {
        "stride": stride,
        "padding": padding,
        "output_padding": output_padding,
        "dilation": dilation,
    }
    fn = _CONV_TRANSPOSE[rank]
    return _wide("wide_conv_transpose", fn, x, weight, bias, rank, kind, groups, options)


def shared_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: Ints | str = 0,
    dilation: Ints = 1,
    groups: int = 1,
    strategy: str = "auto",
) -> Tensor:
    """`wide_conv` of an input that is the same for every lane.

    With groups == 1 this is ONE ordinary convolution with N*O output channels: the input is read
    once, not N times. With more groups (or strategy "sequential") the input is expanded to all lanes.

    Args:
        x: `[B, C, *spatial]`, or `[C, *spatial]` for an unbatched member; no lane axis.
        weight, bias, stride, padding, dilation, groups, strategy: as in `wide_conv`.

    Returns:
        `[N, B, O, *spatial]`, a view of `[B, N*O, *spatial]`.
    """
    rank, kind = _spatial_rank("shared_conv", x, weight, strategy)
    n = check_lanes("shared_conv", weight=weight, bias=bias)
    if groups != 1 or kind in ("sequential", "streams") or kind.startswith("implicit"):
        x = x.expand(n, *x.shape)
        return wide_conv(x, weight, bias, stride, padding, dilation, groups, kind)
    if x.dim() == rank + 1:
        y = shared_conv(x.unsqueeze(0), weight, bias, stride, padding, dilation, groups, kind)
        return y.squeeze(1)
    if kind == "channels_last":
        x = x.contiguous(memory_format=_CHANNELS_LAST[rank])
    y_BP = _CONV[rank](x, weight.flatten(0, 1), flat(bias), stride, padding, dilation)
    return unfold_channels(y_BP, n)


def pad_spatial(x: Tensor, pads: Sequence[int], mode: str) -> Tensor:
    """Pad the spatial axes of `[N, B, C, *spatial]` (or `[N, C, *spatial]`) as `F.pad` does.

    `pads` is in F.pad's order: last axis first, two numbers for each. The lanes are folded into the
    channels so that F.pad sees the rank it knows and the convolution that follows folds for free.
    """
    if x.dim() == len(pads) // 2 + 2:
        return pad_spatial(x.unsqueeze(1), pads, mode).squeeze(1)
    return unfold_channels(F.pad(fold_channels(x), list(pads), mode=mode), x.shape[0])


class _WideConv(WideModule):
    kernel = staticmethod(wide_conv)

    CONFIG = (
        "in_channels",
        "out_channels",
        "kernel_size",
        "stride",
        "padding",
        "dilation",
        "groups",
        "padding_mode",
        "_reversed_padding_repeated_twice",
    )
    STRATEGIES: ClassVar[tuple[str, ...]] = CONV_STRATEGIES

    weight: Tensor
    bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        """x: `[N, B, C, *spatial]` or `[N, C, *spatial]` -> the same with O channels."""
        self.check_input(x)
        padding = self.padding
        if self.padding_mode != "zeros":
            x = pad_spatial(x, self._reversed_padding_repeated_twice, self.padding_mode)
            padding = 0
        return self.kernel(
            x, self.weight, self.bias, self.stride, padding, self.dilation, self.groups, self.strategy
        )


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

    CONFIG = (
        "in_channels",
        "out_channels",
        "kernel_size",
        "stride",
        "padding",
        "output_padding",
        "dilation",
        "groups",
    )
    STRATEGIES: ClassVar[tuple[str, ...]] = TRANSPOSE_STRATEGIES

    weight: Tensor
    bias: Tensor | None

    def _output_padding(self, x: Tensor, output_size: Sequence[int] | None) -> Sequence[int]:
        """The output padding that gives the spatial size asked for (its last axes count)."""
        if output_size is None:
            return self.output_padding
        rank = len(self.kernel_size)
        want, have = tuple(output_size)[-rank:], x.shape[-rank:]
        per_axis = zip(want, have, self.kernel_size, self.stride, self.padding, self.dilation, strict=True)
        extra = [w - ((h - 1) * s - 2 * p + d * (k - 1) + 1) for w, h, k, s, p, d in per_axis]
        if any(not 0 <= e < max(s, d) for e, s, d in zip(extra, self.stride, self.dilation, strict=True)):
            least = [w - e for w, e in zip(want, extra, strict=True)]
            most = [m + max(s, d) - 1 for m, s, d in zip(least, self.stride, self.dilation, strict=True)]
            raise ValueError(
                f"{type(self).__name__}: output_size {tuple(output_size)} cannot be reached from an input of "
                f"size {tuple(have)}; each axis must lie between {least} and {most}"
            )
        return extra

    def forward(self, x: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """x: `[N, B, C, *spatial]` or `[N, C, *spatial]` -> the same with O channels.

        `output_size` is the spatial size of the result where the stride leaves it open, as in torch.
        """
        self.check_input(x)
        return self.kernel(
            x,
            self.weight,
            self.bias,
            self.stride,
            self.padding,
            self._output_padding(x, output_size),
            self.groups,
            self.dilation,
            self.strategy,
        )


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
