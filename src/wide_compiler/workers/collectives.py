"""DTensor's collectives, counted and extended to every dtype.

gloo and NCCL do not support some dtypes. Such tensors are moved as bytes and summed in a wider dtype.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import Partial, Shard

WITHOUT_NAME = {
    getattr(torch, name)
    for name in (
        *("int16", "uint16", "uint32", "uint64", "complex32", "float8_e4m3fn", "float8_e5m2"),
        *("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
    )
}
counted: Counter[str] = Counter()


def to_bytes(x: Tensor) -> Tensor:
    """Return x as uint8 `[..., itemsize]`; shares memory with a contiguous x."""
    return x.contiguous().unsqueeze(-1).view(torch.uint8)


def from_bytes(raw: Tensor, dtype: torch.dtype) -> Tensor:
    return raw.view(dtype).squeeze(-1)


@functools.cache
def count_collectives() -> Counter[str]:
    """Patch DTensor's collectives to count their calls; returns the counter. Patches only once."""
    for kind, method, form, name in (
        (Shard, "_to_replicate_tensor", _as_bytes, "all_gathers"),
        (Shard, "_to_new_shard_dim", _as_bytes, "all_to_alls"),
        (Partial, "_reduce_value", _widened, "all_reduces"),
        (Partial, "_reduce_shard_value", _widened, "reduce_scatters"),
    ):
        setattr(kind, method, _counting(form(getattr(kind, method)), name))
        counted[name] = 0
    return counted


def _counting(function: Callable, name: str) -> Callable:
    @functools.wraps(function)
    def counting(*args: Any, **kwargs: Any) -> Any:
        counted[name] += 1
        return function(*args, **kwargs)

    return counting


def _as_bytes(move: Callable) -> Callable:
    """Wrap `move(placement, local, mesh, mesh_dim, shape, ...)` to move unsupported dtypes as bytes."""

    @functools.wraps(move)
    def moved(placement: Any, local: Tensor, mesh: Any, dim: int, shape: Any, *rest: Any) -> Tensor:
        if local.dtype not in WITHOUT_NAME:
            return move(placement, local, mesh, dim, shape, *rest)
        shape = (*shape, local.element_size())
        return from_bytes(move(placement, to_bytes(local), mesh, dim, shape, *rest), local.dtype)

    return moved


def _widened(reduce: Callable) -> Callable:
    """Wrap `reduce(placement, local, ...)` to reduce unsupported dtypes in a wider dtype."""

    @functools.wraps(reduce)
    def reduced(placement: Any, local: Tensor, *rest: Any) -> Tensor:
        if local.dtype not in WITHOUT_NAME:
            return reduce(placement, local, *rest)
        real = torch.float32 if local.is_floating_point() else torch.int64
        wide = torch.complex64 if local.is_complex() else real
        return reduce(placement, local.to(wide), *rest).to(local.dtype)

    return reduced
