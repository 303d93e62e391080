"""How a tensor lies in memory: members may have strides that stacking loses."""

import torch
from torch import Tensor


def overlaps_itself(x: Tensor) -> bool:
    """May two elements be one place in memory, as after `expand`?

    >>> overlaps_itself(torch.zeros(3, 1).expand(3, 4)), overlaps_itself(torch.zeros(3, 4).t())
    (True, False)
    """
    reach = 0
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += (size - 1) * stride
    return False


def laid_out(source: Tensor, like: Tensor) -> Tensor:
    """A copy of `source` in memory of its own, with the strides of `like` (of the same shape)."""
    if source.layout != torch.strided or like.layout != torch.strided or source.numel() == 0:
        return source.clone()
    if not overlaps_itself(like):
        return torch.empty_strided(like.shape, like.stride(), dtype=source.dtype, device=source.device).copy_(
            source
        )
    extent = 1 + sum((size - 1) * stride for size, stride in zip(like.shape, like.stride(), strict=True))
    places = torch.arange(extent, device=source.device).as_strided(like.shape, like.stride())
    memory = source.new_zeros(extent).index_put((places,), source)
    return memory.as_strided(like.shape, like.stride())


def is_ragged_or_sparse(x: Tensor) -> bool:
    """Has the tensor no strides, so that it cannot be stacked?"""
    return x.layout != torch.strided or x.is_nested


def kind_of(x: Tensor) -> str:
    """`sparse_csr` or `nested`, for messages."""
    return "nested" if x.is_nested else str(x.layout).removeprefix("torch.")
