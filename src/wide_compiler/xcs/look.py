"""How the items of a call look: a rung that was compared with the plain loop is trusted with items that look
the same, and compared again with others."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..guards.modes import autocast_state, precision
from .items import Blocks
from .proof.guards import SMALL
from .proof.kinds import CONSTANTS, CONTAINERS
from .work import Work

MOST_LOOKS = 64  # kept for one rung; beyond that all are forgotten


def look_of(work: Work) -> tuple[Any, ...]:
    """Of the first item in each column, of what all items share, and of the modes around."""
    columns = map(column_look, work.items.columns)
    shared = list(map(_shared_look, work.body.__closure__ or ()))
    if work.cond is not None:
        shared += map(_shared_look, work.cond.__closure__ or ())
    tensors, branches = any(map(_begins_with_tensor, work.items.columns)), work.plan.texts.branches
    read = _read(work) if tensors or branches else []
    if tensors:
        shared += [_look(value) for value in read if isinstance(value, Tensor)]
        shared.append(precision())
    if branches:
        shared += map(_value, read)
    return (*columns, *shared, torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast_state())


def _read(work: Work) -> list[Any]:
    """All that the body is known to read, but of the items. How types are joined depends on the dimensions of
    tensors; which way the body goes, on numbers, texts and truths."""
    guards = work.plan.guards
    seen = work.seen
    if seen is None:
        seen = guards.values(work.functions, work.items.columns)
    return [value for value, of_items in zip(seen, guards.vector, strict=True) if not of_items]


def _value(value: Any) -> Any:
    """What a body may branch on."""
    kind = type(value)
    if kind in CONSTANTS:
        return kind, value
    if kind in CONTAINERS and len(value) <= SMALL:
        parts = [*value, *value.values()] if kind is dict else value
        return kind, repr(value) if all(type(part) in CONSTANTS for part in parts) else None
    return None


def column_look(column: Any) -> Any:
    """Of one loop variable, by its first item."""
    if type(column) is np.ndarray:
        return _type(column), column.shape[1:]
    if type(column) is Blocks:
        return _type(column.blocks[0]), column.blocks[0].shape[1:]
    if type(column) is Tensor:
        return column.dtype, column.shape[1:], column.device, column.requires_grad
    return _look(column[0])


def _begins_with_tensor(column: Any) -> bool:
    return isinstance(column[0], Tensor)


def _shared_look(cell: Any) -> Any:
    try:
        return _look(cell.cell_contents)
    except ValueError:
        return None


def _look(value: Any) -> Any:
    kind = type(value)
    if kind is np.ndarray:
        return _type(value), value.shape
    if isinstance(value, Tensor):
        return kind, value.dtype, value.shape, value.device, value.requires_grad
    return kind


def _type(array: np.ndarray) -> Any:
    """Types of the same numbers may be equal, and have other scalars."""
    return array.dtype, array.dtype.char
