"""Adam and AdamW with hyper-parameters per lane."""

from collections.abc import Iterable
from typing import Any, Unpack

import torch
from torch import Tensor

from ..kernels import available
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
from .lane_numbers import LaneNumber, Limits
from .optimizer import LaneOptimizer, StepOptions, by_lane, used

# CPU thresholds: the mean number of elements per lane and tensor from which one fused kernel call per lane
# is faster than foreach operations over all lanes (LARGE), or than one fused call for all lanes, which is
# possible when lanes differ only in learning rate and weight decay (LARGE_FOR_RATES).
LARGE, LARGE_FOR_RATES = 2000, 6000


class Adam(LaneOptimizer):
    """`torch.optim.Adam` for a wide model; each hyper-parameter is a number or one number per lane.

    >>> import wide_compiler
    >>> wide = wide_compiler.compile(torch.nn.Linear(4, 2), torch.randn(2, 4), n=2)
    >>> adam = Adam(wide.parameters(), lr=[1e-3, 1e-2], betas=(0.9, [0.99, 0.999]))
    >>> adam.lane_values("beta1")
    tensor([0.9000, 0.9000], dtype=torch.float64)
    """

    decoupled = False
    limits = {
        "lr": Limits(),
        **dict.fromkeys(("beta1", "beta2"), Limits(0.0, 1.0)),
        **dict.fromkeys(("eps", "weight_decay"), Limits()),
    }
    fused_on, kernel = ("cpu", "cuda"), "_fused_adam_"
    kernel_states, kernel_options = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"), ("amsgrad",)

    def __init__(
        self,
        params: Iterable[Any],
        lr: Any = 1e-3,
        betas: Any = (0.9, 0.999),
        eps: Any = 1e-8,
        weight_decay: Any = 0.0,
        amsgrad: bool = False,
        **options: Unpack[StepOptions],
    ):
        settings = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad}
        super().__init__(params, settings, **options)

    def fresh_state(self, group: dict[str, Any]) -> dict[str, float]:
        names = ["exp_avg", "exp_avg_sq", *["max_exp_avg_sq"] * group["amsgrad"]]
        return dict.fromkeys(names, 0.0)

    def update(self, bucket: Bucket, numbers: dict[str, Any], group: dict[str, Any]) -> None:
        assert bucket.step is not None
        if group["fused"] is not False and _fits_lanes(bucket):
            self._lanes_kernel(bucket, numbers, maximize=False)
            return
        device = bucket.params[0].device.type
        kernel = group["fused"] is not False and self.has_fused(device, group) and bucket.alike()
        others = (numbers[name] for name in ("beta1", "beta2", "eps"))
        only_rates = bucket.step.dim() == 0 and not any(map(by_lane, others))
        if kernel and _worth_a_call_each(bucket, LARGE_FOR_RATES if only_rates else LARGE):
            self._lane_by_lane(bucket, numbers, group)
        elif kernel and only_rates:
            self._by_direction(bucket, numbers, group)
        else:
            self._by_operations(bucket, numbers, group)

    def _lane_by_lane(self, bucket: Bucket, numbers: dict[str, Any], group: dict[str, Any]) -> None:
        """Call the fused kernel once per lane."""
        lanes = bucket.lane_by_lane()
        values = {name: _listed(value, len(lanes)) for name, value in numbers.items()}
        for i, lane in enumerate(lanes):
            super().update_fused(lane, {name: value[i] for name, value in values.items()}, group, False)

    def _by_direction(self, bucket: Bucket, numbers: dict[str, Any], group: dict[str, Any]) -> None:
        """Compute the step for a learning rate of 1 with the fused kernel, then scale it per lane."""
        params, decay = bucket.params, numbers["weight_decay"]
        grads: Tensors = bucket.grads
        steps = self.scratch(params)
        if self.decoupled and used(group["weight_decay"]):
            torch._foreach_copy_(steps, params)
            scale_(steps, -decay)
        else:
            torch._foreach_zero_(steps)
            if used(group["weight_decay"]):
                grads = add_scaled(grads, params, decay)
        moved = Bucket(steps, list(grads), bucket.state, bucket.step, bucket.stacked)
        super().update_fused(moved, {**numbers, "lr": 1.0, "weight_decay": 0.0}, group, False)
        add_scaled_(params, steps, numbers["lr"])

    def _by_operations(self, bucket: Bucket, numbers: dict[str, Any], group: dict[str, Any]) -> None:
        params, state, step = bucket.params, bucket.state, bucket.step
        grads: Tensors = bucket.grads
        assert step is not None
        if used(group["weight_decay"]):
            if self.decoupled:
                scale_(params, 1 - numbers["lr"] * numbers["weight_decay"])
            else:
                grads = add_scaled(grads, params, numbers["weight_decay"])
        average_(state["exp_avg"], grads, numbers["beta1"])
        average_squares_(state["exp_avg_sq"], grads, numbers["beta2"])
        squares = state["exp_avg_sq"]
        if group["amsgrad"]:
            torch._foreach_maximum_(state["max_exp_avg_sq"], squares)
            squares = state["max_exp_avg_sq"]
        roots = torch._foreach_sqrt(squares)
        scale_(roots, correction(numbers["beta2"], step).rsqrt())
        torch._foreach_add_(roots, spread(numbers["eps"], roots))
        add_divided_(params, state["exp_avg"], roots, -numbers["lr"] / correction(numbers["beta1"], step))

    def update_fused(
        self, bucket: Bucket, numbers: dict[str, Any], group: dict[str, Any], maximize: bool
    ) -> None:
        if _fits_lanes(bucket):
            self._lanes_kernel(bucket, numbers, maximize)
        else:
            super().update_fused(bucket, numbers, group, maximize)

    def _lanes_kernel(self, bucket: Bucket, numbers: dict[str, Any], maximize: bool) -> None:
        """Update all tensors with this library's Triton kernel."""
        from ..kernels.lane_adam import Numbers, adam_

        assert bucket.step is not None
        first, second, largest = (bucket.state.get(name, []) for name in self.kernel_states)
        own = Numbers(bucket.step, **numbers)
        how = {"decoupled": self.decoupled, "maximize": maximize}
        adam_(bucket.params, bucket.grads, first, second, largest, own, **how)


class AdamW(Adam):
    """`torch.optim.AdamW` for a wide model; each hyper-parameter is a number or one number per lane."""

    decoupled, kernel = True, "_fused_adamw_"

    def __init__(
        self,
        params: Iterable[Any],
        lr: Any = 1e-3,
        betas: Any = (0.9, 0.999),
        eps: Any = 1e-8,
        weight_decay: Any = 1e-2,
        amsgrad: bool = False,
        **options: Unpack[StepOptions],
    ):
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, **options)


def _fits_lanes(bucket: Bucket) -> bool:
    """Return whether this library's Triton kernel supports the tensors of `bucket`."""
    param = bucket.params[0]
    if not param.is_cuda or not available() or param.dtype not in (torch.float32, torch.float64):
        return False
    if not bucket.alike() or not bucket.in_one_piece():
        return False
    from ..kernels.lane_adam import works_on

    return works_on(param.device, param.dtype)


def _worth_a_call_each(bucket: Bucket, elements: int) -> bool:
    if not bucket.stacked or bucket.params[0].device.type != "cpu" or not bucket.lanes_in_one_piece():
        return False
    return sum(p.numel() for p in bucket.params) >= elements * len(bucket.params[0]) * len(bucket.params)


def _listed(value: LaneNumber, n: int) -> list[float]:
    return value.expand(n).tolist() if isinstance(value, Tensor) else [value] * n


def correction(beta: LaneNumber, step: Tensor) -> Tensor:
    """Return the bias correction `1 - beta ** step` in float64; float32 is too coarse for the first steps."""
    return 1 - torch.pow(beta, step.double())
