"""Convolutions of N lanes: one grouped convolution, and the alternative strategies.

Shapes: N lanes, B batch, C in-channels, O out-channels, G groups of one member, P folded N*C (or N*O).
Suffixes list the leading axes only; 1, 2 or 3 spatial axes follow.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import kernels
from ..errors import ArgumentError
from ._lanes import autocast_dtype, cast, check_lanes, flat, fold_channels, per_lane, resolve, unfold_channels

CONV_STRATEGIES = ("grouped", "channels_last", "implicit_gemm", "implicit_forward", "streams", "sequential")
TRANSPOSE_STRATEGIES = ("grouped", "channels_last", "sequential")
CHANNELS_LAST = {2: torch.channels_last, 3: torch.channels_last_3d}


def auto_strategy(rank: int, x: Tensor) -> str:
    """Return the default strategy; on a CPU, small groups run 2 to 4 times faster in channels-last."""
    return "channels_last" if rank in CHANNELS_LAST and x.device.type == "cpu" else "grouped"


def conv_choices(rank: int, x: Tensor, groups: int) -> tuple[str, ...]:
    """Return the strategies worth timing on input `x`, for members with `groups` groups."""
    choices = ["grouped", "sequential"]
    if rank in CHANNELS_LAST:
        choices.insert(1, "channels_last")
    if x.is_cuda:
        choices.insert(-1, "streams")
        if implicit_gemm_fits(rank, x, groups):
            choices[-1:-1] = ["implicit_gemm", "implicit_forward"]
    return tuple(choices)


def implicit_gemm_fits(rank: int, x: Tensor, groups: int) -> bool:
    return rank == 2 and groups == 1 and x.is_cuda and kernels.can_run(x)


def possible(kind: str, rank: int, x: Tensor, groups: int) -> str:
    """Return `kind`, or the strategy that replaces it if it cannot run on x."""
    if kind.startswith("implicit") and not implicit_gemm_fits(rank, x, groups):
        return "grouped"
    return "sequential" if kind == "streams" and not x.is_cuda else kind


Ints = int | Sequence[int]

_CONV: dict[int, Any] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_CONV_TRANSPOSE: dict[int, Any] = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def _spatial_rank(op: str, x: Tensor, weight: Tensor, strategy: str) -> tuple[int, str]:
    """Return the number of spatial axes of a weight `[N, O, C, *kernel]` and the resolved strategy."""
    rank = weight.dim() - 3
    if rank not in _CONV:
        raise ArgumentError(
            f"{op}: expected a weight [N, O, C, *kernel] with 1, 2 or 3 kernel axes, "
            f"got {tuple(weight.shape)}"
        )
    choices = [s for s in CONV_STRATEGIES if s != "channels_last" or rank in CHANNELS_LAST]
    return rank, resolve(strategy, choices, auto_strategy(rank, x), op=f"{op} with {rank} spatial axes")


def _wide(
    op: str,
    fn: Callable[..., Tensor],
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    kind: str,
    groups: int,
    **options: Any,
) -> Tensor:
    """Run `fn` (plain or transposed convolution): fold lanes into channels, one call, unfold."""
    n, rank = check_lanes(op, x=x, weight=weight, bias=bias), weight.dim() - 3
    if x.dim() == rank + 2:  # unbatched member input [C, *spatial]
        return _wide(op, fn, x.unsqueeze(1), weight, bias, kind, groups, **options).squeeze(1)
    if x.dim() != rank + 3:
        raise ArgumentError(
            f"{op}: expected x [N, B, C, *spatial] with {rank} spatial axes (from the weight "
            f"{tuple(weight.shape)}), got {tuple(x.shape)}"
        )
    if kind == "sequential":
        lanes = zip(x.unbind(0), weight.unbind(0), per_lane(bias, n), strict=True)
        return torch.stack([fn(x_, w_, b_, groups=groups, **options) for x_, w_, b_ in lanes])
    x_BP = fold_channels(x)
    if kind == "channels_last":
        # The backend uses the input's memory format for the weight and the output.
        x_BP = x_BP.contiguous(memory_format=CHANNELS_LAST[rank])
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
        weight: `[N, O, C/groups, *kernel]`; its rank gives the number of spatial axes.
        bias: `[N, O]` or None.
        stride, padding, dilation, groups: of the member, as in `F.conv2d`.
        strategy: one of
            "grouped": one convolution with `N*groups` groups;
            "channels_last": the same in channels-last memory format, 2-D and 3-D only;
            "implicit_gemm": a Triton kernel, 2-D on CUDA with groups == 1, else "grouped";
            "implicit_forward": the same forward, backward as "channels_last";
            "streams": one call per lane on several CUDA streams;
            "sequential": one call per lane;
            "auto": "channels_last" for 2-D and 3-D on a CPU, "grouped" elsewhere.

    Returns:
        `[N, B, O, *spatial]`; for the folded strategies a view of `[B, N*O, *spatial]`, which the next
        convolution or batch norm folds back without a copy.
    """
    rank, kind = _spatial_rank("wide_conv", x, weight, strategy)
    if x.dim() == rank + 2:  # unbatched member input [C, *spatial]
        options = (stride, padding, dilation, groups, strategy)
        return wide_conv(x.unsqueeze(1), weight, bias, *options).squeeze(1)
    x, weight, bias = cast(autocast_dtype(x), x, weight, bias)  # type: ignore[assignment]
    kind = possible(kind, rank, x, groups)
    if kind == "streams" and x.dim() == rank + 3:
        from ..kernels.streams import streamed_conv

        return streamed_conv(x, weight, bias, stride, padding, dilation, groups)
    if kind.startswith("implicit") and x.dim() == rank + 3:
        from ..kernels.lane_conv import lane_conv2d

        backward = "own" if kind == "implicit_gemm" else "library"
        return lane_conv2d(x, weight, bias, stride, padding, dilation, backward=backward)
    sizes: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation}
    return _wide("wide_conv", _CONV[rank], x, weight, bias, kind, groups, **sizes)


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
    """Transposed convolution in 1, 2 or 3 dimensions, each lane with its own kernel, as `wide_conv`.

    The weight is `[N, C, O/groups, *kernel]`; the strategies are "grouped", "channels_last", "sequential" and
    "auto".
    """
    rank, kind = _spatial_rank("wide_conv_transpose", x, weight, strategy)
    x, weight, bias = cast(autocast_dtype(x), x, weight, bias)  # type: ignore[assignment]
    sizes: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation}
    sizes["output_padding"] = output_padding
    return _wide("wide_conv_transpose", _CONV_TRANSPOSE[rank], x, weight, bias, kind, groups, **sizes)


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
    """Run `wide_conv` on an input shared by all lanes.

    With groups == 1 this is one ordinary convolution with N*O output channels, so the input `[B, C,
    *spatial]` (or `[C, *spatial]`) is read once, not N times. With more groups, or a strategy other than
    "grouped" and "channels_last", the input is expanded to all lanes. Returns `[N, B, O, *spatial]`.
    """
    rank, kind = _spatial_rank("shared_conv", x, weight, strategy)
    n = check_lanes("shared_conv", weight=weight, bias=bias)
    x, weight, bias = cast(autocast_dtype(x), x, weight, bias)  # type: ignore[assignment]
    if groups != 1 or kind in ("sequential", "streams") or kind.startswith("implicit"):
        x = x.expand(n, *x.shape)
        return wide_conv(x, weight, bias, stride, padding, dilation, groups, kind)
    single = x.dim() == rank + 1
    x = x.unsqueeze(0) if single else x
    if kind == "channels_last":
        x = x.contiguous(memory_format=CHANNELS_LAST[rank])
    y_BP = _CONV[rank](x, weight.flatten(0, 1), flat(bias), stride, padding, dilation)
    y = unfold_channels(y_BP, n)
    return y.squeeze(1) if single else y
