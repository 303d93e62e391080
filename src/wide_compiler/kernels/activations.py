"""Activations supported by the kernels: as torch functions, and on a tile of a Triton kernel."""

import triton
import triton.language as tl

from ._triton import ACTIVATIONS as ACTIVATIONS


@triton.jit
def tanh(x):
    """Compute tanh of a tile.

    Written out because the interpreter lacks libdevice. The series keeps small x accurate to rounding.
    """
    e = tl.exp(-2.0 * tl.abs(x))
    far = (1.0 - e) / (1.0 + e)
    s = x * x
    near = x * (1.0 + s * (-0.3333333333 + s * (0.1333333333 - s * 0.0539682540)))
    return tl.where(tl.abs(x) < 0.2, near, tl.where(x < 0.0, -far, far))


@triton.jit
def activate(x, ACT: tl.constexpr):
    """Apply an activation to a float32 tile."""
    if ACT == "relu":
        x = tl.where(x < 0.0, 0.0, x)  # not maximum: NaN must stay NaN, as in torch
    elif ACT == "gelu":
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))  # 1 / sqrt(2)
    elif ACT == "gelu_tanh":
        x = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))  # 2 * sqrt(2 / pi)
    elif ACT == "tanh":
        x = tanh(x)
    elif ACT == "sigmoid":
        x = tl.sigmoid(x)
    elif ACT == "silu":
        x = x * tl.sigmoid(x)
    else:
        tl.static_assert(ACT == "none", "unknown activation")
    return x
