"""RMSprop with hyper-parameters per lane."""

from collections.abc import Iterable
from typing import Any, Unpack

import torch

from .bucket import (
    Bucket,
    Tensors,
    add_divided_,
    add_scaled,
    add_scaled_,
    average_,
    average_squares_,
    scale_,
    spread,
)
from .lane_numbers import Limits
from .optimizer import LaneOptimizer, StepOptions, used


class RMSprop(LaneOptimizer):
    """`torch.optim.RMSprop` for a wide model; each hyper-parameter is a number or one number per lane."""

    limits = {name: Limits() for name in ("lr", "alpha", "eps", "weight_decay", "momentum")}

    def __init__(
        self,
        params: Iterable[Any],
        lr: Any = 1e-2,
        alpha: Any = 0.99,
        eps: Any = 1e-8,
        weight_decay: Any = 0.0,
        momentum: Any = 0.0,
        centered: bool = False,
        **options: Unpack[StepOptions],
    ):
        settings = {"lr": lr, "alpha": alpha, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**settings, "momentum": momentum, "centered": centered}, **options)

    def fresh_state(self, group: dict[str, Any]) -> dict[str, float]:
        more = ["momentum_buffer"] * used(group["momentum"]) + ["grad_avg"] * group["centered"]
        return dict.fromkeys(["square_avg", *more], 0.0)

    def update(self, bucket: Bucket, numbers: dict[str, Any], group: dict[str, Any]) -> None:
        params, state = bucket.params, bucket.state
        grads: Tensors = bucket.grads
        if used(group["weight_decay"]):
            grads = add_scaled(grads, params, numbers["weight_decay"])
        average_squares_(state["square_avg"], grads, numbers["alpha"])
        if group["centered"]:
            average_(state["grad_avg"], grads, numbers["alpha"])
            means = state["grad_avg"]
            roots: Tensors = torch._foreach_addcmul(state["square_avg"], means, means, -1.0)
            torch._foreach_sqrt_(roots)
        else:
            roots = torch._foreach_sqrt(state["square_avg"])
        torch._foreach_add_(roots, spread(numbers["eps"], roots))
        if "momentum_buffer" in state:
            scale_(state["momentum_buffer"], numbers["momentum"])
            torch._foreach_addcdiv_(state["momentum_buffer"], grads, roots)
            add_scaled_(params, state["momentum_buffer"], -numbers["lr"])
        else:
            add_divided_(params, grads, roots, -numbers["lr"])
