"""What tensor cores multiply: numbers rounded to the precision of the product, weights in reading order.

Tensor cores take float32 numbers with ten bits after the point and cut the others off. That pulls every
product towards zero by 0.07%, and what comes out of twenty layers by a percent. Libraries round to nearest
first, and so do the kernels here: with it they are as exact as cuDNN, ten times as exact as without. What
goes to tensor cores through registers is rounded there. A block of weights, in large products, is fetched
from shared memory, so they are rounded while they are packed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ._triton import interpreting, next_pow2, on_device

PACK_ROWS = 2048  # so many rows read the weight that a copy in the order they read it in pays


INTERPRETED = tl.constexpr(interpreting())


@triton.jit
def rounded(x, PRECISION: tl.constexpr):
    """x as a product of that precision takes it: rounded to nearest, a NaN stays a NaN.

    "tf32" rounds float32 only; "bf16" and "fp16" give that dtype, in the interpreter as float32.
    """
    if PRECISION == "bf16":
        if INTERPRETED:  # it has no product of these, and cuts bits off instead of rounding
            x = x.to(tl.float32)
            bits = x.to(tl.int32, bitcast=True)
            bits = (bits + 32767 + (bits >> 16 & 1)) & -65536
            x = tl.where(x == x, bits.to(tl.float32, bitcast=True), x)
        else:
            x = x.to(tl.bfloat16)
    elif PRECISION == "fp16":
        x = x.to(tl.float16)
    elif PRECISION == "tf32" and x.dtype == tl.float32:
        if INTERPRETED:  # it knows no instructions of a GPU
            bits = x.to(tl.int32, bitcast=True) + 4096
            x = tl.where(x == x, (bits & -8192).to(tl.float32, bitcast=True), x)
        else:
            x = tl.inline_asm_elementwise(
                "cvt.rna.tf32.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1
            )
    return x


@triton.jit
def dot(a, b, PRECISION: tl.constexpr, acc=None):
    """`acc + a @ b` in float32, of tiles rounded to PRECISION."""
    a, b = rounded(a, PRECISION), rounded(b, PRECISION)
    HALVES: tl.constexpr = PRECISION == "bf16" or PRECISION == "fp16"
    if HALVES:
        c = tl.dot(a, b, acc)
    else:
        c = tl.dot(a, b, acc, input_precision=PRECISION)
    return c


@triton.jit
def _pack_kernel(
    w, out, w_n, w_r, w_h, w_w, w_k,
    R, K: tl.constexpr, KW: tl.constexpr, TAPS: tl.constexpr, PRECISION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row `[kh, kw, k]` of the copy."""
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
    """A rounded copy of the weight `[N, O, C, kh, kw]` with `axis`, the one summed over, innermost in memory:
    loads of 16 bytes, not 4. The weight itself, unrounded, where it is read too seldom for that.
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
