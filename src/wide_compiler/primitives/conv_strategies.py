"""The ways in which a convolution of N lanes can run, and which of them are possible or worth a try."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import kernels

CONV_STRATEGIES = ("grouped", "channels_last", "implicit_gemm", "implicit_forward", "streams", "sequential")
TRANSPOSE_STRATEGIES = ("grouped", "channels_last", "sequential")
CHANNELS_LAST = {2: torch.channels_last, 3: torch.channels_last_3d}


def auto_strategy(rank: int, x: Tensor) -> str:
    """A CPU runs groups of few channels two to four times slower in the contiguous format."""
    return "channels_last" if rank in CHANNELS_LAST and x.device.type == "cpu" else "grouped"


def conv_choices(rank: int, x: Tensor, groups: int) -> tuple[str, ...]:
    """The strategies worth trying on `x`, for members with so many groups."""
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
    """`kind`, or what stands in for it where it cannot run."""
    if kind.startswith("implicit") and not implicit_gemm_fits(rank, x, groups):
        return "grouped"
    return "sequential" if kind == "streams" and not x.is_cuda else kind
