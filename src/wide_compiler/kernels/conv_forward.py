"""Triton kernel of the forward of `lane_conv2d`: an implicit matrix product per lane, with its epilogue.

Shapes as in `lane_conv`.
"""

import triton
import triton.language as tl

from .conv_blocks import configs_of, pixel_blocks
from .operands import rounded
from .tuned import tuned

# The autotuner times those kept by `_prune`.
BLOCKS = (
    (128, 64, 32, False, 4, 3),
    (128, 128, 32, False, 8, 3),
    (256, 64, 32, False, 8, 3),
    (128, 64, 32, False, 4, 1),
    (256, 64, 32, False, 8, 1),
    (128, 32, 32, False, 4, 1),
    (64, 64, 32, False, 4, 4),
    (64, 64, 32, False, 2, 3),  # avoids wgmma, which needs the input with c innermost
    (64, 32, 64, False, 4, 3),
    (32, 32, 64, False, 4, 4),
    (32, 16, 128, False, 4, 4),
    (128, 64, 32, True, 4, 3),
    (128, 32, 32, True, 4, 3),
    (256, 32, 32, True, 8, 3),
    (64, 64, 32, True, 4, 3),
    (64, 32, 64, True, 4, 3),
    (32, 32, 64, True, 4, 4),
)


def _prune(configs: list[triton.Config], named: dict, **meta) -> list[triton.Config]:
    return pixel_blocks(configs, named, meta["KH"] * meta["KW"], meta["O"], meta["C"], named["x_c"])


@tuned(
    configs=configs_of(BLOCKS),
    key=["N", "M_KEY", "C", "O", "KH", "KW", "SH", "x_c", "x_w", "PACKED", "PRECISION", "W_ROUNDED"],
    prune=_prune,
)
@triton.jit(do_not_specialize=["M_KEY"])
def conv_kernel(
    x,
    w,
    bias,
    scale,
    shift,
    residual,
    y,
    N,
    M,
    x_n,
    x_b,
    x_c,
    x_h,
    x_w,
    w_n,
    w_o,
    w_c,
    w_h,
    w_w,
    r_n,
    r_b,
    r_o,
    r_h,
    r_w,
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
    PACKED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_SCALE: tl.constexpr,
    HAS_SHIFT: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    RELU: tl.constexpr,
    PRECISION: tl.constexpr,
    W_ROUNDED: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    FLAT: tl.constexpr,
):
    """Compute one block of pixels x channels of one lane.

    Arguments such as `x_n` and `w_o` are strides: of `x` by lane, of `w` by out-channel. M counts the output
    pixels of the batch, and M_KEY is M rounded up to a power of two. KH, SH, PH and DH are the kernel's rows,
    stride, padding and dilation by row; KW, SW, PW and DW the same by column.

    FLAT iterates over k = (c, kh, kw), with LAST k = (kh, kw, c); otherwise a step is one (kh, kw) and a
    block of c. Sizes are constants: division by them is cheap, and triton can see where a row of pixels is
    contiguous. LONG offsets need 64 bits.
    """
    TAPS: tl.constexpr = KH * KW
    TILES_O: tl.constexpr = (O + BN - 1) // BN
    lane = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) // TILES_O * BM + tl.arange(0, BM)
    o = tl.program_id(0) % TILES_O * BN + tl.arange(0, BN)
    in_m = m < M
    in_o = o < O
    image = m // (OW * OH)
    h = m // OW % OH * SH - PH  # first row of the window, which may lie in the padding
    v = m % OW * SW - PW
    if LONG:
        image = image.to(tl.int64)
    x_m = image * x_b + (h * x_h + v * x_w)
    x_lane = x + lane * x_n
    w_lane = w + lane * w_n
    w_base = o * w_o
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    if FLAT:
        for k0 in range(0, C * TAPS, BK):
            k = k0 + tl.arange(0, BK)
            in_k = k < C * TAPS
            c = k % C if LAST else k // TAPS
            tap = k // C if LAST else k % TAPS
            kh = tap // KW
            kw = tap % KW
            ok = in_m[:, None] & in_k[None, :]
            if PH > 0 or PW > 0:
                row = h[:, None] + (kh * DH)[None, :]
                col = v[:, None] + (kw * DW)[None, :]
                ok &= (row >= 0) & (row < H) & (col >= 0) & (col < W)
            a_at = x_m[:, None] + (c * x_c + kh * DH * x_h + kw * DW * x_w)[None, :]
            if LAST and C % 4 > 0:  # otherwise triton makes adjacent threads read along m, not along k
                a = tl.trans(tl.load(x_lane + tl.trans(a_at), mask=tl.trans(ok), other=0.0))
            else:
                a = tl.load(x_lane + a_at, mask=ok, other=0.0)
            w_k = k if PACKED else c * w_c + kh * w_h + kw * w_w
            b_at = w_base[None, :] + w_k[:, None]
            b = tl.load(w_lane + b_at, mask=in_k[:, None] & in_o[None, :], other=0.0)
            if not W_ROUNDED:
                b = rounded(b, PRECISION)
            acc = tl.dot(rounded(a, PRECISION), b, acc, input_precision=PRECISION)
    else:
        # One loop, so that loads are prefetched across taps; taps innermost, for the weight's cache lines.
        for step in range((C + BK - 1) // BK * TAPS):
            c = step // TAPS * BK + tl.arange(0, BK)
            kh = step % TAPS // KW
            kw = step % KW
            ok = in_m
            if PH > 0 or PW > 0:
                row = h + kh * DH
                col = v + kw * DW
                ok &= (row >= 0) & (row < H) & (col >= 0) & (col < W)
            a_ok = ok[:, None]
            b_ok = in_o[None, :]
            if C % BK > 0:
                a_ok = a_ok & (c < C)[None, :]
                b_ok = b_ok & (c < C)[:, None]
            a_at = (x_m + (kh * DH * x_h + kw * DW * x_w))[:, None] + (c * x_c)[None, :]
            a = tl.load(x_lane + a_at, mask=a_ok, other=0.0)
            b_at = (w_base + (kh * w_h + kw * w_w))[None, :] + (c * w_c)[:, None]
            b = tl.load(w_lane + b_at, mask=b_ok, other=0.0)
            if not W_ROUNDED:
                b = rounded(b, PRECISION)
            acc = tl.dot(rounded(a, PRECISION), b, acc, input_precision=PRECISION)

    if HAS_BIAS:
        acc += tl.load(bias + lane * O + o, mask=in_o, other=0.0).to(tl.float32)[None, :]
    if HAS_SCALE:
        acc *= tl.load(scale + lane * O + o, mask=in_o, other=0.0).to(tl.float32)[None, :]
    if HAS_SHIFT:
        acc += tl.load(shift + lane * O + o, mask=in_o, other=0.0).to(tl.float32)[None, :]
    if HAS_RESIDUAL:
        r_m = image * r_b + (m // OW % OH * r_h + m % OW * r_w)
        r_ptrs = residual + lane * r_n + (r_m[:, None] + (o * r_o)[None, :])
        acc += tl.load(r_ptrs, mask=in_m[:, None] & in_o[None, :], other=0.0).to(tl.float32)
    if RELU:
        acc = tl.where(acc < 0.0, 0.0, acc)  # not maximum: NaN must stay NaN, as in torch
    if LONG:
        m = m.to(tl.int64)
    y_ptrs = y + lane * O + ((m * (N * O))[:, None] + o[None, :])
    tl.store(y_ptrs, acc.to(y.dtype.element_ty), mask=in_m[:, None] & in_o[None, :])
