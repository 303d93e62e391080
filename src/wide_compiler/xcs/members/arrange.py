"""The memory order of a wide model's weights: the copies are ours, and small products depend on it."""

from collections.abc import Callable

import torch
from torch import Tensor

from ...measure.clock import current_clock, now
from ...measure.policy import FINAL_ROUNDS, winner

ORDERS = ((2, 0, 1), (0, 2, 1))  # of weights `[lane, out, in]`: inputs first for all lanes, or for each lane
SECONDS = 0.2  # for trying
AS_IT_IS = "as it is"


def arrange(wide: torch.nn.Module, call: Callable[[], object]) -> None:
    """Lay each weight out as the given call of the wide model runs fastest; its numbers stay the same."""
    began = now()
    for weight in wide.parameters():
        if weight.dim() != 3 or weight.device.type != "cpu" or now() - began > SECONDS:
            continue
        layouts = {AS_IT_IS: weight.data} | {str(order): _laid_out(weight.data, order) for order in ORDERS}
        calls = {name: _with(weight, data, call) for name, data in layouts.items()}
        times = current_clock().turns(calls, 0.0, rounds_at_least=FINAL_ROUNDS)
        weight.data = layouts[winner(times.seconds, [AS_IT_IS])]


def _with(weight: Tensor, data: Tensor, call: Callable[[], object]) -> Callable[[], object]:
    def run() -> object:
        weight.data = data
        return call()

    return run


def _laid_out(tensor: Tensor, order: tuple[int, ...]) -> Tensor:
    """The same tensor in memory of that order."""
    return tensor.permute(order).contiguous().permute([order.index(i) for i in range(len(order))])
