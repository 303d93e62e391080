"""2-D convolutions of N lanes as one implicit matrix product in Triton, with bias and relu inside it.

A grouped convolution gives every group a sliver of a kernel made for many channels; here each lane is a
product of its own: rows M are the output pixels of the batch, columns the output channels O, and the sum
runs over (c, kh, kw). Import this module only after `_triton.available()`: it needs triton.

Shapes: N lanes, B batch, C in-channels, O out-channels, H x W the input, OH x OW the output, M = B*OH*OW.
What comes out lies in memory as `[B, OH, OW, N, O]`: channels-last of the folded `[B, N*O, OH, OW]`, which
the layers that fold their lanes read without a copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ._triton import briefly, interpreting, likeliest, next_pow2, on_device, products, supports
from .conv_backward import lane_conv2d_dw, lane_conv2d_dx, library_backward, span
from .operands import packed, rounded
from .streams import Ints, per_axis, plain_padding

ACTIVATIONS = ("none", "relu")
BACKWARDS = ("own", "library")

# (BM, BN, BK, FLAT, warps, stages); the autotuner times those that `_prune` leaves. One stage: what is read
# goes through the first-level cache, where the taps of a window overlap; more: past it, but ahead of time.
BLOCKS = (
    (128, 64, 32, False, 4, 3),
    (128, 128, 32, False, 8, 3),
    (256, 64, 32, False, 8, 3),
    (128, 64, 32, False, 4, 1),
    (256, 64, 32, False, 8, 1),
    (128, 32, 32, False, 4, 1),
    (64, 64, 32, False, 4, 4),
    (64, 64, 32, False, 2, 3),  # without wgmma, which wants the input with c innermost
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
CONFIGS = [
    triton.Config({"BM": bm, "BN": bn, "BK": bk, "FLAT": flat}, num_warps=warps, num_stages=stages)
    for bm, bn, bk, flat, warps, stages in BLOCKS
]
if interpreting():
    CONFIGS = [triton.Config({"BM": 64, "BN": 32, "BK": 32, "FLAT": True})]  # one: no GPU to time them on


def _prune(configs: list[triton.Config], named: dict, **meta) -> list[triton.Config]:
    """Drop blocks much larger than the product, and slivers of a large one: neither can win."""
    rows, columns, channels = max(named["M_KEY"], 32), max(next_pow2(meta["O"]), 16), meta["C"]
    kept = []
    for config in configs:
        block = config.kwargs
        fits_in = (
            block["BM"] <= rows and block["BN"] <= max(columns, 32) and block["BM"] * 8 >= min(rows, 512)
        )
        # Few channels would leave most of a block along c empty.
        order = channels < 16 or channels % 32 > 0 if block["FLAT"] else channels >= 16
        # The cache is worth the wait where windows overlap and there are programs enough to wait in turn.
        cached = config.num_stages > 1 or (meta["KH"] * meta["KW"] > 1 and rows * named["N"] >= 2**15)
        innermost = config.num_warps > 2 or named["x_c"] != 1
        if fits_in and order and cached and innermost:
            kept.append(config)
    return likeliest(kept, rows, columns, named["N"]) or configs[-1:]


@triton.autotune(
    configs=CONFIGS,
    key=["N", "M_KEY", "C", "O", "KH", "KW", "SH", "x_c", "x_w", "PACKED", "PRECISION", "W_ROUNDED"],
    prune_configs_by={"early_config_prune": _prune},
    do_bench=briefly,
)
@triton.jit(do_not_specialize=["M_KEY"])
def _conv_kernel(
    x, w, bias, scale, shift, residual, y,
    N, M,
    x_n, x_b, x_c, x_h, x_w,
    w_n, w_o, w_c, w_h, w_w,
    r_n, r_b, r_o, r_h, r_w,
    M_KEY,
    C: tl.constexpr, O: tl.constexpr, H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
    LONG: tl.constexpr, LAST: tl.constexpr, PACKED: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_SCALE: tl.constexpr, HAS_SHIFT: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
    RELU: tl.constexpr, PRECISION: tl.constexpr, W_ROUNDED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, FLAT: tl.constexpr,
):  # fmt: skip
    """One block of pixels x channels of one lane.

    FLAT walks k = (c, kh, kw), with LAST k = (kh, kw, c); otherwise a step is one (kh, kw) and a block of c.
    Sizes are constants: dividing by them costs little, and where a row of pixels is contiguous triton
    sees it. LONG offsets need 64 bits.
    """
    TAPS: tl.constexpr = KH * KW
    TILES_O: tl.constexpr = (O + BN - 1) // BN
    lane = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) // TILES_O * BM + tl.arange(0, BM)
    o = tl.program_id(0) % TILES_O * BN + tl.arange(0, BN)
    in_m = m < M
    in_o = o < O
    image = m // (OW * OH)
    h = m // OW % OH * SH - PH  # of the window's first row, which may lie in the padding
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
            if LAST and C % 4 > 0:  # else triton would let neighbouring threads read along m, not along k
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
        acc = tl.where(acc < 0.0, 0.0, acc)  # not maximum: a NaN stays a NaN, as in torch
    if LONG:
        m = m.to(tl.int64)
    y_ptrs = y + lane * O + ((m * (N * O))[:, None] + o[None, :])
    tl.store(y_ptrs, acc.to(y.dtype.element_ty), mask=in_m[:, None] & in_o[None, :])


def _empty_output(x: Tensor, weight: Tensor, stride, padding, dilation) -> Tensor:
    """The output `[N, B, O, OH, OW]`, unfilled, in the memory order the module's docstring names."""
    pads = zip(x.shape[3:], weight.shape[3:], stride, padding, dilation, strict=True)
    OH, OW = ((size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, s, p, d in pads)
    return x.new_empty(x.shape[1], OH, OW, x.shape[0], weight.shape[1]).permute(3, 0, 4, 1, 2)


def _run(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    activation: str,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    y = _empty_output(x, weight, stride, padding, dilation)
    (N, B, O, OH, OW), (C, H, W), (KH, KW) = y.shape, x.shape[2:], weight.shape[3:]
    if y.numel() == 0:
        return y
    M = B * OH * OW
    last = x.stride(2) == 1 and C > 1
    mode = products(x, "conv")
    given, weight = weight, packed(weight, 2, M, mode)
    in_order = (1, KW * C, C) if last else (KH * KW, KW, 1)
    vectors = [x if v is None else v.contiguous() for v in (bias, scale, shift)]
    reach = [span(t) for t in (x, y, residual) if t is not None]
    with on_device(x):
        _conv_kernel[lambda meta: (triton.cdiv(M, meta["BM"]) * triton.cdiv(O, meta["BN"]), N)](
            x, weight, *vectors, x if residual is None else residual, y, N, M,
            *x.stride(), *weight.stride(), *((0,) * 5 if residual is None else residual.stride()),
            next_pow2(M),  # a batch of another size reuses the blocks found for a similar one
            C=C, O=O, H=H, W=W, OH=OH, OW=OW, KH=KH, KW=KW, SH=stride[0], SW=stride[1],
            PH=padding[0], PW=padding[1], DH=dilation[0], DW=dilation[1],
            LONG=max(reach) >= 2**31, LAST=last, PACKED=weight.stride()[2:] == in_order,
            HAS_BIAS=bias is not None, HAS_SCALE=scale is not None, HAS_SHIFT=shift is not None,
            HAS_RESIDUAL=residual is not None, RELU=activation == "relu",
            PRECISION=mode, W_ROUNDED=weight is not given,
        )  # fmt: skip
    return y


@torch.library.custom_op("wide_compiler::lane_conv2d", mutates_args=())
def _lane_conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    activation: str,
    backward: str = "own",
) -> Tensor:
    return _run(x, weight, bias, stride, padding, dilation, activation)


@_lane_conv2d.register_fake
def _(x, weight, bias, stride, padding, dilation, activation, backward="own"):
    return _empty_output(x, weight, stride, padding, dilation)


@torch.library.custom_op("wide_compiler::lane_conv2d_epilogue", mutates_args=())
def _lane_conv2d_epilogue(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor | None,
    shift: Tensor | None,
    residual: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    activation: str,
) -> Tensor:
    return _run(x, weight, bias, stride, padding, dilation, activation, scale, shift, residual)


@_lane_conv2d_epilogue.register_fake
def _(x, weight, bias, scale, shift, residual, stride, padding, dilation, activation):
    return _empty_output(x, weight, stride, padding, dilation)


def _setup(ctx, inputs, output):
    x, weight, _, *ctx.geometry, ctx.activation, ctx.backward = inputs
    ctx.save_for_backward(x, weight, output if ctx.activation == "relu" else None)


def _backward(ctx, dy):
    x, weight, y = ctx.saved_tensors
    if ctx.activation == "relu":
        dy = torch.ops.aten.threshold_backward(dy, y, 0)
    need_x, need_weight, need_bias = needed = ctx.needs_input_grad[:3]
    if ctx.backward == "library":
        return (*library_backward(dy, x, weight, *ctx.geometry, needed), *[None] * 5)
    dw = lane_conv2d_dw(dy, x, weight.shape[3:], *ctx.geometry) if need_weight else None
    if dw is not None and dw.stride() != weight.stride():
        dw = torch.empty_like(weight).copy_(dw)  # laid out as the weight: nobody need turn it round later
    return (
        lane_conv2d_dx(dy, weight, x.shape[3:], *ctx.geometry) if need_x else None,
        dw,
        dy.sum((1, 3, 4)) if need_bias else None,
        *[None] * 5,
    )


_lane_conv2d.register_autograd(_backward, setup_context=_setup)


def fits(x: Tensor, weight: Tensor, groups: int = 1) -> bool:
    """Whether `lane_conv2d` takes x `[N, B, C, H, W]` and weight `[N, O, C, kh, kw]` of a member's groups."""
    return (
        groups == 1
        and x.dim() == weight.dim() == 5
        and supports(x, weight)
        and not torch.is_autocast_enabled(x.device.type)  # torch's own op casts its inputs, this one does not
    )


def lane_conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: Ints | str = 0,
    dilation: Ints = 1,
    activation: str = "none",
    backward: str = "own",
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """`y[n] = activation(conv2d(x[n], weight[n], bias[n]))` for every lane n, as one kernel.

    With any of scale, shift and residual: `activation(conv2d(..) * scale + shift + residual)`, without
    gradients.

    Args:
        x: `[N, B, C, H, W]`, any strides; an input shared by all lanes comes expanded.
        weight: `[N, O, C, kh, kw]`, any strides.
        bias: `[N, O]` or None.
        stride, padding, dilation: of the member, as in `F.conv2d`.
        activation: "none" or "relu".
        backward: "own" kernels, or those of the "library" for the grouped convolution, in channels-last.
        scale, shift: `[N, O]` or None.
        residual: `[N, B, O, OH, OW]`, any strides, or None.

    Returns:
        `[N, B, O, OH, OW]`, in memory `[B, OH, OW, N, O]`.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(f"lane_conv2d: unknown activation {activation!r}; choose one of {ACTIVATIONS}")
    if backward not in BACKWARDS:
        raise ValueError(f"lane_conv2d: unknown backward {backward!r}; choose one of {BACKWARDS}")
    stride, dilation = per_axis(stride, 2), per_axis(dilation, 2)
    x, padding = plain_padding(x, weight.shape[3:], padding, dilation)
    extra = scale, shift, residual
    if all(t is None for t in extra):
        return _lane_conv2d(x, weight, bias, stride, padding, dilation, activation, backward)
    given = [t for t in (x, weight, bias, *extra) if t is not None]
    if torch.is_grad_enabled() and any(t.requires_grad for t in given):
        raise ValueError("lane_conv2d: scale, shift and residual are for inference; they have no gradients")
    return _lane_conv2d_epilogue(x, weight, bias, *extra, stride, padding, dilation, activation)
