"""Gradient of `lane_conv2d` with respect to the weight (dw), as one Triton kernel.

Shapes as in `lane_conv`; dy is the gradient of the output, `[N, B, O, OH, OW]` of any strides.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ._triton import likeliest, next_pow2, on_device, products, span
from .conv_blocks import configs_of
from .operands import rounded
from .tuned import tuned

PROGRAMS = 8 * 132  # enough to keep every multiprocessor of an H200 busy
ROWS = 256  # fewest rows per program


def _prune(configs: list[triton.Config], named: dict, **meta) -> list[triton.Config]:
    """Keep suitable configs; here BM blocks o, BN blocks (c, kh, kw) or c, BK blocks the summed rows."""
    rows, channels = max(next_pow2(meta["O"]), 32), meta["C"]
    # If c is contiguous, a block may span several taps and still be read 16 bytes at a time.
    in_fours = meta["LAST"] and channels % 4 == 0
    kept = []
    for config in configs:
        block, flat = config.kwargs, config.kwargs["FLAT"]
        columns = max(next_pow2(channels * (meta["KH"] * meta["KW"] if flat else 1)), 32)
        order = in_fours or channels < 16 or channels % 32 > 0 if flat else channels >= 16 and not in_fours
        cached = config.num_stages > 1 or (in_fours and named["M_KEY"] * named["N"] >= 2**15)
        if block["BM"] <= rows and block["BN"] <= columns and order and cached:
            kept.append(config)
    every = channels * meta["KH"] * meta["KW"]
    return likeliest(kept, rows, every, named["N"] * max(1, named["M_KEY"] // ROWS)) or configs[-1:]


@tuned(
    configs=configs_of(
        (
            # Two warps for 64 rows: with four, triton uses wgmma, which needs both operands transposed.
            (64, 64, 32, False, 2, 3),
            (64, 32, 32, False, 2, 4),
            (32, 64, 32, False, 4, 4),
            (32, 32, 64, False, 4, 3),
            (64, 64, 32, True, 2, 3),
            (64, 64, 32, True, 2, 1),
            (32, 128, 32, True, 4, 3),
            (32, 128, 32, True, 4, 1),
            (32, 64, 32, True, 4, 4),
            (32, 32, 64, True, 4, 3),
        )
    ),
    key=["N", "M_KEY", "C", "O", "KH", "KW", "SH", "y_o", "x_c", "x_w", "PRECISION", "ATOMIC"],
    prune=_prune,
    reset_to_zero=["dw"],
)
@triton.jit(do_not_specialize=["M_KEY"])
def _dw_kernel(
    dy,
    x,
    dw,
    N,
    M,
    y_n,
    y_b,
    y_o,
    y_h,
    y_w,
    x_n,
    x_b,
    x_c,
    x_h,
    x_w,
    M_KEY,
    C: tl.constexpr,
    O: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    SH: tl.constexpr,
    SW: tl.constexpr,
    PH: tl.constexpr,
    PW: tl.constexpr,
    DH: tl.constexpr,
    DW: tl.constexpr,
    LONG: tl.constexpr,
    LAST: tl.constexpr,
    PRECISION: tl.constexpr,
    ATOMIC: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    FLAT: tl.constexpr,
):
    """Compute one block of o x k of one lane; axis 2 of the grid splits the summed rows.

    FLAT blocks run along k = (c, kh, kw), with LAST k = (kh, kw, c); otherwise a block is one (kh, kw) and
    some c.
    """
    TAPS: tl.constexpr = KH * KW
    TILES_O: tl.constexpr = (O + BM - 1) // BM
    lane = tl.program_id(1).to(tl.int64)
    o = tl.program_id(0) % TILES_O * BM + tl.arange(0, BM)
    tile_k = tl.program_id(0) // TILES_O
    if FLAT:
        k = tile_k * BN + tl.arange(0, BN)
        c = k % C if LAST else k // TAPS
        tap = k // C if LAST else k % TAPS
    else:
        c = tile_k // TAPS * BN + tl.arange(0, BN)
        tap = tile_k % TAPS  # a scalar, so the masks below are one-dimensional
    in_k = c < C
    if FLAT and LAST:
        in_k = tap < TAPS
    in_o = o < O
    down = tap // KW * DH
    right = tap % KW * DW
    y_lane = dy + lane * y_n
    x_lane = x + lane * x_n
    y_at = o * y_o
    x_at = c * x_c + (down * x_h + right * x_w)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    share = tl.cdiv(tl.cdiv(M, BK), tl.num_programs(2)) * BK
    start = tl.program_id(2) * share
    for m0 in range(start, tl.minimum(start + share, M), BK):
        m = m0 + tl.arange(0, BK)
        in_m = m < M
        b = m // (OW * OH)
        oh = m // OW % OH
        ow = m % OW
        h = oh * SH - PH
        v = ow * SW - PW
        if LONG:
            b = b.to(tl.int64)
        y_ptrs = y_lane + (y_at[:, None] + (b * y_b + (oh * y_h + ow * y_w))[None, :])
        y_tile = tl.load(y_ptrs, mask=in_o[:, None] & in_m[None, :], other=0.0)
        if FLAT:
            row = h[:, None] + down[None, :]
            col = v[:, None] + right[None, :]
            ok = in_m[:, None] & (row >= 0) & (row < H) & (col >= 0) & (col < W)
        else:
            row = h + down
            col = v + right
            ok = (in_m & (row >= 0) & (row < H) & (col >= 0) & (col < W))[:, None]
        x_ptrs = x_lane + (x_at[None, :] + (b * x_b + (h * x_h + v * x_w))[:, None])
        x_ok = ok & in_k[None, :]
        if FLAT and LAST and C % 4 > 0:  # controls the read order, as in the forward
            x_tile = tl.trans(tl.load(tl.trans(x_ptrs), mask=tl.trans(x_ok), other=0.0))
        else:
            x_tile = tl.load(x_ptrs, mask=x_ok, other=0.0)
        y_tile, x_tile = rounded(y_tile, PRECISION), rounded(x_tile, PRECISION)
        acc = tl.dot(y_tile, x_tile, acc, input_precision=PRECISION)
    dw_ptrs = dw + lane * O * (C * TAPS) + ((o * (C * TAPS))[:, None] + (c * TAPS + tap)[None, :])
    if ATOMIC:
        tl.atomic_add(dw_ptrs, acc, mask=in_o[:, None] & in_k[None, :], sem="relaxed")
    else:
        tl.store(dw_ptrs, acc, mask=in_o[:, None] & in_k[None, :])


@torch.library.custom_op("wide_compiler::lane_conv2d_dw", mutates_args=())
def lane_conv2d_dw(
    dy: Tensor,
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    """Return the gradient of a weight of spatial size `kernel`: `[N, O, C, kh, kw]`, contiguous."""
    (N, B, O, OH, OW), (C, H, W), (KH, KW) = dy.shape, x.shape[2:], kernel
    M, K = B * OH * OW, C * KH * KW
    if N * M * O * K == 0:
        return x.new_zeros(N, O, C, KH, KW)
    programs = N * triton.cdiv(O, 64) * triton.cdiv(K, 64)
    shares = max(min(triton.cdiv(PROGRAMS, programs), triton.cdiv(M, ROWS)), 1)
    if torch.are_deterministic_algorithms_enabled():
        shares = 1  # the order of atomic sums is not deterministic
    make = torch.zeros if shares > 1 else torch.empty
    dw = make(N, O, C, KH, KW, dtype=torch.float32, device=x.device)

    def grid(meta: dict) -> tuple[int, int, int]:
        columns = triton.cdiv(K, meta["BN"]) if meta["FLAT"] else triton.cdiv(C, meta["BN"]) * KH * KW
        return triton.cdiv(O, meta["BM"]) * columns, N, shares

    with on_device(x):
        _dw_kernel[grid](
            dy, x, dw, N, M, *dy.stride(), *x.stride(), next_pow2(M),
            C=C, O=O, H=H, W=W, OH=OH, OW=OW, KH=KH, KW=KW,
            SH=stride[0], SW=stride[1], PH=padding[0], PW=padding[1], DH=dilation[0], DW=dilation[1],
            LONG=max(span(dy), span(x)) >= 2**31, LAST=x.stride(2) == 1 and C > 1, ATOMIC=shares > 1,
            PRECISION=products(x, "conv"),
        )  # fmt: skip
    return dw.to(x.dtype)


@lane_conv2d_dw.register_fake
def _(dy, x, kernel, stride, padding, dilation):
    return x.new_empty(x.shape[0], dy.shape[2], x.shape[2], *kernel)
