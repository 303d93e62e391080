"""Rules of ops that reshape, expand, repeat, pad, concatenate or stack."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..widen.builder import Builder, Val
from ..widen.rules import lane_rule, ops, rule
from .dims import shift

aten = torch.ops.aten


@rule(*ops("permute.default"))
def permute(b: Builder, x: Val, dims: list[int]) -> Val:
    return b.call(torch.permute, x, [0, *(d % x.rank + 1 for d in dims)])


@rule(*ops("t.default", "numpy_T", "mT", "t_"))
def transpose_matrix(b: Builder, x: Val) -> Val:
    return b.call(torch.transpose, x, -1, -2) if x.rank >= 2 else x


@rule(*ops("adjoint", "matrix_H", "mH"))
def adjoint(b: Builder, x: Val) -> Val:
    return b.call(torch.adjoint, x) if x.rank >= 2 else x


@lane_rule("squeeze_.default")
def squeeze_member_(x: Tensor) -> Tensor:
    return x.squeeze_(_ones(x))


@lane_rule("squeeze.default")
def squeeze_member(x: Tensor) -> Tensor:
    return x.squeeze(_ones(x))


def _ones(x: Tensor) -> tuple[int, ...]:
    """Return the member's dims of size 1; the lane axis stays even if N is 1."""
    return tuple(d for d in range(1, x.dim()) if x.shape[d] == 1)


@rule(*ops("view.default", "reshape.default", "_unsafe_view", "view_copy.default", "_reshape_alias"))
def reshape(b: Builder, x: Val, size: list[Any], *_: Any) -> Val:
    return b.call(torch.reshape, x, [b.n, *size])


@rule(*ops("view_as", "reshape_as"))
def reshape_as(b: Builder, x: Val, other: Val) -> Val:
    return b.call(torch.reshape, b.wide(x), [b.n, *other.shape])


@rule(*ops("expand.default"))
def expand(b: Builder, x: Val, size: list[Any], **_: Any) -> Val:
    return b.call(torch.Tensor.expand, b.aligned(x, len(size)), [b.n, *size])


@rule(*ops("expand_as.default"))
def expand_as(b: Builder, x: Val, other: Val) -> Val:
    target = b.wide(other)
    return b.call(torch.Tensor.expand_as, b.aligned(b.wide(x), target.rank), target)


@rule(*ops("repeat.default", "tile.default"))
def repeat(b: Builder, x: Val, repeats: list[Any]) -> Val:
    missing = max(x.rank - len(repeats), 0)  # tile accepts fewer numbers than dims
    return b.call(torch.Tensor.repeat, b.aligned(x, len(repeats)), [1] * (1 + missing) + list(repeats))


@rule(*ops("repeat_interleave.self_int"))
def repeat_interleave(b: Builder, x: Val, repeats: Any, dim: int | None = None, **kwargs: Any) -> Val:
    if dim is None:
        x, dim = b.call(torch.reshape, x, [b.n, -1]), 0
    return b.call(torch.repeat_interleave, x, repeats, dim=shift(dim, x.rank), **kwargs)


@rule(*ops("roll.default"))
def roll(b: Builder, x: Val, shifts: list[Any], dims: Sequence[int] = ()) -> Val:
    if dims:
        return b.call(torch.roll, x, shifts, shift(dims, x.rank))
    return b.call(roll_flat, x, shifts)


def roll_flat(x: Tensor, shifts: list[int]) -> Tensor:
    return x.flatten(1).roll(shifts, 1).view(x.shape)


@rule(*ops("unfold.default"))
def unfold(b: Builder, x: Val, dimension: int, size: int, step: int) -> Val:
    return b.call(torch.Tensor.unfold, x, shift(dimension, x.rank), size, step)


@rule(*ops("diag.default"))
def diag(b: Builder, x: Val, diagonal: int = 0) -> Val:
    if x.rank == 1:
        return b.call(torch.diag_embed, x, diagonal)
    return b.call(torch.clone, b.call(torch.diagonal, x, diagonal, 1, 2))  # the member's result is a copy too


@rule(*ops("ravel"))
def ravel(b: Builder, x: Val) -> Val:
    return b.call(torch.reshape, x, [b.n, -1])


@rule(*ops("pad.default"))
def pad(b: Builder, x: Val, padding: list[int], mode: str = "constant", value: float | None = None) -> Val:
    if mode == "constant":
        return b.call(aten.pad.default, x, padding, mode, value)
    return b.call(pad_folded, x, padding, mode)


def pad_folded(x: Tensor, padding: list[int], mode: str) -> Tensor:
    """Pad with lanes folded into the batch: non-constant modes allow one dim before the channels."""
    kept = len(padding) // 2 + 1
    out = torch.nn.functional.pad(x.flatten(0, x.dim() - kept - 1), padding, mode=mode)
    return out.unflatten(0, x.shape[: x.dim() - kept])


@rule(*ops("cat.default", "concat.default", "concatenate.default"))
def cat(b: Builder, tensors: list[Val], dim: int = 0) -> Val:
    # torch.cat accepts an empty 1-D tensor next to tensors of any rank.
    tensors = [t for t in tensors if t.shape != (0,)] or tensors
    return b.call(torch.cat, [b.wide(t) for t in tensors], shift(dim, 0))


@rule(*ops("stack.default"))
def stack(b: Builder, tensors: list[Val], dim: int = 0) -> Val:
    return b.call(torch.stack, [b.wide(t) for t in tensors], shift(dim, 0))


@lane_rule("meshgrid.indexing", "meshgrid.default")
def lane_meshgrid(tensors: list[Tensor], indexing: str = "ij") -> list[Tensor]:
    """Return the grids of tensors `[N, size]`; indexing "xy" swaps the first two dims."""
    n, rank = len(tensors[0]), len(tensors)
    rows = [t.view(n, *(-1 if k == place else 1 for k in range(rank))) for place, t in enumerate(tensors)]
    grids = torch.broadcast_tensors(*rows)
    return [grid.transpose(1, 2) if indexing == "xy" and rank > 1 else grid for grid in grids]


@rule(*ops("hstack"))
def hstack(b: Builder, tensors: list[Val]) -> Val | None:
    if any(t.rank == 0 for t in tensors):
        return None
    return b.call(torch.cat, [b.wide(t) for t in tensors], 1 if tensors[0].rank == 1 else 2)


@rule(*ops("vstack"))
def vstack(b: Builder, tensors: list[Val]) -> Val | None:
    if any(t.rank == 0 for t in tensors):
        return None
    return b.call(torch.cat, [b.aligned(b.wide(t), 2) for t in tensors], 1)


@rule(*ops("broadcast_tensors.default"))
def broadcast_tensors(b: Builder, tensors: list[Val]) -> Val:
    return b.call(torch.broadcast_tensors, *b.alike(*tensors))
