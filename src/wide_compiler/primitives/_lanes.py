"""Moving the lane axis around, and choosing how a kernel runs.

Shape legend used in this folder: N lanes, B batch, C channels (or in-features), O out-channels (or
out-features), P lanes and channels folded together. A suffix such as `x_NBC` lists the leading axes;
whatever follows them (the spatial axes, say) is not spelled out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import ArgumentError


def resolve(strategy: str, choices: Sequence[str], auto: str, op: str = "") -> str:
    """The strategy to run: `auto` if `strategy` is "auto", else `strategy` itself if it is a choice.

    >>> resolve("auto", ("einsum", "sequential"), auto="einsum")
    'einsum'
    """
    if strategy == "auto":
        return auto
    if strategy not in choices:
        listed = ", ".join(repr(c) for c in ("auto", *choices))
        raise ArgumentError(f"{op + ': ' if op else ''}unknown strategy {strategy!r}; choose one of {listed}")
    return strategy


def check_lanes(op: str, **tensors: Tensor | None) -> int:
    """The common size N of dimension 0 of the tensors given by name (None is skipped)."""
    n: int | None = None
    try:
        for t in tensors.values():  # a plain loop, and no `shape`: this runs at every call of a lane graph
            if t is None:
                continue
            size = t.size(0)
            if n is None:
                n = size
            elif size != n:
                break
        else:
            assert n is not None
            return n
    except IndexError:  # no dimensions at all
        pass
    got = ", ".join(f"{name} {tuple(t.shape)}" for name, t in tensors.items() if t is not None)
    raise ArgumentError(
        f"{op}: dimension 0 of every tensor is the lane axis and must have one size; got {got}. "
        "Stack the lanes' tensors with torch.stack, or expand one that all lanes share."
    )


def autocast_dtype(x: Tensor) -> torch.dtype | None:
    """What autocast rounds x, and what it is multiplied with, to; None if it leaves x alone."""
    kind = x.device.type
    if not torch.is_autocast_enabled(kind) or x.dtype == torch.float64 or not x.is_floating_point():
        return None
    return torch.get_autocast_dtype(kind)


def cast(dtype: torch.dtype | None, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """The tensors in that dtype; as they are if it is None."""
    return tensors if dtype is None else tuple([None if t is None else t.to(dtype) for t in tensors])


def per_lane(t: Tensor | None, n: int) -> Sequence[Tensor | None]:
    """The n lanes of a wide tensor, or n times None.

    unbind rather than t[i]: its backward is one stack, that of n selects is n zero-filled copies.
    """
    return [None] * n if t is None else t.unbind(0)


def fold_channels(x_NBC: Tensor) -> Tensor:
    """`[N, B, C, *]` -> `[B, N*C, *]`: the lanes become blocks of channels.

    A view, not a copy, when x came out of `unfold_channels` (or when N or B is 1): layers that fold
    this way and follow each other move no data between them.
    """
    return x_NBC.transpose(0, 1).flatten(1, 2)


def unfold_channels(x_BP: Tensor, n: int) -> Tensor:
    """`[B, N*C, *]` -> `[N, B, C, *]`, always as a view."""
    return x_BP.unflatten(1, (n, x_BP.shape[1] // n)).transpose(0, 1)


def flat(t: Tensor | None) -> Tensor | None:
    """`[N, C, *]` -> `[N*C, *]`: a stacked per-channel parameter as one of the folded channels."""
    return None if t is None else t.flatten(0, 1)
