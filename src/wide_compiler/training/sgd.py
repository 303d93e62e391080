"""SGD with momentum, with hyper-parameters per lane."""

import math
from collections.abc import Iterable
from typing import Any, Unpack

import torch
from torch import Tensor

from ..errors import ArgumentError
from .bucket import Bucket, Tensors, add_scaled, add_scaled_, scale_
from .lane_numbers import LaneNumber, Limits
from .optimizer import LaneOptimizer, StepOptions, used


class SGD(LaneOptimizer):
    """`torch.optim.SGD` for a wide model; each hyper-parameter is a number or one number per lane.

    >>> import wide_compiler
    >>> wide = wide_compiler.compile(torch.nn.Linear(4, 2), torch.randn(2, 4), n=3)
    >>> SGD(wide.parameters(), lr=[0.1, 0.2, 0.4]).lane_values("lr")
    tensor([0.1000, 0.2000, 0.4000], dtype=torch.float64)
    """

    limits = {name: Limits() for name in ("lr", "momentum", "weight_decay")} | {
        "dampening": Limits(-math.inf)
    }
    fused_on, kernel, kernel_states = ("cpu", "cuda"), "_fused_sgd_", ("momentum_buffer",)
    kernel_options = ("nesterov", "is_first_step")  # the latter is no setting, so it is False

    def __init__(
        self,
        params: Iterable[Any],
        lr: Any = 1e-3,
        momentum: Any = 0.0,
        dampening: Any = 0.0,
        weight_decay: Any = 0.0,
        nesterov: bool = False,
        **options: Unpack[StepOptions],
    ):
        settings = {"lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
        super().__init__(params, {**settings, "nesterov": nesterov}, **options)

    def check_group(self, group: dict[str, Any]) -> None:
        if not group["nesterov"]:
            return
        momentum, dampening = torch.as_tensor(group["momentum"]), torch.as_tensor(group["dampening"])
        if not bool((momentum > 0).all()) or bool((dampening != 0).any()):
            raise ArgumentError("nesterov needs a momentum above 0 and no dampening, in every lane")

    def fresh_state(self, group: dict[str, Any]) -> dict[str, float]:
        return {"momentum_buffer": 0.0} if used(group["momentum"]) else {}

    def counts_steps(self, group: dict[str, Any]) -> bool:
        # The first step of a lane is not dampened.
        return used(group["dampening"]) and used(group["momentum"])

    def stock_state(self, state: dict[str, Any], group: dict[str, Any]) -> dict[str, Any]:
        begun = bool(state.pop("step", 1))
        return {name: tensor if begun else None for name, tensor in state.items()}

    def own_state(self, state: dict[str, Any]) -> dict[str, Any]:
        begun = state.get("momentum_buffer") is not None
        return {"step": float(begun), **state}

    def update(self, bucket: Bucket, numbers: dict[str, Any], group: dict[str, Any]) -> None:
        params = bucket.params
        grads: Tensors = bucket.grads
        momentum = numbers["momentum"]
        if used(group["weight_decay"]):
            grads = add_scaled(grads, params, numbers["weight_decay"])
        if "momentum_buffer" in bucket.state:
            buffers = bucket.state["momentum_buffer"]
            scale_(buffers, momentum)
            add_scaled_(buffers, grads, self._share(bucket.step, numbers))
            grads = add_scaled(grads, buffers, momentum) if group["nesterov"] else buffers
        add_scaled_(params, grads, -numbers["lr"])

    def _share(self, step: Tensor | None, numbers: dict[str, Any]) -> LaneNumber:
        """Return the factor of a gradient in the momentum buffer: 1 at the first step or without momentum."""
        momentum, keep = numbers["momentum"], 1 - numbers["dampening"]
        if step is None or (not isinstance(momentum, Tensor) and momentum == 0):
            return 1.0
        whole = step == 1
        if isinstance(momentum, Tensor):
            whole = whole | (momentum == 0)
        return keep + (1 - keep) * whole.double()  # torch.where would copy scalars to the device

    def has_fused(self, device: str, group: dict[str, Any]) -> bool:
        return device in self.fused_on and not self.counts_steps(group)  # the first dampened step differs
