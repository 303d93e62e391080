"""Rules of reductions over a whole tensor, applied to each lane, and of assertions over all lanes."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..widen.builder import Builder, Val
from ..widen.rules import lane_rule, ops, rule
from .dims import shift


def flat_members(x: Tensor) -> Tensor:
    """Reshape `[N, ...]` to `[N, elements]`; a 0-d member has one element."""
    return x.reshape(x.shape[0], -1)


def _whole(reduce: Callable[..., Any]) -> Callable[..., Val]:
    def run(b: Builder, x: Val, *args: Any, **kwargs: Any) -> Val:
        return b.call(reduce, b.call(flat_members, x), *args, **kwargs)

    return run


def _over_members(function: Callable[..., Tensor]) -> Callable[..., Any]:
    def reduced(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return function(x, *args, dim=1, **kwargs)

    reduced.__name__ = reduced.__qualname__ = f"{function.__name__}_of_each_lane"
    return reduced


for _name in ("sum", "mean", "prod", "all", "any"):
    rule(*ops(f"{_name}.default"))(_whole(_over_members(getattr(torch, _name))))
for _name in ("max", "min"):
    rule(*ops(f"{_name}.default"))(_whole(_over_members(getattr(torch, f"a{_name}"))))


def _spread_rule(function: Callable[..., Tensor]) -> Callable[..., Val]:
    def run(b: Builder, x: Val, unbiased: bool = True) -> Val:
        return b.call(function, b.call(flat_members, x), dim=1, unbiased=unbiased)

    return run


rule(*ops("std.default"))(_spread_rule(torch.std))
rule(*ops("var.default"))(_spread_rule(torch.var))


@rule(*ops("norm.Scalar"))
def norm(b: Builder, x: Val, p: float = 2, **kwargs: Any) -> Val:
    return b.call(torch.linalg.vector_norm, b.call(flat_members, x), p, 1, **kwargs)


def _position_rule(function: Callable[..., Tensor]) -> Callable[..., Val]:
    def run(b: Builder, x: Val, dim: int | None = None, keepdim: bool = False) -> Val:
        if dim is not None:
            return b.call(function, x, shift(dim, x.rank), keepdim)
        flat = b.call(function, b.call(flat_members, x), 1)
        return b.call(torch.reshape, flat, [b.n, *[1] * x.rank]) if keepdim else flat

    return run


rule(*ops("argmax.default"))(_position_rule(torch.argmax))
rule(*ops("argmin.default"))(_position_rule(torch.argmin))


@lane_rule("_weight_norm.default")
def scale_to_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """Scale v `[N, ...]` to norm g along each slice of the member's `dim`, or as a whole for -1."""
    others = [d for d in range(1, v.dim()) if d != dim + 1 or dim == -1]
    length = torch.linalg.vector_norm(v, dim=others, keepdim=True)
    return v * (g.view(-1, *([1] * (v.dim() - 1))) if g.dim() == 1 else g) / length


@rule(*ops("count_nonzero.default"))
def count_nonzero(b: Builder, x: Val, dim: int | None = None) -> Val:
    if dim is None:
        return b.call(torch.count_nonzero, b.call(flat_members, x), 1)
    return b.call(torch.count_nonzero, x, shift(dim, x.rank))


@rule(*ops("aminmax.default"))
def aminmax(b: Builder, x: Val, *, dim: int | None = None, keepdim: bool = False) -> Val | None:
    if dim is not None:
        return b.call(torch.aminmax, x, dim=shift(dim, x.rank), keepdim=keepdim)
    return None if keepdim else b.call(torch.aminmax, b.call(flat_members, x), dim=1)


@rule(*ops("trace.default"))
def trace(b: Builder, x: Val) -> Val:
    return b.call(torch.sum, b.call(torch.diagonal, x, 0, 1, 2), -1)


@rule(*ops("dist.default"))
def dist(b: Builder, x: Val, y: Val, p: float = 2) -> Val:
    return norm(b, b.call(torch.sub, *b.alike(x, y)), p)


@rule(*ops("linalg_norm.default"))
def linalg_norm(
    b: Builder, x: Val, ord: Any = None, dim: Any = None, keepdim: bool = False, **kwargs: Any
) -> Val | None:
    if dim is not None:
        dims = shift([dim] if isinstance(dim, int) else list(dim), x.rank)
        return b.call(torch.linalg.norm, x, ord, dims, keepdim, **kwargs)
    if ord is not None or keepdim:
        return None
    return norm(b, x, **kwargs)


@rule(*ops("searchsorted.Tensor"))
def searchsorted(b: Builder, edges: Val, x: Val, **kwargs: Any) -> Val | None:
    if edges.rank != 1 or kwargs.get("sorter") is not None:
        return None
    named = {k: v for k, v in kwargs.items() if v is not None}
    return b.call(lane_searchsorted, b.wide(edges), b.wide(x), **named)


@rule(*ops("bucketize.Tensor"))
def bucketize(b: Builder, x: Val, edges: Val, **kwargs: Any) -> Val:
    return b.call(lane_searchsorted, b.wide(edges), b.wide(x), **kwargs)


def lane_searchsorted(edges: Tensor, x: Tensor, **kwargs: Any) -> Tensor:
    """Search each lane of x `[N, ...]` in its ascending edges `[N, K]`."""
    return torch.searchsorted(edges.contiguous(), flat_members(x).contiguous(), **kwargs).view(x.shape)


def quantile(op: Any) -> Any:
    def run(b: Builder, x: Val, q: Any, dim: Any = None, keepdim: bool = False, **kwargs: Any) -> Val | None:
        several = isinstance(q, Val) and q.rank == 1
        if isinstance(q, Val) and q.wide:
            return None
        flat, along = (b.call(flat_members, x), 1) if dim is None else (x, shift(dim, x.rank))
        found = b.call(op, flat, q, along, keepdim and dim is not None, **kwargs)
        if several:  # one result for each of q, in front of the member's dims
            found = b.call(torch.movedim, found, 0, 1)
        if keepdim and dim is None:
            lead = [b.n, q.shape[0]] if several else [b.n]
            found = b.call(torch.reshape, found, [*lead, *[1] * x.rank])
        return found

    return run


for _op in ops("quantile.default quantile.scalar nanquantile.default nanquantile.scalar"):
    rule(_op)(quantile(_op))


@lane_rule("pdist.default")
def lane_pdist(x: Tensor, p: float = 2) -> Tensor:
    """Return the distances of each lane's rows i < j of x `[N, M, D]`: `[N, M * (M - 1) / 2]`."""
    distances = torch.cdist(x, x, p, compute_mode="donot_use_mm_for_euclid_dist")
    i, j = torch.triu_indices(x.shape[1], x.shape[1], 1, device=x.device)
    return distances[:, i, j]


@lane_rule("histc.default")
def lane_histc(x: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """Count x `[N, ...]` into `[N, bins]`; as in PyTorch, equal bounds mean the range of the data."""
    x, low, high = flat_members(x), min, max
    left, right = x.new_full((len(x), 1), low), x.new_full((len(x), 1), high)
    if low == high and x.shape[1]:
        left, right = torch.aminmax(x, dim=1, keepdim=True)
        aten._assert_async.msg((left.isfinite() & right.isfinite()).all(), "histc: its range is not finite")
    same = left == right
    left, right = left - same.to(x.dtype), right + same.to(x.dtype)
    inside = (x >= left) & (x <= right)
    place = torch.where(inside, (x - left) * bins / (right - left), 0.0).long().clamp(max=bins - 1)
    return x.new_zeros(len(x), bins).scatter_add(1, place, inside.to(x.dtype))


aten = torch.ops.aten


@rule(*ops("_assert_async"))
def assert_async(b: Builder, x: Val, *message: str) -> Val:
    every_lane = b.call(torch.all, x, wide=False)
    op = aten._assert_async.msg if message else aten._assert_async.default
    return b.call(op, every_lane, *message)


@rule(*ops("_linalg_check_errors"))
def linalg_check_errors(b: Builder, info: Val, api_name: str, **_: Any) -> Val:
    return b.call(aten._linalg_check_errors.default, info, api_name, is_matrix=False)
