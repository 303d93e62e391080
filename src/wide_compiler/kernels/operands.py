"""Operands of tensor core products: rounding to the product's precision, and packing of weights.

Tensor cores truncate float32 operands to ten mantissa bits, which biases every product towards zero by 0.07%,
and the result of twenty layers by about a percent. Libraries round to nearest first, and so do these kernels:
they are then as accurate as cuDNN, ten times more accurate than without. Operands that pass through registers
are rounded there. In large products, weights are read from shared memory, so they are rounded while they are
packed.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ._triton import interpreting, next_pow2, on_device

PACK_ROWS = 2048  # fewest rows for which a packed copy of the weight pays off


INTERPRETED = tl.constexpr(interpreting())


@triton.jit
def rounded(x, PRECISION: tl.constexpr):
    """Return x rounded to nearest for a product of the given precision; NaN stays NaN.

    "tf32" rounds float32 only; "bf16" and "fp16" convert to that dtype ("bf16" to float32 in the
    interpreter).
    """
    if PRECISION == "bf16":
        if INTERPRETED:  # it has no bfloat16 product and truncates instead of rounding
            x = x.to(tl.float32)
            bits = x.to(tl.int32, bitcast=True)
            bits = (bits + 32767 + (bits >> 16 & 1)) & -65536
            x = tl.where(x == x, bits.to(tl.float32, bitcast=True), x)
        else:
            x = x.to(tl.bfloat16)
    elif PRECISION == "fp16":
        x = x.to(tl.float16)
    elif PRECISION == "tf32" and x.dtype == tl.float32:
        if INTERPRETED:  # it cannot run GPU instructions
            bits = x.to(tl.int32, bitcast=True) + 4096
            x = tl.where(x == x, (bits & -8192).to(tl.float32, bitcast=True), x)
        else:
            x = tl.inline_asm_elementwise(
                "cvt.rna.tf32.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1
            )
    return x


@triton.jit
def dot(a, b, PRECISION: tl.constexpr, acc=None):
    """Compute `acc + a @ b` in float32, with a and b rounded to PRECISION."""
    a, b = rounded(a, PRECISION), rounded(b, PRECISION)
    HALVES: tl.constexpr = PRECISION == "bf16" or PRECISION == "fp16"
    if HALVES:
        c = tl.dot(a, b, acc)
    else:
        c = tl.dot(a, b, acc, input_precision=PRECISION)
    return c


@triton.jit
def _pack_kernel(
    w,
    out,
    w_n,
    w_r,
    w_h,
    w_w,
    w_k,
    R,
    K: tl.constexpr,
    KW: tl.constexpr,
    TAPS: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write one row `[kh, kw, k]` of the copy."""
    row = tl.program_id(0).to(tl.int64)
    source = w + row // R * w_n + row % R * w_r
    for start in range(0, TAPS * K, BLOCK):
        at = start + tl.arange(0, BLOCK)
        tap = at // K
        value = tl.load(
            source + tap // KW * w_h + tap % KW * w_w + at % K * w_k, mask=at < TAPS * K, other=0.0
        )
        tl.store(out + row * (TAPS * K) + at, rounded(value, PRECISION), mask=at < TAPS * K)


def packed(weight: Tensor, axis: int, rows: int, mode: str) -> Tensor:
    """Return a rounded copy of the weight `[N, O, C, kh, kw]` with `axis` innermost in memory.

    `axis` is the summed axis; loads are then 16 bytes instead of 4. Returns the weight unchanged where a copy
    would not pay off.
    """
    in_order = weight.stride(axis) == 1 and (mode != "tf32" or weight.dtype != torch.float32)
    if rows < PACK_ROWS or weight.shape[axis] < 16 or in_order:
        return weight
    moved = weight.movedim(axis, -1)
    out = moved.new_empty(moved.shape)
    N, R, KH, KW, K = moved.shape
    with on_device(weight):
        _pack_kernel[(N * R,)](
            weight, out, *moved.stride(), R,
            K=K, KW=KW, TAPS=KH * KW, PRECISION=mode, BLOCK=min(next_pow2(KH * KW * K), 1024),
        )  # fmt: skip
    return out.movedim(-1, axis)
