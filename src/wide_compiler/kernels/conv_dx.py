"""Gradient of `lane_conv2d` with respect to the input (dx), as one Triton kernel.

Shapes as in `lane_conv`; dy is the gradient of the output, `[N, B, O, OH, OW]` of any strides.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ._triton import next_pow2, on_device, products, span
from .conv_blocks import configs_of, pixel_blocks
from .operands import packed, rounded
from .tuned import tuned


def _prune(configs: list[triton.Config], named: dict, **meta) -> list[triton.Config]:
    return pixel_blocks(configs, named, meta["KH"] * meta["KW"], meta["C"], meta["O"], named["w_o"])


@tuned(
    configs=configs_of(
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
            (64, 64, 32, False, 2, 3),  # avoids wgmma, which needs the weight with o innermost
            (64, 32, 64, False, 4, 3),
            (32, 32, 64, False, 4, 4),
            (32, 16, 128, False, 4, 4),
            (128, 64, 32, True, 4, 3),
            (64, 64, 32, True, 4, 3),
            (32, 32, 64, True, 4, 3),
        )
    ),
    key=["N", "M_KEY", "C", "O", "KH", "KW", "SH", "y_o", "w_o", "PRECISION", "W_ROUNDED"],
    prune=_prune,
)
@triton.jit(do_not_specialize=["M_KEY"])
def _dx_kernel(
    dy,
    w,
    dx,
    N,
    B,
    y_n,
    y_b,
    y_o,
    y_h,
    y_w,
    w_n,
    w_o,
    w_c,
    w_h,
    w_w,
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
    PRECISION: tl.constexpr,
    W_ROUNDED: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    FLAT: tl.constexpr,
):
    """Compute one block of input pixels x channels of one lane; the sum runs over (o, kh, kw).

    A pixel h meets tap kh only where h + PH - kh * DH is a multiple of the stride. A program therefore takes
    pixels of one remainder (its phase) and only the taps that meet them, so no product is wasted. If the
    stride is not 1, the dilation must be 1.
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
    first_h = (phase_h + PH) % SH  # first kh of this phase, then every SH-th
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
    # h + PH and kh have the same remainder, so the difference of their quotients is oh.
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


def _empty_input(dy: Tensor, weight: Tensor, size: Sequence[int]) -> Tensor:
    """Return an empty `[N, B, C, H, W]`, in memory `[B, H, W, N, C]`."""
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
    """Return the gradient of an input of spatial `size`: `[N, B, C, H, W]`, in memory `[B, H, W, N, C]`."""
    dx = _empty_input(dy, weight, size)
    if dx.numel() == 0 or dy.numel() == 0:
        return dx.zero_()
    if any(s > 1 and d > 1 for s, d in zip(stride, dilation, strict=True)):
        # Rare: insert zeros between the elements of dy, so that the stride is 1.
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
