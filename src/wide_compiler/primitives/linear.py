"""Linear layers of N lanes as one batched matrix product.

Shapes: N lanes, I in-features, O out-features, `*` any number of axes, M those axes flattened.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..widen.builder import Builder, Val
from ..widen.rules import ops, rule
from ._lanes import check_lanes, per_lane, resolve
from ._module import WideModule

LINEAR_STRATEGIES = ("einsum", "sequential")


def wide_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, strategy: str = "auto") -> Tensor:
    """`y[n] = x[n] @ weight[n].T + bias[n]` for every lane n.

    Args:
        x: `[N, *, I]`; `*` may be empty.
        weight: `[N, O, I]`.
        bias: `[N, O]` or None.
        strategy: "einsum" (one batched product), "sequential" (one `F.linear` per lane), or "auto",
            which is "einsum".

    Returns:
        `[N, *, O]`.
    """
    n = check_lanes("wide_linear", x=x, weight=weight, bias=bias)
    if resolve(strategy, LINEAR_STRATEGIES, auto="einsum", op="wide_linear") == "sequential":
        lanes = zip(x.unbind(0), weight.unbind(0), per_lane(bias, n), strict=True)
        return torch.stack([F.linear(x_, w_, b_) for x_, w_, b_ in lanes])

    x_NMI = x.unsqueeze(1) if x.dim() == 2 else x.flatten(1, -2)
    if bias is None:
        y_NMO = torch.bmm(x_NMI, weight.mT)
    else:
        y_NMO = torch.baddbmm(bias.unsqueeze(1), x_NMI, weight.mT)
    return y_NMO.reshape(*x.shape[:-1], weight.shape[1])


def shared_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`wide_linear` of an input that is the same for every lane, as ONE product with N*O outputs.

    Args:
        x: `[*, I]`, no lane axis.
        weight: `[N, O, I]`.
        bias: `[N, O]` or None.

    Returns:
        `[N, *, O]`, a view of the product `[*, N*O]`.
    """
    n = check_lanes("shared_linear", weight=weight, bias=bias)
    y = F.linear(x, weight.flatten(0, 1), None if bias is None else bias.flatten())
    return y.unflatten(-1, (n, weight.shape[1])).movedim(-2, 0)


class WideLinear(WideModule):
    """N `nn.Linear` layers: `[N, *, in_features]` -> `[N, *, out_features]`."""

    kernel = staticmethod(wide_linear)

    MEMBER = nn.Linear
    CONFIG = ("in_features", "out_features")
    STRATEGIES = LINEAR_STRATEGIES

    weight: Tensor
    bias: Tensor | None

    def forward(self, x: Tensor) -> Tensor:
        """x: `[N, *, I]` -> `[N, *, O]`."""
        return self.kernel(x, self.weight, self.bias, self.strategy)


@rule(*ops("linear.default"))
def linear_rule(b: Builder, x: Val, weight: Val, bias: Val | None = None) -> Val:
    if not weight.wide and not (bias is not None and bias.wide):
        return b.call(F.linear, x, weight, bias)  # a shared layer: one product for all lanes
    strategy = b.choose(WideLinear, "einsum")
    if not x.wide and weight.wide and strategy == "einsum":
        b.strategy = "one product"
        return b.call(shared_linear, x, weight, b.wide(bias))
    return b.call(WideLinear.kernel, b.wide(x), b.wide(weight), b.wide(bias), strategy)
