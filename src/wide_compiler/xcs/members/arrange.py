"""The memory order of a wide model's weights: the copies are ours, and small products depend on it."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..ledger import clock

ORDERS = ((2, 0, 1), (0, 2, 1))  # of weights `[lane, out, in]`: inputs first for all lanes, or for each lane
SECONDS = 0.2  # for trying
CALLS = 30
CLEARLY = 0.97


def arrange(wide: torch.nn.Module, call: Callable[[], object]) -> None:
    """Lay each weight out as the given call of the wide model likes it best; its numbers stay the same."""
    began = clock()
    best = _seconds(call)
    for weight in wide.parameters():
        if weight.dim() != 3 or weight.device.type != "cpu":
            continue
        kept = weight.data
        for order in ORDERS:
            if clock() - began > SECONDS:
                break
            weight.data = _laid_out(weight.data, order)
            seconds = _seconds(call)
            if seconds < CLEARLY * best:
                best, kept = seconds, weight.data
        weight.data = kept


def _laid_out(tensor: Tensor, order: tuple[int, ...]) -> Tensor:
    """The same tensor in memory of that order."""
    return tensor.permute(order).contiguous().permute([order.index(i) for i in range(len(order))])


def _seconds(call: Callable[[], object]) -> float:
    """Best of a few calls."""
    seconds = []
    for _ in range(CALLS):
        began = clock()
        call()
        seconds.append(clock() - began)
    return min(seconds)
