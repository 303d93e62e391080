"""Adam and AdamW, by lane."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from .bucket import (
    Bucket,
    Tensors,
    add_divided_,
    add_scaled,
    average_,
    average_squares_,
    scale_,
    spread,
)
from .lane_numbers import LaneNumber, Limits
from .optimizer import LaneOptimizer, single, used


class Adam(LaneOptimizer):
    """`torch.optim.Adam` for a wide model: each number may be one per lane.

    >>> import wide_compiler
    >>> wide = wide_compiler.compile(torch.nn.Linear(4, 2), torch.randn(2, 4), n=2)
    >>> adam = Adam(wide.parameters(), lr=[1e-3, 1e-2], betas=(0.9, [0.99, 0.999]))
    >>> adam.lane_values("beta1")
    tensor([0.9000, 0.9000], dtype=torch.float64)
    """

    decoupled = False
    limits = {
        "lr": Limits(),
        "beta1": Limits(0.0, 1.0),
        "beta2": Limits(0.0, 1.0),
        "eps": Limits(),
        "weight_decay": Limits(),
    }

    def __init__(
        self,
        params: Iterable[Any],
        lr: Any = 1e-3,
        betas: Any = (0.9, 0.999),
        eps: Any = 1e-8,
        weight_decay: Any = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        fused: bool | None = None,
        capturable: bool = True,
    ):
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "amsgrad": amsgrad,
                "maximize": maximize,
                "fused": fused,
                "capturable": capturable,
            },
        )

    def fresh_state(self, group: dict[str, Any]) -> dict[str, float]:
        names = ["exp_avg", "exp_avg_sq", *["max_exp_avg_sq"] * group["amsgrad"]]
        return dict.fromkeys(names, 0.0)

    def update(self, bucket: Bucket, numbers: dict[str, Any], group: dict[str, Any]) -> None:
        params, state, step = bucket.params, bucket.state, bucket.step
        grads: Tensors = bucket.grads
        assert step is not None
        lr, beta1, beta2 = numbers["lr"], numbers["beta1"], numbers["beta2"]
        if used(group["weight_decay"]):
            if self.decoupled:
                scale_(params, 1 - lr * numbers["weight_decay"])
            else:
                grads = add_scaled(grads, params, numbers["weight_decay"])
        average_(state["exp_avg"], grads, beta1)
        average_squares_(state["exp_avg_sq"], grads, beta2)
        squares: Tensors = state["exp_avg_sq"]
        if group["amsgrad"]:
            torch._foreach_maximum_(state["max_exp_avg_sq"], squares)
            squares = state["max_exp_avg_sq"]
        roots = torch._foreach_sqrt(squares)
        scale_(roots, correction(beta2, step).rsqrt())
        torch._foreach_add_(roots, spread(numbers["eps"], roots))
        add_divided_(params, state["exp_avg"], roots, -lr / correction(beta1, step))

    def update_fused(self, bucket: Bucket, numbers: dict[str, Any], group: dict[str, Any]) -> bool:
        assert bucket.step is not None
        kernel = torch._fused_adamw_ if self.decoupled else torch._fused_adam_
        state = bucket.state
        kernel(
            bucket.params,
            bucket.grads,
            state["exp_avg"],
            state["exp_avg_sq"],
            state.get("max_exp_avg_sq", []),
            [bucket.step] * len(bucket.params),
            lr=single(numbers["lr"]),
            beta1=numbers["beta1"],
            beta2=numbers["beta2"],
            weight_decay=numbers["weight_decay"],
            eps=numbers["eps"],
            amsgrad=group["amsgrad"],
            maximize=group["maximize"],
        )
        return True


class AdamW(Adam):
    """`torch.optim.AdamW` for a wide model: each number may be one per lane."""

    decoupled = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: Any = 1e-3,
        betas: Any = (0.9, 0.999),
        eps: Any = 1e-8,
        weight_decay: Any = 1e-2,
        amsgrad: bool = False,
        **options: Any,
    ):
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, **options)


def correction(beta: LaneNumber, step: Tensor) -> Tensor:
    """`1 - beta ** step`, exact enough for the first steps: float64."""
    return 1 - torch.pow(beta, step.double())
