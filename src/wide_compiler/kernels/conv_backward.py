"""The gradients of `lane_conv2d`: of its input (dx) and of its weight (dw), one Triton kernel each.

Shapes as in `conv`; dy is the gradient of the output, `[N, B, O, OH, OW]` of any strides.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ._triton import briefly, interpreting, likeliest, next_pow2, on_device, products
from .operands import packed, rounded

PROGRAMS = 8 * 132  # enough of them to keep every multiprocessor of an H200 busy
ROWS = 256  # the fewest rows worth a program of their own


def _configs(blocks: Sequence[tuple]) -> list[triton.Config]:
    """Of (BM, BN, BK, FLAT, warps, stages)."""
    if interpreting():
        blocks = ((64, 32, 32, True, 4, 1),)  # one: there is no GPU to time them on
    return [
        triton.Config({"BM": bm, "BN": bn, "BK": bk, "FLAT": flat}, num_warps=warps, num_stages=stages)
        for bm, bn, bk, flat, warps, stages in blocks
    ]


def _prune_dx(configs: list[triton.Config], named: dict, **meta) -> list[triton.Config]:
    rows, columns, channels = max(named["M_KEY"], 32), max(next_pow2(meta["C"]), 16), meta["O"]
    kept = []
    for config in configs:
        block = config.kwargs
        fits_in = (
            block["BM"] <= rows and block["BN"] <= max(columns, 32) and block["BM"] * 8 >= min(rows, 512)
        )
        order = channels < 16 or channels % 32 > 0 if block["FLAT"] else channels >= 16
        cached = config.num_stages > 1 or (meta["KH"] * meta["KW"] > 1 and rows * named["N"] >= 2**15)
        innermost = config.num_warps > 2 or named["w_o"] != 1
        if fits_in and order and cached and innermost:
            kept.append(config)
    return likeliest(kept, rows, columns, named["N"]) or configs[-1:]


def _prune_dw(configs: list[triton.Config], named: dict, **meta) -> list[triton.Config]:
    """Here BM is the block of o, BN that of (c, kh, kw) or of c, BK that of the rows summed over."""
    rows, channels = max(next_pow2(meta["O"]), 32), meta["C"]
    # Where c is contiguous a block may span several taps and still be read 16 bytes at a time.
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


@triton.autotune(
    configs=_configs(
        (
            (128, 64, 32, False, 4, 3),
            (128, 128, 32, False, 8, 3),
            (128, 64, 32, False, 4, 1),
            (256, 64, 32, False, 8, 1),
            (128, 32, 32, False, 4, 1),
            (128, 16, 32, False, 4, 1),
            (128, 32, 32, False, 4, 3),
            (128, 16, 32, False, 4, 3),
            (64, 64, 32, False, 4, 4),
            (64, 64, 32, False, 2, 3),  # without wgmma, which wants the weight with o innermost
            (64, 32, 64, False, 4, 3),
            (32, 32, 64, False, 4, 4),
            (32, 16, 128, False, 4, 4),
            (128, 64, 32, True, 4, 3),
            (64, 64, 32, True, 4, 3),
            (32, 32, 64, True, 4, 3),
        )
    ),
    key=["N", "M_KEY", "C", "O", "KH", "KW", "SH", "y_o", "w_o", "PRECISION", "W_ROUNDED"],
    prune_configs_by={"early_config_prune": _prune_dx},
    do_bench=briefly,
)
@triton.jit(do_not_specialize=["M_KEY"])
def _dx_kernel(
    dy, w, dx,
    N, B,
    y_n, y_b, y_o, y_h, y_w,
    w_n, w_o, w_c, w_h, w_w,
    M_KEY,
    C: tl.constexpr, O: tl.constexpr, H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    LONG: tl.constexpr, PRECISION: tl.constexpr, W_ROUNDED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, FLAT: tl.constexpr,
):  # fmt: skip
    """One block of input pixels x channels of one lane; the sum runs over (o, kh, kw).

    A pixel h meets kh only where h + PH - kh * DH is a multiple of the stride. So a program takes pixels
    of one remainder (its phase), and of the kernel only the taps that meet them: none is computed in vain.
    Where the stride is not 1, the dilation must be.
    """
    TILES_C: tl.constexpr = (C + BN - 1) // BN
    lane = tl.program_id(1).to(tl.int64)
    if SH * SW == 1:
        phase_h = 0
        phase_w = 0
    else:
        phase_h = tl.program_id(2) // SW
        phase_w = tl.program_id(2) % SW
    # At least 1: a phase past the end of a small image has no pixels.
    rows_h = tl.cdiv(H - phase_h, SH)
    rows_w = tl.cdiv(W - phase_w, SW)
    along_h = tl.maximum(rows_h, 1)
    along_w = tl.maximum(rows_w, 1)
    first_h = (phase_h + PH) % SH  # the first kh of this phase; every SH-th follows
    first_w = (phase_w + PW) % SW
    taps_w = tl.cdiv(KW - first_w, SW)
    taps = tl.cdiv(KH - first_h, SH) * taps_w

    m = tl.program_id(0) // TILES_C * BM + tl.arange(0, BM)
    c = tl.program_id(0) % TILES_C * BN + tl.arange(0, BN)
    in_m = m < B * rows_h * rows_w
    in_c = c < C
    b = m // (along_h * along_w)
    h = m // along_w % along_h * SH + phase_h
    v = m % along_w * SW + phase_w
    if LONG:
        b = b.to(tl.int64)
    # h + PH and kh have the same remainder, so their quotients' difference is the quotient: oh.
    oh = (h + PH) // SH
    ow = (v + PW) // SW
    y_m = b * y_b + (oh * y_h + ow * y_w)
    y_lane = dy + lane * y_n
    w_lane = w + lane * w_n
    w_base = c * w_c
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    if FLAT:
        for k0 in range(0, O * taps, BK):
            k = k0 + tl.arange(0, BK)
            in_k = k < O * taps
            o = k // taps
            kh = first_h + k % taps // taps_w * SH
            kw = first_w + k % taps_w * SW
            back_h = kh * DH // SH
            back_w = kw * DW // SW
            row = oh[:, None] - back_h[None, :]
            col = ow[:, None] - back_w[None, :]
            ok = in_m[:, None] & in_k[None, :] & (row >= 0) & (row < OH) & (col >= 0) & (col < OW)
            a_at = y_m[:, None] + (o * y_o - back_h * y_h - back_w * y_w)[None, :]
            a = tl.load(y_lane + a_at, mask=ok, other=0.0)
            b_at = w_base[None, :] + (o * w_o + kh * w_h + kw * w_w)[:, None]
            w_tile = tl.load(w_lane + b_at, mask=in_k[:, None] & in_c[None, :], other=0.0)
            if not W_ROUNDED:
                w_tile = rounded(w_tile, PRECISION)
            acc = tl.dot(rounded(a, PRECISION), w_tile, acc, input_precision=PRECISION)
    else:
        for step in range((O + BK - 1) // BK * taps):
            o = step // taps * BK + tl.arange(0, BK)
            kh = first_h + step % taps // taps_w * SH
            kw = first_w + step % taps_w * SW
            back_h = kh * DH // SH
            back_w = kw * DW // SW
            row = oh - back_h
            col = ow - back_w
            a_ok = (in_m & (row >= 0) & (row < OH) & (col >= 0) & (col < OW))[:, None]
            b_ok = in_c[None, :]
            if O % BK > 0:
                a_ok = a_ok & (o < O)[None, :]
                b_ok = b_ok & (o < O)[:, None]
            a_at = (y_m - (back_h * y_h + back_w * y_w))[:, None] + (o * y_o)[None, :]
            a = tl.load(y_lane + a_at, mask=a_ok, other=0.0)
            b_at = (w_base + (kh * w_h + kw * w_w))[None, :] + (o * w_o)[:, None]
            w_tile = tl.load(w_lane + b_at, mask=b_ok, other=0.0)
            if not W_ROUNDED:
                w_tile = rounded(w_tile, PRECISION)
            acc = tl.dot(rounded(a, PRECISION), w_tile, acc, input_precision=PRECISION)
    pixel = (b * H + h) * W + v
    dx_ptrs = dx + lane * C + ((pixel * (N * C))[:, None] + c[None, :])
    tl.store(dx_ptrs, acc.to(dx.dtype.element_ty), mask=in_m[:, None] & in_c[None, :])


@triton.autotune(
    configs=_configs(
        (
            # wgmma, which four warps take for 64 rows, would want both operands transposed.
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
    prune_configs_by={"early_config_prune": _prune_dw},
    do_bench=briefly,
    reset_to_zero=["dw"],
)
@triton.jit(do_not_specialize=["M_KEY"])
def _dw_kernel(
    dy, x, dw,
    N, M,
    y_n, y_b, y_o, y_h, y_w,
    x_n, x_b, x_c, x_h, x_w,
    M_KEY,
    C: tl.constexpr, O: tl.constexpr, H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    LONG: tl.constexpr, LAST: tl.constexpr, PRECISION: tl.constexpr, ATOMIC: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, FLAT: tl.constexpr,
):  # fmt: skip
    """One block of o x k of one lane; axis 2 of the grid shares out the rows summed over.

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
        tap = tile_k % TAPS  # a scalar: the masks below then are one-dimensional
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
        if FLAT and LAST and C % 4 > 0:  # as in the forward, for the order of reading
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


def span(t: Tensor) -> int:
    """One more than the largest offset into t: what an index type must hold."""
    return 1 + sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True) if size)


def _empty_input(dy: Tensor, weight: Tensor, size: Sequence[int]) -> Tensor:
    """`[N, B, C, H, W]`, unfilled, in memory `[B, H, W, N, C]`."""
    return dy.new_empty(dy.shape[1], *size, dy.shape[0], weight.shape[2]).permute(3, 0, 4, 1, 2)


@torch.library.custom_op("wide_compiler::lane_conv2d_dx", mutates_args=())
def lane_conv2d_dx(
    dy: Tensor,
    weight: Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    """The gradient of an input of spatial `size`: `[N, B, C, H, W]`, in memory `[B, H, W, N, C]`."""
    dx = _empty_input(dy, weight, size)
    if dx.numel() == 0 or dy.numel() == 0:
        return dx.zero_()
    if any(s > 1 and d > 1 for s, d in zip(stride, dilation, strict=True)):
        # Rare: spread dy out with zeros between, and the stride is 1.
        spread = [(length - 1) * s + 1 for length, s in zip(dy.shape[3:], stride, strict=True)]
        wider = dy.new_zeros(*dy.shape[:3], *spread)
        wider[..., :: stride[0], :: stride[1]] = dy
        dy, stride = wider, (1, 1)
    (N, B, O, OH, OW), C, (H, W) = dy.shape, weight.shape[2], size
    phases = stride[0] * stride[1]
    M = B * triton.cdiv(H, stride[0]) * triton.cdiv(W, stride[1])
    mode = products(dy, "conv")
    given, weight = weight, packed(weight, 1, M, mode)
    with on_device(dy):
        _dx_kernel[lambda meta: (triton.cdiv(M, meta["BM"]) * triton.cdiv(C, meta["BN"]), N, phases)](
            dy, weight, dx, N, B, *dy.stride(), *weight.stride(), next_pow2(M),
            C=C, O=O, H=H, W=W, OH=OH, OW=OW, KH=weight.shape[3], KW=weight.shape[4],
            SH=stride[0], SW=stride[1], PH=padding[0], PW=padding[1], DH=dilation[0], DW=dilation[1],
            LONG=max(span(dy), span(dx)) >= 2**31,
            PRECISION=mode, W_ROUNDED=weight is not given,
        )  # fmt: skip
    return dx


@lane_conv2d_dx.register_fake
def _(dy, weight, size, stride, padding, dilation):
    return _empty_input(dy, weight, size)


@torch.library.custom_op("wide_compiler::lane_conv2d_dw", mutates_args=())
def lane_conv2d_dw(
    dy: Tensor,
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    """The gradient of a weight of spatial size `kernel`: `[N, O, C, kh, kw]`, contiguous."""
    (N, B, O, OH, OW), (C, H, W), (KH, KW) = dy.shape, x.shape[2:], kernel
    M, K = B * OH * OW, C * KH * KW
    if N * M * O * K == 0:
        return x.new_zeros(N, O, C, KH, KW)
    programs = N * triton.cdiv(O, 64) * triton.cdiv(K, 64)
    shares = max(min(triton.cdiv(PROGRAMS, programs), triton.cdiv(M, ROWS)), 1)
    if torch.are_deterministic_algorithms_enabled():
        shares = 1  # the order of atomic sums is not fixed
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


def _folded(t: Tensor) -> Tensor:
    """`[N, B, C, H, W]` as the channels-last `[B, N*C, H, W]`: a view where it lies in memory like that."""
    return t.permute(1, 3, 4, 0, 2).contiguous().flatten(3).permute(0, 3, 1, 2)


def library_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    needed: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of input, weight and bias from the library's grouped convolution; None if not needed."""
    n, channels = weight.shape[:2]
    geometry = (list(stride), list(padding), list(dilation), False, [0, 0], n, list(needed))
    dx, dw, db = torch.ops.aten.convolution_backward(
        _folded(dy), _folded(x), weight.flatten(0, 1), [n * channels], *geometry
    )
    return (
        dx.unflatten(1, (n, -1)).transpose(0, 1) if needed[0] else None,
        dw.unflatten(0, (n, -1)) if needed[1] else None,
        db.unflatten(0, (n, -1)) if needed[2] else None,
    )
