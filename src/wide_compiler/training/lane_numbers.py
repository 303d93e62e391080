"""Hyper-parameters given as one number or one number per lane."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import ArgumentError, LaneIndexError

LaneNumber = float | Tensor  # a number, or float64 `[N]`


@dataclass(frozen=True)
class Limits:
    """`low <= x < below`."""

    low: float = 0.0
    below: float = math.inf

    def __contains__(self, x: float) -> bool:
        return self.low <= x < self.below

    def __str__(self) -> str:
        return f"at least {self.low:g}" + (f" and below {self.below:g}" if self.below < math.inf else "")


def lane_number(name: str, value: Any, n: int, limits: Limits, device: torch.device) -> LaneNumber:
    """Check a hyper-parameter: a number stays a number, a list, array or tensor of `n` becomes float64 `[N]`.

    Raises `ArgumentError` for a wrong shape or a value outside `limits`.

    >>> lane_number("lr", [0.1, 0.2], 2, Limits(), torch.device("cpu"))
    tensor([0.1000, 0.2000], dtype=torch.float64)
    >>> lane_number("lr", [0.1, -0.2], 2, Limits(), torch.device("cpu"))
    Traceback (most recent call last):
        ...
    wide_compiler.errors.ArgumentError: lr of lane 1 is -0.2, expected at least 0
    """
    try:
        values = torch.as_tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(f"{name}: expected a number or {n}, one per lane, got {value!r}") from error
    if values.dim() == 0:
        number = float(values)
        if number not in limits:
            raise ArgumentError(f"{name} is {number:g}, expected {limits}")
        return number
    if values.shape != (n,):
        raise ArgumentError(
            f"{name}: expected a number or {n}, one per lane, got a shape of {tuple(values.shape)}"
        )
    for lane, number in enumerate(values.tolist()):
        if number not in limits:
            raise ArgumentError(f"{name} of lane {lane} is {number:g}, expected {limits}")
    return values.to(device, copy=True)


def lane_indices(lanes: Any, n: int) -> Tensor:
    """Convert an index, a list of indices, a slice or a boolean mask `[N]` to indices `[k]`.

    >>> lane_indices([0, -1], 4)
    tensor([0, 3])
    """
    if isinstance(lanes, slice):
        found = torch.arange(n)[lanes]
    else:
        found = torch.as_tensor(lanes)
        if found.dtype == torch.bool:
            if found.shape != (n,):
                raise ArgumentError(f"lanes: expected {n} flags, one per lane, got {tuple(found.shape)}")
            found = found.nonzero().squeeze(1)
        found = found.reshape(-1) if found.dim() < 2 else found
    if found.numel() == 0:
        found = found.long()
    if found.dim() != 1 or found.is_floating_point() or found.is_complex():
        raise ArgumentError(f"lanes: expected whole numbers or {n} flags, got {lanes!r}")
    for lane in found.tolist():
        if not -n <= lane < n:
            raise LaneIndexError(f"lane {lane} is out of range for {n} lanes")
    return found.long() % n
