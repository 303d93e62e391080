"""Attention as one Triton kernel, the lanes among its batch: scores and softmax stay on the chip.

float32 runs on tensor cores at float32 accuracy, which none of torch's fused kernels does: that is the gain.
Import this module only after `_triton.available()`: it needs triton.

Shapes: Z lanes times batch, H heads, L queries, S keys, E width of a head.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from ._triton import interpreting, next_pow2, on_device, precision, supports

MAX_WIDTH = 128

# (BL, BS, warps, stages); the autotuner times those that `_prune` leaves.
BLOCKS = (
    (64, 64, 4, 2),
    (64, 32, 4, 2),
    (64, 128, 4, 2),
    (128, 64, 8, 2),
    (128, 32, 8, 3),
    (32, 64, 4, 2),
    (16, 64, 2, 2),
)
CONFIGS = [
    triton.Config({"BL": bl, "BS": bs}, num_warps=warps, num_stages=stages) for bl, bs, warps, stages in BLOCKS
]
if interpreting():
    CONFIGS = [triton.Config({"BL": 16, "BS": 16})]  # one: there is no GPU to time them on


@triton.autotune(configs=CONFIGS, key=["Z_KEY", "L_KEY", "S_KEY", "BE", "CAUSAL", "QK"])
@triton.heuristics(
    {
        "EVEN_L": lambda args: args["L"] % args["BL"] == 0,
        "EVEN_S": lambda args: args["S"] % args["BS"] == 0,
        "EVEN_E": lambda args: args["E"] == args["BE"],
    }
)
@triton.jit(do_not_specialize=["Z_KEY", "L_KEY", "S_KEY"])
def _attention_kernel(
    q, k, v, out,
    q_z, q_h, q_l, q_e,
    k_z, k_h, k_s, k_e,
    v_z, v_h, v_s, v_e,
    H, L, S, E, scale,
    Z_KEY, L_KEY, S_KEY,
    CAUSAL: tl.constexpr, QK: tl.constexpr, PV: tl.constexpr, UPCAST: tl.constexpr,
    EVEN_L: tl.constexpr, EVEN_S: tl.constexpr, EVEN_E: tl.constexpr,
    BE: tl.constexpr, BL: tl.constexpr, BS: tl.constexpr,
):  # fmt: skip
    """BL rows of one head; `scale` is for powers of two. out is contiguous `[Z, L, H, E]`."""
    tiles = tl.cdiv(L, BL)
    zh = tl.program_id(0) // tiles
    z = (zh // H).to(tl.int64)
    h = (zh % H).to(tl.int64)
    l0 = tl.program_id(0) % tiles * BL
    l = tl.arange(0, BL)
    s = tl.arange(0, BS)
    e = tl.arange(0, BE)
    # int64 only up to the block's corner; inside a block int32 offsets are enough.
    q_ptrs = q + z * q_z + h * q_h + l0.to(tl.int64) * q_l + (l[:, None] * q_l + e[None, :] * q_e)
    k_ptrs = k + z * k_z + h * k_h + (s[:, None] * k_s + e[None, :] * k_e)
    v_ptrs = v + z * v_z + h * v_h + (s[:, None] * v_s + e[None, :] * v_e)
    in_l = tl.full((BL, BE), True, tl.int1)
    in_s = tl.full((BS, BE), True, tl.int1)
    if not EVEN_L:
        in_l = in_l & (l[:, None] < L - l0)
    if not EVEN_E:
        in_l = in_l & (e[None, :] < E)
        in_s = in_s & (e[None, :] < E)
    q_tile = tl.load(q_ptrs, mask=in_l, other=0.0)
    if UPCAST:
        q_tile = q_tile.to(tl.float32)
    if q_tile.dtype == tl.float32:
        q_tile = q_tile * scale

    top = tl.full((BL,), float("-inf"), tl.float32)
    total = tl.zeros((BL,), tl.float32)
    acc = tl.zeros((BL, BE), tl.float32)
    last = S
    if CAUSAL:
        last = min(S, l0 + BL)
    for s0 in range(0, last, BS):
        mask = in_s
        if not EVEN_S:
            mask = mask & (s[:, None] < S - s0)
        k_tile = tl.load(k_ptrs, mask=mask, other=0.0)
        v_tile = tl.load(v_ptrs, mask=mask, other=0.0)
        if UPCAST:
            k_tile = k_tile.to(tl.float32)
            v_tile = v_tile.to(tl.float32)
        x = tl.dot(q_tile, tl.trans(k_tile), input_precision=QK)
        if q_tile.dtype != tl.float32:
            x = x * scale
        if CAUSAL:
            x = tl.where((s0 - l0) + s[None, :] <= l[:, None], x, float("-inf"))
        if not EVEN_S:
            x = tl.where(s[None, :] < S - s0, x, float("-inf"))
        # The first block has key 0, which every row sees: from there on top is finite.
        new_top = tl.maximum(top, tl.max(x, 1))
        p = tl.exp2(x - new_top[:, None])
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.sum(p, 1)
        acc = tl.dot(p.to(v_tile.dtype), v_tile, acc * shrink[:, None], input_precision=PV)
        top = new_top
        k_ptrs += BS * k_s
        v_ptrs += BS * v_s

    acc = acc / total[:, None]
    o_ptrs = out + z * L * (H * E) + h * E + l0.to(tl.int64) * (H * E) + (l[:, None] * (H * E) + e[None, :])
    tl.store(o_ptrs, acc.to(out.dtype.element_ty), mask=in_l)
