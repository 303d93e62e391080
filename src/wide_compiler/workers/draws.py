"""Random numbers that do not depend on the layout.

Every draw has a number of its own. All workers make the same whole draw from (seed, number), and each keeps
its part, so the values are those of one process whatever the workers and shards.
"""

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from .corrections import Op
from .sharded import gathered, replicated
from .values import cut, is_partial, local_of, wrap

aten = torch.ops.aten


def seed_for(seed: int, number: int) -> int:
    """One 63-bit seed from two numbers, well mixed (splitmix64).

    >>> seed_for(0, 1) != seed_for(1, 0)
    True
    """
    mask = (1 << 64) - 1
    z = (seed * 0x9E3779B97F4A7C15 + number * 0xD1B54A32D192ED03 + 0x632BE59BD9B4E019) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return (z ^ (z >> 31)) >> 1


def draw_sharded(func: Op, args: tuple, kwargs: dict[str, Any]) -> Any:
    """A random op on DTensors. The generator has been seeded alike on every worker."""
    if func is aten.native_dropout.default:
        return _dropout(*args)
    first = next((a for a in args if isinstance(a, DTensor)), None)
    if first is not None and func._schema.is_mutable:
        # In-place draws: the values do not depend on what is there (bernoulli_.Tensor's do, on the others).
        whole = torch.empty(first.shape, dtype=first.dtype, device=local_of(first).device)
        rest = [a.full_tensor() if isinstance(a, DTensor) else a for a in args[1:]]
        func(whole, *rest, **kwargs)
        local_of(first).copy_(cut(whole, first))
        return first
    return gathered(func, args, kwargs)


def _dropout(x: DTensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """The mask is drawn whole; the product stays sharded."""
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    whole = torch.empty(x.shape, device=local_of(x).device)
    keep = torch.bernoulli(whole.fill_(1 - p)).bool()
    if is_partial(x):
        mask = replicated(keep, x.device_mesh)
    else:
        mask = wrap(cut(keep, x).contiguous(), x, x.shape, x.stride())
    scale = 0.0 if p == 1 else 1 / (1 - p)
    return x * mask * scale, mask
