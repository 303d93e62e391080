"""The signature of a call: types, shapes and modes.

Results of a rung are compared with the plain loop once per signature.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..guards.modes import autocast_state, precision
from .items import Blocks
from .proof.guards import SMALL
from .proof.kinds import CONSTANTS, CONTAINERS
from .work import Work, closure_values

MOST_SIGNATURES = 64  # per rung; when reached, all are dropped


def signature_of(work: Work) -> tuple[Any, ...]:
    """Return the signature: of the first item of each column, of shared values, and of the PyTorch modes.

    Shared tensors matter because type promotion depends on their dimensions. Shared constants matter if the
    body branches on them.
    """
    guards, columns = work.plan.guards, work.items.columns
    signature = [*map(column_signature, columns), torch.is_grad_enabled(), torch.is_inference_mode_enabled()]
    signature.append(autocast_state())
    for function in filter(None, (work.body, work.cond)):
        signature += map(_look, closure_values(function))
    tensors, branches = any(isinstance(column[0], Tensor) for column in columns), work.plan.texts.branches
    if tensors or branches:
        seen = work.seen or guards.hold(work.functions, columns) or ()
        shared = [value for value, many in zip(seen, guards.vector, strict=False) if not many]
        signature += [_look(value) for value in shared if tensors and isinstance(value, Tensor)]
        signature += [_value(value) for value in shared if branches]
        signature.append(precision() if tensors else None)
    return tuple(signature)


def column_signature(column: Any) -> Any:
    """Return the signature of one loop variable, from its first item."""
    if type(column) in (np.ndarray, Blocks):
        array = column.blocks[0] if type(column) is Blocks else column
        return array.dtype, array.dtype.char, array.shape[1:]
    if type(column) is Tensor:
        return column.dtype, column.shape[1:], column.device, column.requires_grad
    return _look(column[0])


def _look(value: Any) -> Any:
    if type(value) is np.ndarray:
        return value.dtype, value.dtype.char, value.shape  # equal dtypes may have different scalar types
    if isinstance(value, Tensor):
        return type(value), value.dtype, value.shape, value.device, value.requires_grad
    return type(value)


def _value(value: Any) -> Any:
    """Return the part of a shared value that a body may branch on."""
    kind = type(value)
    if kind in CONSTANTS:
        return kind, value
    if kind in CONTAINERS and len(value) <= SMALL:
        parts = [*value, *value.values()] if kind is dict else value
        return kind, repr(value) if all(type(part) in CONSTANTS for part in parts) else None
    return None
