"""Lane-axis reshaping, dtype and strategy helpers shared by the primitives.

Shape legend of this folder: N lanes, B batch, C channels (or in-features), O out-channels (or out-features),
P lanes and channels folded together. A suffix such as `x_NBC` lists the leading axes; axes after them
(spatial axes, for example) are not listed.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import ArgumentError
from ..widen.helpers import lead


def resolve(strategy: str, choices: Sequence[str], auto: str, op: str = "") -> str:
    """Return `auto` if `strategy` is "auto", else `strategy`; raise ArgumentError if it is not in `choices`.

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
    """Return the common size N of dimension 0 of the given tensors; None is skipped.

    Raises ArgumentError, listing every shape, if the sizes differ or a tensor has no dimensions.
    """
    n: int | None = None
    try:
        for t in tensors.values():  # runs at every call of a lane graph: a loop and `size` are cheapest
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
    except IndexError:  # a tensor without dimensions
        pass
    got = ", ".join(f"{name} {tuple(t.shape)}" for name, t in tensors.items() if t is not None)
    raise ArgumentError(
        f"{op}: dimension 0 of every tensor is the lane axis and must have one size; got {got}. "
        "Stack the lanes' tensors with torch.stack, or expand one that all lanes share."
    )


def autocast_dtype(x: Tensor) -> torch.dtype | None:
    """Return the dtype that autocast gives a matrix product with x, or None if autocast does not apply."""
    kind = x.device.type
    if not torch.is_autocast_enabled(kind) or x.dtype == torch.float64 or not x.is_floating_point():
        return None
    return torch.get_autocast_dtype(kind)


def cast(dtype: torch.dtype | None, *tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """Return the tensors converted to `dtype`, or unchanged if it is None; None entries stay None."""
    return tensors if dtype is None else tuple([None if t is None else t.to(dtype) for t in tensors])


def align(t: Tensor, rank: int, beside: Tensor | None = None) -> Tensor:
    """Insert axes of size 1 after the lane axis of t `[N, ...]` until it has `rank` axes; see `lead`."""
    return lead(t, rank - t.dim(), beside) if rank > t.dim() else t


def per_lane(t: Tensor | None, n: int) -> Sequence[Tensor | None]:
    """Return the n lanes of a wide tensor, or n times None.

    Uses unbind rather than t[i]: the backward of unbind is one stack, that of n selects is n zero-filled
    copies.
    """
    return [None] * n if t is None else t.unbind(0)


def fold_channels(x_NBC: Tensor) -> Tensor:
    """Reshape `[N, B, C, *]` to `[B, N*C, *]`: each lane becomes a block of channels.

    The result is a view if x is the result of `unfold_channels` (or if N or B is 1), so consecutive layers
    that fold this way copy nothing between them.
    """
    return x_NBC.transpose(0, 1).flatten(1, 2)


def unfold_channels(x_BP: Tensor, n: int) -> Tensor:
    """Reshape `[B, N*C, *]` to `[N, B, C, *]`; always a view."""
    return x_BP.unflatten(1, (n, x_BP.shape[1] // n)).transpose(0, 1)


def flat(t: Tensor | None) -> Tensor | None:
    """Reshape a stacked per-channel parameter `[N, C, *]` to `[N*C, *]`, matching folded channels."""
    return None if t is None else t.flatten(0, 1)
