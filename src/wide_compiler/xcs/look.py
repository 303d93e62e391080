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
    """Of the first item in each column, of what all items share, and of the modes around. How types are
    joined depends on the dimensions of tensors; which way the body goes, on numbers, texts and truths."""
    guards, columns = work.plan.guards, work.items.columns
    look = [*map(column_look, columns), torch.is_grad_enabled(), torch.is_inference_mode_enabled()]
    look.append(autocast_state())
    for function in filter(None, (work.body, work.cond)):
        look += [_shared_look(cell) for cell in function.__closure__ or ()]
    tensors, branches = any(isinstance(column[0], Tensor) for column in columns), work.plan.texts.branches
    if tensors or branches:
        seen = work.seen or guards.hold(work.functions, columns) or ()
        shared = [value for value, many in zip(seen, guards.vector, strict=False) if not many]
        look += [_look(value) for value in shared if tensors and isinstance(value, Tensor)]
        look += [_value(value) for value in shared if branches]
        look.append(precision() if tensors else None)
    return tuple(look)


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
    if type(column) in (np.ndarray, Blocks):
        array = column.blocks[0] if type(column) is Blocks else column
        return _type(array), array.shape[1:]
    if type(column) is Tensor:
        return column.dtype, column.shape[1:], column.device, column.requires_grad
    return _look(column[0])


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
