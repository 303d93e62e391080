"""Backward of `lane_lstm` and `lane_gru`: through all time steps in one Triton kernel.

As in `rnn_forward` there is one loop over (time, gate), here in reverse. An iteration computes one gate's
gradient (the gradient of h or c times a derivative saved by the forward) and multiplies it by that gate's
weight. The gradient of the weight is one product over all steps, computed by the caller.

Shapes as in `lane_rnn`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ._triton import on_device
from .rnn_parts import halves, launch, product


@triton.jit
def _lstm_kernel(
    dy,
    dc_last,
    w,
    slopes,
    dgates,
    dh0,
    dc0,
    T,
    B,
    H: tl.constexpr,
    PRECISION: tl.constexpr,
    BB: tl.constexpr,
    HP: tl.constexpr,
):
    lane = tl.program_id(1).to(tl.int64)
    b = tl.program_id(0) * BB + tl.arange(0, BB)
    j = tl.arange(0, HP)
    k = tl.arange(0, HP)
    ok = (k < H)[:, None] & (b < B)[None, :]
    at = k[:, None] + (b * H)[None, :]
    w_ptrs = w + lane * 4 * H * H + k[:, None] + (j * H)[None, :]
    w_ok = (k < H)[:, None] & (j < H)[None, :]
    dy_ptrs = dy + lane * T * B * H + at
    slope_ptrs = slopes + lane * T * B * 6 * H + k[:, None] + (b * 6 * H)[None, :]
    out_ptrs = dgates + lane * T * B * 4 * H + k[:, None] + (b * 4 * H)[None, :]
    dc = tl.load(dc_last + lane * B * H + at, mask=ok, other=0.0)
    dh = tl.load(dy_ptrs + (T - 1) * B * H, mask=ok, other=0.0)
    for turn in range(4 * T):
        t = T - 1 - turn // 4
        gate = 3 - turn % 4
        w_tile = tl.load(w_ptrs + gate * H * H, mask=w_ok, other=0.0)
        row = slope_ptrs + t * B * 6 * H
        slope = tl.load(row + gate * H, mask=ok, other=0.0)
        # These two are used only after the product, which hides their load latency.
        of_c = tl.load(row + tl.where(gate == 3, 4, 5) * H, mask=ok, other=0.0)
        dy_before = tl.load(dy_ptrs + tl.maximum(t - 1, 0) * B * H, mask=ok, other=0.0)
        d = tl.where(gate == 3, dh, dc) * slope
        tl.store(out_ptrs + (t * B * 4 * H + gate * H), d, mask=ok)
        upper, rest = halves(d)
        start = tl.where(gate == 3, 0.0, dh)
        sent = product(w_tile, upper, rest, start, turn, PRECISION)
        dc = tl.where(gate == 3, dc + dh * of_c, tl.where(gate == 0, dc * of_c, dc))
        dh = sent + tl.where(gate + 4 * (t == 0) == 0, dy_before, 0.0)
    tl.store(dh0 + lane * B * H + at, dh, mask=ok)
    tl.store(dc0 + lane * B * H + at, dc, mask=ok)


@triton.jit
def _gru_kernel(
    dy,
    w,
    slopes,
    dgates_x,
    dgates_h,
    dh0,
    T,
    B,
    H: tl.constexpr,
    PRECISION: tl.constexpr,
    BB: tl.constexpr,
    HP: tl.constexpr,
):
    lane = tl.program_id(1).to(tl.int64)
    b = tl.program_id(0) * BB + tl.arange(0, BB)
    j = tl.arange(0, HP)
    k = tl.arange(0, HP)
    ok = (k < H)[:, None] & (b < B)[None, :]
    at = k[:, None] + (b * H)[None, :]
    w_ptrs = w + lane * 3 * H * H + k[:, None] + (j * H)[None, :]
    w_ok = (k < H)[:, None] & (j < H)[None, :]
    dy_ptrs = dy + lane * T * B * H + at
    slope_ptrs = slopes + lane * T * B * 5 * H + k[:, None] + (b * 5 * H)[None, :]
    out = lane * T * B * 3 * H + k[:, None] + (b * 3 * H)[None, :]
    whole = tl.load(dy_ptrs + (T - 1) * B * H, mask=ok, other=0.0)
    dh = whole
    for turn in range(3 * T):
        t = T - 1 - turn // 3
        gate = 2 - turn % 3
        w_tile = tl.load(w_ptrs + gate * H * H, mask=w_ok, other=0.0)
        row = slope_ptrs + t * B * 5 * H
        slope = tl.load(row + gate * H, mask=ok, other=0.0)
        # Used after the product, as in the LSTM: the derivatives for h and for n's input part.
        of_h = tl.load(row + 3 * H, mask=ok, other=0.0)
        of_n = tl.load(row + 4 * H, mask=ok, other=0.0)
        dy_before = tl.load(dy_ptrs + tl.maximum(t - 1, 0) * B * H, mask=ok, other=0.0)
        whole = tl.where(gate == 2, dh, whole)
        d = whole * slope
        upper, rest = halves(d)
        start = tl.where(gate == 2, 0.0, dh)
        sent = product(w_tile, upper, rest, start, turn, PRECISION)
        place = out + (t * B * 3 * H + gate * H)
        tl.store(dgates_h + place, d, mask=ok)
        tl.store(dgates_x + place, tl.where(gate == 2, whole * of_n, d), mask=ok)
        dh = sent + tl.where(gate == 2, whole * of_h, 0.0)
        dh += tl.where(gate + 3 * (t == 0) == 0, dy_before, 0.0)
    tl.store(dh0 + lane * B * H + at, dh, mask=ok)


@torch.library.custom_op("wide_compiler::lane_lstm_backward", mutates_args=())
def lane_lstm_backward(
    dy: Tensor, dc_last: Tensor, w_hh: Tensor, slopes: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of the gates `[N, T, B, 4H]`, of h0 and of c0 `[N, B, H]`."""
    N, T, B, H = dy.shape
    dgates = dy.new_empty(N, T, B, 4 * H)
    dh0, dc0 = (dy.new_empty(N, B, H) for _ in range(2))
    if dgates.numel() == 0:
        return dgates, dh0.zero_(), dc0.copy_(dc_last)
    inputs = dy.contiguous(), dc_last.contiguous(), w_hh.contiguous(), slopes
    settings = launch(H, B, N, dy.device)
    with on_device(dy):
        _lstm_kernel[triton.cdiv(B, settings["BB"]), N](*inputs, dgates, dh0, dc0, T, B, **settings)
    return dgates, dh0, dc0


@lane_lstm_backward.register_fake
def _(dy, dc_last, w_hh, slopes):
    N, T, B, H = dy.shape
    return dy.new_empty(N, T, B, 4 * H), dy.new_empty(N, B, H), dy.new_empty(N, B, H)


@torch.library.custom_op("wide_compiler::lane_gru_backward", mutates_args=())
def lane_gru_backward(dy: Tensor, w_hh: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of the gates' input and hidden parts `[N, T, B, 3H]`, and of h0 `[N, B, H]`."""
    N, T, B, H = dy.shape
    dgates_x, dgates_h = (dy.new_empty(N, T, B, 3 * H) for _ in range(2))
    dh0 = dy.new_empty(N, B, H)
    if dgates_x.numel() == 0:
        return dgates_x, dgates_h, dh0.zero_()
    inputs = dy.contiguous(), w_hh.contiguous(), slopes
    settings = launch(H, B, N, dy.device)
    with on_device(dy):
        _gru_kernel[triton.cdiv(B, settings["BB"]), N](*inputs, dgates_x, dgates_h, dh0, T, B, **settings)
    return dgates_x, dgates_h, dh0


@lane_gru_backward.register_fake
def _(dy, w_hh, slopes):
    N, T, B, H = dy.shape
    return dy.new_empty(N, T, B, 3 * H), dy.new_empty(N, T, B, 3 * H), dy.new_empty(N, B, H)
