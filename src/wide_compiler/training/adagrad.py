"""Adagrad with hyper-parameters per lane."""

from collections.abc import Iterable
from typing import Any, Unpack

import torch

from ..errors import ArgumentError
from .bucket import Bucket, Tensors, add_divided_, add_scaled, spread
from .lane_numbers import Limits
from .optimizer import LaneOptimizer, StepOptions, used


class Adagrad(LaneOptimizer):
    """`torch.optim.Adagrad` for a wide model; each hyper-parameter is a number or one number per lane.

    `initial_accumulator_value` is the exception: one number for all lanes.
    """

    limits = {name: Limits() for name in ("lr", "lr_decay", "weight_decay", "eps")}
    fused_on, kernel, kernel_states = ("cpu",), "_fused_adagrad_", ("sum",)
    state_from_start = True  # PyTorch before 2.13 makes it in the constructor

    def __init__(
        self,
        params: Iterable[Any],
        lr: Any = 1e-2,
        lr_decay: Any = 0.0,
        weight_decay: Any = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: Any = 1e-10,
        **options: Unpack[StepOptions],
    ):
        if not initial_accumulator_value >= 0.0:
            raise ArgumentError(
                f"initial_accumulator_value is {initial_accumulator_value:g}, expected at least 0"
            )
        settings = {"lr": lr, "lr_decay": lr_decay, "weight_decay": weight_decay, "eps": eps}
        settings["initial_accumulator_value"] = initial_accumulator_value
        super().__init__(params, settings, **options)

    def fresh_state(self, group: dict[str, Any]) -> dict[str, float]:
        return {"sum": group["initial_accumulator_value"]}

    def update(self, bucket: Bucket, numbers: dict[str, Any], group: dict[str, Any]) -> None:
        params, sums, step = bucket.params, bucket.state["sum"], bucket.step
        grads: Tensors = bucket.grads
        assert step is not None
        if used(group["weight_decay"]):
            grads = add_scaled(grads, params, numbers["weight_decay"])
        torch._foreach_addcmul_(sums, grads, grads)
        roots = torch._foreach_sqrt(sums)
        torch._foreach_add_(roots, spread(numbers["eps"], roots))
        rate = numbers["lr"]
        if used(group["lr_decay"]):
            rate = rate / (1 + (step.double() - 1) * numbers["lr_decay"])
        add_divided_(params, grads, roots, -rate)
