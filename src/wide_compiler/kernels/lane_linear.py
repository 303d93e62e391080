"""Linear layers of N lanes as one Triton product, with bias and activation fused.

Import this module only if `_triton.available()`: it needs triton.

Shapes: N lanes, M rows, I in-features, O out-features.
"""

import torch
from torch import Tensor

from ..errors import ArgumentError, UnsupportedError
from .activations import ACTIVATIONS
from .lane_matmul import lane_matmul, matmul


@torch.library.custom_op("wide_compiler::lane_linear", mutates_args=())
def _lane_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, compute: torch.dtype | None = None
) -> Tensor:
    return matmul(x, weight.mT, bias, activation, compute)


@_lane_linear.register_fake
def _(x, weight, bias, activation, compute=None):
    return x.new_empty(x.shape[0], x.shape[1], weight.shape[1], dtype=compute or x.dtype)


def _linear_setup(ctx, inputs, output):
    x, weight, bias, activation, compute = inputs
    ctx.activation, ctx.compute = activation, compute or x.dtype
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.save_for_backward(x, weight, output if activation == "relu" else None)


def _linear_backward(ctx, dz):
    x, weight, y = ctx.saved_tensors
    if ctx.activation == "relu":
        dz = torch.ops.aten.threshold_backward(dz, y, 0)
    elif ctx.activation != "none":
        raise UnsupportedError(f"lane_linear: no gradient through a fused {ctx.activation!r}")
    need_x, need_weight, need_bias = ctx.needs_input_grad[:3]
    dx = lane_matmul(dz, weight, ctx.compute, x.dtype) if need_x else None
    dw = lane_matmul(dz.mT, x, ctx.compute, weight.dtype) if need_weight else None
    return dx, dw, dz.sum(1, dtype=ctx.bias_dtype) if need_bias else None, None, None


_lane_linear.register_autograd(_linear_backward, setup_context=_linear_setup)


def lane_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str = "none",
    compute: torch.dtype | None = None,
) -> Tensor:
    """Compute `y[n] = activation(x[n] @ weight[n].T + bias[n])` for every lane n, as one kernel.

    A gradient through an activation other than "none" and "relu" needs the pre-activation, so with gradients
    enabled such an activation runs as a separate op.

    Args:
        x: `[N, *, I]`; `*` may be empty.
        weight, bias: `[N, O, I]`, and `[N, O]` or None.
        activation: one of `ACTIVATIONS`.
        compute: dtype of the product and of the result, by default x's; the operands are rounded to it inside
            the kernel.
    """
    if activation not in ACTIVATIONS:
        raise ArgumentError(f"lane_linear: unknown activation {activation!r}; choose one of {[*ACTIVATIONS]}")
    given = (x, weight) if bias is None else (x, weight, bias)
    grad = torch.is_grad_enabled() and any(t.requires_grad for t in given)
    fused = activation if activation in ("none", "relu") or not grad else "none"
    x_NMI = x.unsqueeze(1) if x.dim() == 2 else x.flatten(1, -2)
    y_NMO = _lane_linear(x_NMI, weight, bias, fused, compute).reshape(*x.shape[:-1], weight.shape[1])
    return y_NMO if fused == activation else ACTIVATIONS[activation](y_NMO)
