"""Saves and loads the workers' values by `torch.distributed.checkpoint`."""

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor

from .layout import Axes
from .sharded_value import ShardedValue, axes_of


def _state(values: dict, ids: dict[int, str]) -> dict[str, Tensor]:
    return {ids[n]: (v.reduced() if isinstance(v, ShardedValue) else v) for n, v in values.items()}


def save_values(folder: str, values: dict, ids: dict[int, str]) -> dict[int, Axes]:
    """Save the values, each worker its own shards; returns each value's layout."""
    dcp.save(_state(values, ids), checkpoint_id=folder, no_dist=not dist.is_initialized())
    return {n: axes_of(v.reduced()) if isinstance(v, ShardedValue) else () for n, v in values.items()}


def load_values(folder: str, values: dict, ids: dict[int, str]) -> None:
    """Fill the values in place with what `save_values` wrote."""
    with torch.no_grad():
        dcp.load(_state(values, ids), checkpoint_id=folder, no_dist=not dist.is_initialized())
