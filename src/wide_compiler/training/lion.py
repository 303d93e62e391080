"""Lion with hyper-parameters per lane."""

from collections.abc import Iterable
from typing import Any, Unpack

import torch

from .bucket import Bucket, add_scaled_, average_, scale_, spread
from .lane_numbers import Limits
from .optimizer import LaneOptimizer, StepOptions, used


class Lion(LaneOptimizer):
    """Lion for a wide model: updates of fixed size in the direction of the sign of a momentum.

    The update is the sign of `beta1 * m + (1 - beta1) * g`; the new momentum is `beta2 * m + (1 - beta2) *
    g`. Weight decay is decoupled. A good learning rate is 3 to 10 times smaller than for AdamW. Each
    hyper-parameter is a number or one number per lane.
    """

    limits = {"lr": Limits(), "beta1": Limits(0.0, 1.0), "beta2": Limits(0.0, 1.0), "weight_decay": Limits()}

    def __init__(
        self,
        params: Iterable[Any],
        lr: Any = 1e-4,
        betas: Any = (0.9, 0.99),
        weight_decay: Any = 0.0,
        **options: Unpack[StepOptions],
    ):
        settings = {"lr": lr, "betas": betas, "weight_decay": weight_decay}
        super().__init__(params, settings, **options)

    def fresh_state(self, group: dict[str, Any]) -> dict[str, float]:
        return {"exp_avg": 0.0}

    def counts_steps(self, group: dict[str, Any]) -> bool:
        return False

    def update(self, bucket: Bucket, numbers: dict[str, Any], group: dict[str, Any]) -> None:
        params, grads, memory = bucket.params, bucket.grads, bucket.state["exp_avg"]
        directions = torch._foreach_lerp(memory, grads, spread(1 - numbers["beta1"], grads))
        torch._foreach_sign_(directions)
        if used(group["weight_decay"]):
            scale_(params, 1 - numbers["lr"] * numbers["weight_decay"])
        add_scaled_(params, directions, -numbers["lr"])
        average_(memory, grads, numbers["beta2"])
