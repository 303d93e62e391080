"""Matrix products of N lanes as one Triton kernel, with bias and activation fused.

float32 runs on tensor cores at float32 accuracy ("tf32x3"), which cuBLAS does not offer. A 16-bit product may
read float32 operands and round them while loading, so autocast needs no 16-bit copies of the weights. Import
this module only if `_triton.available()`: it needs triton.

Shapes: N lanes, M rows, K the summed axis, O out-features.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ._triton import HALVES, interpreting, next_pow2, on_device, products
from .activations import activate
from .operands import dot
from .tuned import tuned

# (BM, BN, BK, warps, stages); the autotuner times those kept by `_prune`.
BLOCKS = (
    (128, 128, 32, 8, 3),
    (128, 64, 32, 4, 3),
    (64, 64, 32, 4, 4),
    (128, 128, 32, 4, 3),
    (64, 128, 32, 4, 3),
    (128, 256, 32, 8, 3),
    (64, 64, 64, 4, 3),
    (32, 64, 64, 4, 3),
    (32, 128, 32, 4, 3),
    (16, 64, 64, 4, 3),
    (128, 128, 64, 8, 3),
    (128, 256, 64, 8, 3),  # 16-bit only: half the bytes per element
)
CONFIGS = [
    triton.Config({"BM": bm, "BN": bn, "BK": bk}, num_warps=warps, num_stages=stages)
    for bm, bn, bk, warps, stages in BLOCKS
]
SMALLEST = [c for c in CONFIGS if c.kwargs["BM"] == 16]
if interpreting():
    CONFIGS = [triton.Config({"BM": 32, "BN": 32, "BK": 16})]  # one config: there is no GPU to time them on


def _prune(configs: list[triton.Config], named: dict, PRECISION: str, **_) -> list[triton.Config]:
    """Drop blocks larger than the product, small blocks of a large one, and those that spill registers."""
    rows, cols = max(named["M_KEY"], 16), max(named["O_KEY"], 64)
    half = named["a"].element_size() == 2

    def keep(config: triton.Config) -> bool:
        bm, bn, bk = (config.kwargs[name] for name in ("BM", "BN", "BK"))
        if PRECISION in ("tf32x3", "bf16x6", "bf16x3") and bm * bn > 64 * 32 * config.num_warps:
            return False  # split products spill with more than 64 accumulators per thread
        if bm * bn > 128 * 128 and bk > 32 and not half:
            return False
        return bm <= rows and bn <= cols and bm * 8 >= min(rows, 512)

    return [c for c in configs if keep(c)] or SMALLEST


def _mode(a: Tensor, b: Tensor, compute: torch.dtype) -> str:
    """Return the PRECISION of products in `compute`.

    In tf32, tensor cores read the right operand only with contiguous columns, and transposing a tile costs
    several times the product. A bfloat16 tile needs no transpose: six products of three parts are as accurate
    as tf32x3, three products of two parts are more accurate than tf32, at 3 and 1.5 times the cost.
    """
    if compute in HALVES:
        return HALVES[compute]
    mode = products(a, "matmul")
    if b.stride(1) == 1 or interpreting():  # the interpreter has no bfloat16
        return mode
    return {"tf32x3": "bf16x6", "tf32": "bf16x3"}[mode]


@tuned(
    configs=CONFIGS,
    key=["N_KEY", "M_KEY", "O_KEY", "K_KEY", "PRECISION", "A_ROWS", "B_ROWS"],
    prune=_prune,
)
@triton.heuristics({"EVEN_K": lambda args: args["K"] % args["BK"] == 0})
@triton.jit(do_not_specialize=["N_KEY", "M_KEY", "O_KEY", "K_KEY"])
def _matmul_kernel(
    a,
    b,
    bias,
    c,
    M,
    O,
    K,
    a_n,
    a_m,
    a_k,
    b_n,
    b_k,
    b_o,
    bias_n,
    bias_o,
    c_n,
    N_KEY,
    M_KEY,
    O_KEY,
    K_KEY,
    A_ROWS: tl.constexpr,
    B_ROWS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ACT: tl.constexpr,
    PRECISION: tl.constexpr,
    EVEN_K: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """Compute one block of c[n] = act(a[n] @ b[n] + bias[n]); c is contiguous [N, M, O]."""
    tiles_m = tl.cdiv(M, BM)
    tiles_o = tl.cdiv(O, BN)
    pid = tl.program_id(0)
    n = (pid // (tiles_m * tiles_o)).to(tl.int64)
    pid = pid % (tiles_m * tiles_o)
    # Groups of 8 row blocks step through the columns together, so that their blocks of a and b stay in L2.
    first = pid // (8 * tiles_o) * 8
    rows = min(tiles_m - first, 8)
    pid = pid % (8 * tiles_o)
    m0 = ((first + pid % rows) * BM).to(tl.int64)
    o0 = ((pid // rows) * BN).to(tl.int64)

    m = tl.arange(0, BM)
    o = tl.arange(0, BN)
    k = tl.arange(0, BK)
    in_m = m < M - m0
    in_o = o < O - o0
    # int64 only up to the block's corner; int32 offsets suffice inside a block.
    a_ptrs = a + n * a_n + m0 * a_m + (m[:, None] * a_m + k[None, :] * a_k)
    b_ptrs = b + n * b_n + o0 * b_o + (k[:, None] * b_k + o[None, :] * b_o)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k0 in range(0, K, BK):
        if EVEN_K:
            a_tile = tl.load(a_ptrs, mask=in_m[:, None], other=0.0)
            b_tile = tl.load(b_ptrs, mask=in_o[None, :], other=0.0)
        else:
            a_tile = tl.load(a_ptrs, mask=in_m[:, None] & (k[None, :] < K - k0), other=0.0)
            b_tile = tl.load(b_ptrs, mask=(k[:, None] < K - k0) & in_o[None, :], other=0.0)
        acc = dot(a_tile, b_tile, PRECISION, acc)
        a_ptrs += BK * a_k
        b_ptrs += BK * b_k

    if HAS_BIAS:
        acc += tl.load(bias + n * bias_n + (o0 + o) * bias_o, mask=in_o, other=0.0).to(tl.float32)[None, :]
    acc = activate(acc, ACT)
    c_ptrs = c + n * c_n + m0 * O + o0 + (m[:, None] * O + o[None, :])
    tl.store(c_ptrs, acc.to(c.dtype.element_ty), mask=in_m[:, None] & in_o[None, :])


def matmul(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    activation: str = "none",
    compute: torch.dtype | None = None,
    out: torch.dtype | None = None,
) -> Tensor:
    """Compute `act(a[n] @ b[n] + bias[n])` for every lane n, without autograd: `[N, M, O]`, contiguous.

    Args:
        a, b: `[N, M, K]` and `[N, K, O]`, any strides.
        bias: `[N, O]` or None.
        activation: one of `ACTIVATIONS`.
        compute: dtype that a and b are rounded to, by default a's; the accumulator is float32.
        out: dtype of the result, by default `compute`.
    """
    (N, M, K), O = a.shape, b.shape[2]
    compute = compute or a.dtype
    c = a.new_empty(N, M, O, dtype=out or compute)
    if c.numel() == 0:
        return c
    strides = (*a.stride(), *b.stride(), *((0, 0) if bias is None else bias.stride()), c.stride(0))
    # Powers of two: batches of similar size share the tuned block size.
    keys = [next_pow2(size) for size in (N, M, O, K)]
    with on_device(a):
        _matmul_kernel[lambda meta: (N * triton.cdiv(M, meta["BM"]) * triton.cdiv(O, meta["BN"]),)](
            a, b, a if bias is None else bias, c, M, O, K, *strides, *keys,
            A_ROWS=a.stride(2) == 1, B_ROWS=b.stride(2) == 1,
            HAS_BIAS=bias is not None, ACT=activation,
            PRECISION=_mode(a, b, compute),
        )  # fmt: skip
    return c


@torch.library.custom_op("wide_compiler::lane_matmul", mutates_args=())
def lane_matmul(
    a: Tensor, b: Tensor, compute: torch.dtype | None = None, out: torch.dtype | None = None
) -> Tensor:
    """Compute `a[n] @ b[n]` for every lane n: `[N, M, K]` x `[N, K, O]` -> `[N, M, O]`, any strides.

    `compute` and `out` as in `matmul`.
    """
    return matmul(a, b, compute=compute, out=out)


@lane_matmul.register_fake
def _(a, b, compute=None, out=None):
    return a.new_empty(a.shape[0], a.shape[1], b.shape[2], dtype=out or compute or a.dtype)


def _matmul_setup(ctx, inputs, output):
    a, b, compute, _ = inputs
    ctx.compute = compute or a.dtype
    ctx.save_for_backward(a, b)


def _matmul_backward(ctx, dc):
    a, b = ctx.saved_tensors
    need_a, need_b = ctx.needs_input_grad[:2]
    da = lane_matmul(dc, b.mT, ctx.compute, a.dtype) if need_a else None
    return da, lane_matmul(a.mT, dc, ctx.compute, b.dtype) if need_b else None, None, None


lane_matmul.register_autograd(_matmul_backward, setup_context=_matmul_setup)
