"""Rules of ops that bring several tensors together: joined to one, or to one shape."""

import torch
from torch import Tensor

from ..widen.builder import Builder, Val
from ..widen.rules import ops, rule
from .dims import shift


@rule(*ops("cat.default", "concat.default", "concatenate.default"))
def cat(b: Builder, tensors: list[Val], dim: int = 0) -> Val:
    # An empty 1-D tensor may stand beside anything, for the sake of old code.
    tensors = [t for t in tensors if t.shape != (0,)] or tensors
    return b.call(torch.cat, [b.wide(t) for t in tensors], shift(dim, 0))


@rule(*ops("stack.default"))
def stack(b: Builder, tensors: list[Val], dim: int = 0) -> Val:
    return b.call(torch.stack, [b.wide(t) for t in tensors], shift(dim, 0))


@rule(*ops("meshgrid.indexing", "meshgrid.default"))
def meshgrid(b: Builder, tensors: list[Val], indexing: str = "ij") -> Val:
    return b.call(lane_meshgrid, [b.wide(t) for t in tensors], indexing)


def lane_meshgrid(tensors: list[Tensor], indexing: str) -> list[Tensor]:
    """Each tensor `[N, size]` along a dim of its own; "xy" swaps the first two."""
    order = list(range(len(tensors)))
    if indexing == "xy" and len(tensors) > 1:
        order[:2] = [1, 0]
    sizes = [tensors[i].shape[1] for i in order]
    grids = []
    for i, tensor in enumerate(tensors):
        place = order.index(i)
        shape = [tensor.shape[0], *(tensor.shape[1] if k == place else 1 for k in range(len(tensors)))]
        grids.append(tensor.reshape(shape).expand(tensor.shape[0], *sizes))
    return grids


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
    rank = max(t.rank for t in tensors)
    return b.call(torch.broadcast_tensors, *[b.aligned(b.wide(t), rank) for t in tensors])
