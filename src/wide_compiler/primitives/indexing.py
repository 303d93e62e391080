"""Rules of indexing with tensors; the lane number is one more index, so lanes never mix."""

from typing import Any

import torch
from torch import Tensor

from ..widen.builder import Builder, Val
from ..widen.classify import op_name
from ..widen.rules import lane_rule, ops, rule
from .embedding import flat_indices

aten = torch.ops.aten


@rule(*ops("index.Tensor", "_unsafe_index.Tensor"))
def index(b: Builder, x: Val, indices: list[Val | None]) -> Val | None:
    given = [i for i in indices if i is not None]
    if x.wide and not any(i.wide for i in given) and _adjacent(indices):
        return b.call(aten.index.Tensor, x, [None, *indices])
    if any(map(_is_mask, given)):
        return None  # a mask per lane selects a different number of elements in each
    rank = max(i.rank for i in given)
    lanes = [i if i is None else b.aligned(b.wide(i), rank) for i in indices]
    # The indexed dims of the member's result are in place if adjacent, else in front.
    position = indices.index(given[0]) if _adjacent(indices) else 0
    return b.call(index_lanes, b.wide(x), lanes, position)


def _is_mask(index: Val) -> bool:
    return index.dtype in (torch.bool, torch.uint8)


def _adjacent(indices: list[Any]) -> bool:
    positions = [k for k, i in enumerate(indices) if i is not None]
    return positions == list(range(positions[0], positions[-1] + 1))


def lane_index(x: Tensor, rank: int) -> Tensor:
    """Return the lane number of each index, `[N, 1, ...]` with `rank` ones."""
    return torch.arange(x.shape[0], device=x.device).view(-1, *([1] * rank))


def index_lanes(x: Tensor, indices: list[Tensor | None], position: int) -> Tensor:
    """Index x `[N, ...]` per lane with indices `[N, ...]` of one rank.

    Because the lane index is in front, the indexed dims follow the lane axis in the result; they are then
    moved to `position`, their position in the member's result.
    """
    rank = next(i.dim() for i in indices if i is not None) - 1
    out = aten.index.Tensor(x, [lane_index(x, rank), *indices])
    if position and rank:
        out = out.movedim(tuple(range(1, 1 + rank)), tuple(range(1 + position, 1 + position + rank)))
    return out


def index_put(op: Any) -> Any:
    def run(
        b: Builder, x: Val, indices: list[Val | None], values: Val, accumulate: bool = False, *_: Any
    ) -> Val | None:
        given = [i for i in indices if i is not None]
        if any(map(_is_mask, given)):
            if len(indices) != 1 or values.rank != 0:
                return None
            mask = b.wide(indices[0])
            return b.call(put_masked, op is aten.index_put_.default, b.wide(x), mask, values)
        if not _adjacent(indices):
            return None
        # The values have the rank of the member's indexed result: index dims, then the remaining dims of x.
        values = b.aligned(values, max(i.rank for i in given) + x.rank - len(given))
        if indices[0] is not None:
            return b.call(put_lanes, op, b.wide(x), b.alike(*given), values, accumulate)
        if any(i.wide for i in given):
            return None
        return b.call(op, b.wide(x), [None, *indices], values, accumulate)  # one more `:` in front

    return run


for _op in ops("index_put.default", "index_put_.default"):
    rule(_op)(index_put(_op))


def put_lanes(op: Any, x: Tensor, indices: list[Tensor], values: Tensor, accumulate: bool) -> Tensor:
    return op(x, [lane_index(x, indices[0].dim() - 1), *indices], values, accumulate)


def put_masked(in_place: bool, x: Tensor, mask: Tensor, value: Tensor) -> Tensor:
    """Run `x[mask] = value` with a 0-d value or one number per lane `[N]`."""
    mask = mask.bool().view(*mask.shape, *([1] * (x.dim() - mask.dim())))
    value = value.view(-1, *([1] * (x.dim() - 1))) if value.dim() else value
    filled = torch.where(mask, value.to(x.dtype), x)
    return x.copy_(filled) if in_place else filled


@rule(*ops("index_select.default"))
def index_select(b: Builder, x: Val, dim: int, index: Val) -> Val | None:
    if x.rank == 0 or index.rank != 1:
        return None
    dim = dim % x.rank
    if x.wide and not index.wide:
        return b.call(torch.index_select, x, dim + 1, index)
    return b.call(index_lanes, b.wide(x), [None] * dim + [b.wide(index)], dim)


def _index_write(op: Any) -> Any:
    """Return a rule of index_add, index_copy, index_fill or index_reduce along `dim`."""

    def run(b: Builder, x: Val, dim: int, index: Val, source: Any, *args: Any, **kwargs: Any) -> Val | None:
        if index.rank > 1:
            return None
        index = b.aligned(b.wide(index), 1) if index.wide else index
        number = not x.rank  # PyTorch treats a 0-d tensor as having one dim of size 1
        x = b.aligned(b.wide(x), 1)
        dim = dim % x.rank + 1
        if isinstance(source, Val) and (source.rank or number or op_name(op).rstrip("_") != "index_fill"):
            source = b.aligned(b.wide(source), x.rank if source.rank else 1)
        write = op if not index.wide else write_rows
        given = (x, dim, index, source) if not index.wide else (op, x, dim, index, source)
        result = b.call(write, *given, *args, **kwargs)
        return b.call(torch.squeeze, result, 1) if number else result

    return run


for _op in ops(
    """
    index_add.default index_add_.default index_copy.default index_copy_.default index_reduce.default
    index_fill.int_Scalar index_fill_.int_Scalar
    """
):
    rule(_op)(_index_write(_op))


def write_rows(op: Any, x: Tensor, dim: int, index: Tensor, source: Any, *args: Any, **kwargs: Any) -> Tensor:
    """Run `op` once for all lanes: row r of lane n is row n*R + r of the joined dim."""
    rows = x.shape[dim]
    joined = x.movedim(dim, 1)
    flat = joined.reshape(-1, *joined.shape[2:])
    index_flat = flat_indices(index, rows).flatten()
    source = source.movedim(dim, 1).flatten(0, 1) if isinstance(source, Tensor) else source
    out = op(flat, 0, index_flat, source, *args, **kwargs)
    out = out.unflatten(0, (x.shape[0], rows)).movedim(1, dim)
    return x.copy_(out) if op._schema.name.endswith("_") else out


@lane_rule("take.default")
def take_lanes(x: Tensor, index: Tensor) -> Tensor:
    """Read x `[N, ...]`, flattened per lane, at index `[N, ...]`; negative indices count from the end."""
    flat = x.reshape(x.shape[0], -1)
    places = index.reshape(index.shape[0], -1)
    return aten.index.Tensor(flat, [lane_index(x, 1), places]).view(index.shape)


@lane_rule("put.default")
def put_flat(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """Write source (as many elements as index) into x `[N, ...]`, flattened per lane, at index `[N, ...]`."""
    flat, places = x.reshape(x.shape[0], -1), index.reshape(index.shape[0], -1)
    values = source.reshape(places.shape)
    return aten.index_put.default(flat, [lane_index(x, 1), places], values, accumulate).view(x.shape)


@rule(*ops("masked_scatter.default"))
def masked_scatter(b: Builder, x: Val, mask: Val, source: Val) -> Val:
    return b.call(scatter_masked, *b.alike(x, mask), b.wide(source))


def scatter_masked(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """Write element k of a lane's source to the k-th True of its mask; a short source raises IndexError."""
    x, mask = torch.broadcast_tensors(x, mask)
    chosen = mask.reshape(mask.shape[0], -1)
    place = torch.where(chosen, chosen.cumsum(1) - 1, 0)
    values = source.reshape(source.shape[0], -1).gather(1, place)
    return torch.where(mask, values.view(x.shape), x)


@rule(*ops("one_hot.default"))
def one_hot(b: Builder, x: Val, num_classes: int = -1) -> Val | None:
    return None if num_classes == -1 else b.call(torch.nn.functional.one_hot, x, num_classes)
