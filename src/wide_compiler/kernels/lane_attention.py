"""Attention as one Triton kernel, with lanes folded into the batch; scores and softmax stay on chip.

float32 runs on tensor cores at float32 accuracy, which none of torch's fused kernels does. Import this module
only if `_triton.available()`: it needs triton.

Shapes: Z lanes times batch, H heads, L queries, S keys, E width of a head.
"""

import math

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from ._triton import interpreting, next_pow2, on_device, products, supports
from .operands import rounded
from .tuned import tuned

MAX_WIDTH = 128

# (BL, BS, warps): BL queries per program, BS keys at a time; the autotuner times those kept by `_prune`. BS
# stays below 64: with heads of width 32, triton 3.6 writes beyond its shared memory on Hopper.
BLOCKS = ((128, 32, 8), (64, 32, 4), (32, 32, 2), (16, 32, 1))
CONFIGS = [triton.Config({"BL": bl, "BS": bs}, num_warps=warps, num_stages=2) for bl, bs, warps in BLOCKS]
if interpreting():
    CONFIGS = [triton.Config({"BL": 16, "BS": 16})]  # one config: there is no GPU to time them on


def _prune(configs: list[triton.Config], named: dict, **_) -> list[triton.Config]:
    """Drop blocks that are mostly padding, and small blocks for many rows."""
    rows = max(named["L_KEY"], 16)
    return [c for c in configs if min(rows, 64) <= c.kwargs["BL"] <= rows]


@tuned(
    configs=CONFIGS,
    key=["Z_KEY", "L_KEY", "S_KEY", "BE", "CAUSAL", "QK"],
    prune=_prune,
)
@triton.heuristics(
    {
        "EVEN_L": lambda args: args["L"] % args["BL"] == 0,
        "EVEN_S": lambda args: args["S"] % args["BS"] == 0,
        "EVEN_E": lambda args: args["E"] == args["BE"],
    }
)
@triton.jit(do_not_specialize=["Z_KEY", "L_KEY", "S_KEY"])
def _attention_kernel(
    q,
    k,
    v,
    out,
    q_z,
    q_h,
    q_l,
    q_e,
    k_z,
    k_h,
    k_s,
    k_e,
    v_z,
    v_h,
    v_s,
    v_e,
    H,
    L,
    S,
    E,
    scale,
    Z_KEY,
    L_KEY,
    S_KEY,
    CAUSAL: tl.constexpr,
    QK: tl.constexpr,
    PV: tl.constexpr,
    UPCAST: tl.constexpr,
    EVEN_L: tl.constexpr,
    EVEN_S: tl.constexpr,
    EVEN_E: tl.constexpr,
    BE: tl.constexpr,
    BL: tl.constexpr,
    BS: tl.constexpr,
):
    """Compute BL rows of one head into out, contiguous `[Z, L, H, E]`; `scale` includes log2(e) for exp2."""
    tiles = tl.cdiv(L, BL)
    zh = tl.program_id(0) // tiles
    z = (zh // H).to(tl.int64)
    h = (zh % H).to(tl.int64)
    l0 = tl.program_id(0) % tiles * BL
    l = tl.arange(0, BL)
    s = tl.arange(0, BS)
    e = tl.arange(0, BE)
    # int64 only up to the block's corner; int32 offsets suffice inside a block.
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
        q_tile = rounded(q_tile * scale, QK)

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
        x = tl.dot(q_tile, tl.trans(rounded(k_tile, QK)), input_precision=QK)
        if q_tile.dtype != tl.float32:
            x = x * scale
        if CAUSAL:
            x = tl.where((s0 - l0) + s[None, :] <= l[:, None], x, float("-inf"))
        if not EVEN_S:
            x = tl.where(s[None, :] < S - s0, x, float("-inf"))
        # Every row attends to key 0, which is in the first block, so `top` is finite from here on.
        new_top = tl.maximum(top, tl.max(x, 1))
        p = tl.exp2(x - new_top[:, None])
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.sum(p, 1)
        p, v_tile = rounded(p.to(v_tile.dtype), PV), rounded(v_tile, PV)
        acc = tl.dot(p, v_tile, acc * shrink[:, None], input_precision=PV)
        top = new_top
        k_ptrs += BS * k_s
        v_ptrs += BS * v_s

    acc = acc / total[:, None]
    o_ptrs = out + z * L * (H * E) + h * E + l0.to(tl.int64) * (H * E) + (l[:, None] * (H * E) + e[None, :])
    tl.store(o_ptrs, acc.to(out.dtype.element_ty), mask=in_l)


@torch.library.custom_op("wide_compiler::lane_attention", mutates_args=())
def _lane_attention(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scale: float) -> Tensor:
    out = _empty_output(q)
    (Z, H, L, E), S = q.shape, k.shape[2]
    if out.numel() == 0:
        return out
    mode = products(q, "matmul")
    parts = mode
    if q.dtype == torch.float32 and not interpreting():
        # Tensor cores cannot read the layout of v in tf32, but can in bfloat16 parts; see `matmul._mode`.
        parts = {"tf32x3": "bf16x6", "tf32": "bf16x3"}[mode]
    with on_device(q):
        _attention_kernel[lambda meta: (Z * H * triton.cdiv(L, meta["BL"]),)](
            q, k, v, out, *q.stride(), *k.stride(), *v.stride(),
            H, L, S, E, scale * math.log2(math.e),
            next_pow2(Z * H), next_pow2(L), next_pow2(S),
            CAUSAL=is_causal, QK=mode, PV=parts, BE=max(16, next_pow2(E)),
            UPCAST=interpreting() and q.dtype == torch.bfloat16,  # the interpreter has no bfloat16 product
        )  # fmt: skip
    return out


def _empty_output(q: Tensor) -> Tensor:
    """Return an empty `[Z, H, L, E]`, laid out as `[Z, L, H, E]` because the next layer joins the heads."""
    Z, H, L, E = q.shape
    return q.new_empty(Z, L, H, E).transpose(1, 2)


@_lane_attention.register_fake
def _(q, k, v, is_causal, scale):
    return _empty_output(q)


def _setup(ctx, inputs, output):
    *tensors, ctx.is_causal, ctx.scale = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx, dout):
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        inputs = [t.view_as(t) for t in ctx.saved_tensors]
        # torch's fused kernels have no double backward
        attend = _plain if again else F.scaled_dot_product_attention
        out = attend(*inputs, is_causal=ctx.is_causal, scale=ctx.scale)
        wanted = [t for t in inputs if t.requires_grad]
        grads = iter(torch.autograd.grad(out, wanted, dout, create_graph=again))
    return *(next(grads) if t.requires_grad else None for t in inputs), None, None


def _plain(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scale: float) -> Tensor:
    scores = q @ k.mT * scale
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~seen, -math.inf)
    return scores.softmax(-1) @ v


_lane_attention.register_autograd(_backward, setup_context=_setup)


def fits(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0) -> bool:
    """Return whether `lane_attention` supports these: no mask, no dropout, `[Z, H, L, E]` of one width."""
    return (
        attn_mask is None
        and dropout_p == 0.0
        and q.dim() == k.dim() == v.dim() == 4
        and q.shape[:2] == k.shape[:2]
        and k.shape == v.shape
        and q.shape[3] == k.shape[3] <= MAX_WIDTH
        and k.shape[2] > 0
        and supports(q, k, v)
    )


def lane_attention(
    q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False, scale: float | None = None
) -> Tensor:
    """Run `F.scaled_dot_product_attention` on `[Z, H, L, E]`, any strides, as one kernel; check `fits` first.

    The kernel has no backward. If a gradient is needed, torch's op runs instead, because its backward would
    otherwise have to recompute the forward. Without a gradient the result's `.transpose(1, 2)` is contiguous.
    """
    if torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v)):
        return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=scale)
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    return _lane_attention(q, k, v, is_causal, scale)
