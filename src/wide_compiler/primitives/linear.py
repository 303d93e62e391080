"""Linear layers of N lanes as one batched matrix product.

Shapes: N lanes, I in-features, O out-features, `*` any number of axes, M those axes flattened.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import kernels
from ..lanes import own_gradient
from ..widen.builder import Builder, Val
from ..widen.rules import ops, rule
from ._lanes import autocast_dtype, cast, check_lanes, per_lane, resolve
from ._module import WideModule

LINEAR_STRATEGIES = ("einsum", "transposed", "tensor_core", "sequential")
SHARED_STRATEGIES = ("one product", "einsum", "transposed", "sequential")


def linear_choices(x: Tensor) -> tuple[str, ...]:
    """Return the strategies that can run on `x`."""
    return tuple(s for s in LINEAR_STRATEGIES if s != "tensor_core" or tensor_core_fits(x))


def tensor_core_fits(x: Tensor) -> bool:
    return x.is_cuda and kernels.can_run(x)


def wide_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, strategy: str = "auto") -> Tensor:
    """Compute `y[n] = x[n] @ weight[n].T + bias[n]` for every lane n: `[N, *, I]` -> `[N, *, O]`.

    `strategy` is "einsum" (one batched product), "transposed" (the same with features first in memory, which
    avoids transposing weight gradients), "tensor_core" (a Triton kernel on CUDA with fp32 accuracy from
    tensor cores; "einsum" elsewhere), "sequential" (one `F.linear` per lane), or "auto", which is "einsum".
    """
    check_lanes("wide_linear", x=x, weight=weight, bias=bias)
    product = _PRODUCTS[resolve(strategy, LINEAR_STRATEGIES, auto="einsum", op="wide_linear")]
    if product is not _tensor_core or not tensor_core_fits(x):  # the kernel casts while it reads
        x, weight, bias = cast(autocast_dtype(x), x, weight, bias)  # type: ignore[assignment]
    if x.dim() == 3:
        return product(x, weight, bias)
    x_NMI = x.unsqueeze(1) if x.dim() == 2 else x.flatten(1, -2)
    return product(x_NMI, weight, bias).reshape(*x.shape[:-1], weight.shape[1])


def gradient_in_one_piece(weight: Tensor) -> Tensor:
    """Return the weight through a flat view when compiling, so that its gradient is contiguous.

    The gradient of a weight in a matrix product is transposed, and that of a part is a slice; autograd would
    copy each with a separate kernel. The flat view makes the compiler produce the contiguous layout, fused
    with neighbouring ops.
    """
    if not torch.compiler.is_dynamo_compiling() or not weight.is_contiguous():
        return weight
    return weight.flatten().view(weight.shape)


def _product(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    if bias is None:
        return torch.bmm(a, b)
    if torch.compiler.is_dynamo_compiling():  # the compiler fuses the sum with the next op
        return torch.bmm(a, b) + bias
    return torch.baddbmm(bias, a, b)


def _rows(b_NO: Tensor, x_NMI: Tensor) -> Tensor:
    # The gradient of a bias is a sum over rows, except if there is one.
    return own_gradient(b_NO) if x_NMI.shape[1] == 1 else b_NO


def _einsum(x_NMI: Tensor, w_NOI: Tensor, b_NO: Tensor | None) -> Tensor:
    w_NOI = gradient_in_one_piece(w_NOI)
    return _product(x_NMI, w_NOI.mT, None if b_NO is None else _rows(b_NO, x_NMI).unsqueeze(1))


def _transposed(x_NMI: Tensor, w_NOI: Tensor, b_NO: Tensor | None) -> Tensor:
    return _product(w_NOI, x_NMI.mT, None if b_NO is None else _rows(b_NO, x_NMI).unsqueeze(2)).mT


def _tensor_core(x_NMI: Tensor, w_NOI: Tensor, b_NO: Tensor | None) -> Tensor:
    if not tensor_core_fits(x_NMI):
        return _einsum(x_NMI, w_NOI, b_NO)
    from ..kernels.lane_linear import lane_linear

    return lane_linear(x_NMI, w_NOI, b_NO, compute=autocast_dtype(x_NMI))


def _sequential(x_NMI: Tensor, w_NOI: Tensor, b_NO: Tensor | None) -> Tensor:
    lanes = zip(x_NMI.unbind(0), w_NOI.unbind(0), per_lane(b_NO, len(w_NOI)), strict=True)
    return torch.stack([F.linear(x, w, b) for x, w, b in lanes])


_PRODUCTS = {
    "einsum": _einsum,
    "transposed": _transposed,
    "tensor_core": _tensor_core,
    "sequential": _sequential,
}


def shared_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, strategy: str = "one product"
) -> Tensor:
    """Run `wide_linear` on an input `[*, I]` shared by all lanes; returns `[N, *, O]`.

    `strategy` is "one product" (one matrix product with N*O outputs; the result is a view of `[*, N*O]`), or
    a strategy of `wide_linear`, which reads the input once per lane.
    """
    n = check_lanes("shared_linear", weight=weight, bias=bias)
    if strategy != "one product":
        return wide_linear(x.expand(n, *x.shape), weight, bias, strategy)
    y = F.linear(x, weight.flatten(0, 1), None if bias is None else bias.flatten())
    y = y.view(*x.shape[:-1], n, weight.shape[1])
    return y.transpose(0, 1) if y.dim() == 3 else y.movedim(-2, 0)


class WideLinear(WideModule):
    """N `nn.Linear` layers: `[N, *, in_features]` -> `[N, *, out_features]`."""

    kernel = staticmethod(wide_linear)
    MEMBER = nn.Linear
    CONFIG = ("in_features", "out_features")
    STRATEGIES = LINEAR_STRATEGIES
    ARGUMENTS = ("weight", "bias", "strategy")


@rule(*ops("linear.default"))
def linear_rule(b: Builder, x: Val, weight: Val, bias: Val | None = None) -> Val:
    if not weight.wide and not (bias is not None and bias.wide):
        return b.call(F.linear, x, weight, bias)  # shared layer: one product for all lanes
    if not x.wide and weight.wide:
        strategy = b.choose(WideLinear, "one product", SHARED_STRATEGIES)
        return b.call(shared_linear, x, weight, b.wide(bias), strategy)
    strategy = b.choose(WideLinear, "einsum", linear_choices(x.value))
    return b.call(WideLinear.kernel, *map(b.wide, (x, weight, bias)), strategy)
