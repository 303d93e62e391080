"""Random numbers that do not depend on the layout.

Every draw has its own seed (see `script_state`). All workers make the same whole draw from it and each keeps
its shard, so the values equal those of one process for any mesh and layout.
"""

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from .dtensor_corrections import Op
from .sharded import gathered, replicated
from .sharded_value import cut, is_partial, local_of, whole_of, wrap

aten = torch.ops.aten


def draw_sharded(func: Op, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Run a random op on DTensors; the generator must have the same seed on every worker."""
    if func is aten.native_dropout.default:
        return _dropout(*args)
    first = next((a for a in args if isinstance(a, DTensor)), None)
    if first is not None and func._schema.is_mutable:
        # In-place draws do not depend on the old values (bernoulli_.Tensor depends on its other operands).
        whole = torch.empty(first.shape, dtype=first.dtype, device=local_of(first).device)
        rest = [whole_of(a) if isinstance(a, DTensor) else a for a in args[1:]]
        func(whole, *rest, **kwargs)
        local_of(first).copy_(cut(whole, first))
        return first
    return gathered(func, args, kwargs)


def _dropout(x: DTensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """Apply dropout with a mask drawn for the whole tensor; the product stays sharded."""
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
