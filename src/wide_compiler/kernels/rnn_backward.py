"""The gradients of `lane_lstm` and `lane_gru`: back through all time steps in one Triton kernel.

As in `rnn`, one loop over (time, gate), time backwards; a turn computes one gate's gradient and sends it
through that gate's weight. What the next turn reads is loaded one turn ahead. The gradient of the weight
itself is one product over all steps, left to the caller.

Shapes as in `rnn`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ._triton import next_pow2, on_device, precision

ROWS = 16  # of the batch in one program: the fewest a tensor core takes


def launch(hidden: int) -> dict[str, object]:
    """The settings that every recurrent kernel is started with."""
    return {
        "PRECISION": precision("conv"),  # torch's own recurrent layers follow cuDNN's flag as well
        "BB": ROWS,
        "HP": max(next_pow2(hidden), 16),
        "num_warps": 8 if hidden > 32 else 4,
        "num_stages": 3,
    }


@triton.jit
def tanh(x):
    """Exact to float32's rounding of 1: a state or a gate is of that size."""
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def when(condition, in_b, k, H):
    """The mask of all rows and features where the condition, a scalar, holds; else of none.

    `mask & condition` would do, but triton's interpreter spreads a scalar condition as numbers.
    """
    return in_b[:, None] & (k < tl.where(condition, H, 0))[None, :]


@triton.jit
def _lstm_saved(turn, acts_ptrs, cells_ptrs, dy_ptrs, T, B, H, in_b, k):
    """What a turn reads: its gate, what that gate was multiplied with, and (in turn 0 of a step) dy.

    The turns of a step take the gates in the order o, i, g, f; their partners are c, g, i, the c before.
    """
    t = T - 1 - turn // 4
    phase = turn % 4
    gate = tl.where(phase == 0, 3, tl.where(phase == 1, 0, tl.where(phase == 2, 2, 1)))
    with_gate = (phase == 1) | (phase == 2)
    row = acts_ptrs + t * B * 4 * H
    own = tl.load(row + gate * H, mask=when(phase >= 0, in_b, k, H), other=0.0)
    partner = tl.load(row + tl.where(phase == 1, 2, 0) * H, mask=when(with_gate, in_b, k, H), other=0.0)
    # Entry t + 1 of cells is the c of step t.
    cell = cells_ptrs + (t + tl.where(phase == 0, 1, 0)) * B * H
    partner += tl.load(cell, mask=when(phase % 3 == 0, in_b, k, H), other=0.0)
    dy = tl.load(dy_ptrs + t * B * H, mask=when(phase == 0, in_b, k, H), other=0.0)
    return own, partner, dy


@triton.jit
def _lstm_kernel(
    dy, dc_last, w, acts, cells, dgates, dh0, dc0,
    T, B, H,
    PRECISION: tl.constexpr, BB: tl.constexpr, HP: tl.constexpr,
):  # fmt: skip
    lane = tl.program_id(1).to(tl.int64)
    b = tl.program_id(0) * BB + tl.arange(0, BB)
    j = tl.arange(0, HP)
    k = tl.arange(0, HP)
    in_b = b < B
    ok = in_b[:, None] & (k < H)[None, :]
    state = lane * B * H + (b * H)[:, None] + k[None, :]
    w_ptrs = w + lane * 4 * H * H + (j * H)[:, None] + k[None, :]
    w_ok = (j < H)[:, None] & (k < H)[None, :]
    row = (b * H)[:, None] + k[None, :]
    row_4 = (b * 4 * H)[:, None] + k[None, :]
    acts_ptrs = acts + lane * T * B * 4 * H + row_4
    cells_ptrs = cells + lane * (T + 1) * B * H + row
    dy_ptrs = dy + lane * T * B * H + row
    out_ptrs = dgates + lane * T * B * 4 * H + row_4
    dc = tl.load(dc_last + state, mask=ok, other=0.0)
    dh = tl.zeros((BB, HP), dtype=tl.float32)
    next_own, next_partner, next_dy = _lstm_saved(0, acts_ptrs, cells_ptrs, dy_ptrs, T, B, H, in_b, k)
    for turn in range(4 * T):
        own, partner, dy_t = next_own, next_partner, next_dy
        next_own, next_partner, next_dy = _lstm_saved(
            turn + 1, acts_ptrs, cells_ptrs, dy_ptrs, T, B, H, in_b, k
        )
        t = T - 1 - turn // 4
        phase = turn % 4
        gate = tl.where(phase == 0, 3, tl.where(phase == 1, 0, tl.where(phase == 2, 2, 1)))
        w_tile = tl.load(w_ptrs + gate * H * H, mask=w_ok, other=0.0)
        whole = dh + dy_t  # the gradient of h, in turn 0
        tanh_c = tanh(partner)
        dc = tl.where(phase == 0, dc + whole * own * (1.0 - tanh_c * tanh_c), dc)
        slope = tl.where(phase == 2, 1.0 - own * own, own * (1.0 - own))
        d = tl.where(phase == 0, whole * tanh_c, dc * partner) * slope
        tl.store(out_ptrs + (t * B * 4 * H + gate * H), d, mask=ok)
        dh = tl.dot(d, w_tile, tl.where(phase == 0, 0.0, dh), input_precision=PRECISION)
        dc = tl.where(phase == 3, dc * own, dc)
    tl.store(dh0 + state, dh, mask=ok)
    tl.store(dc0 + state, dc, mask=ok)


@triton.jit
def _gru_saved(turn, acts_ptrs, hidden_ptrs, before_ptrs, dy_ptrs, T, B, H, in_b, k):
    """What a turn reads. The turns of a step take the gates in the order n, r, z:

    n with z, r and dy; r with n's hidden part; z with n and the h before.
    """
    t = T - 1 - turn // 3
    phase = turn % 3
    gate = tl.where(phase == 0, 2, phase - 1)
    row = acts_ptrs + t * B * 3 * H
    own = tl.load(row + gate * H, mask=when(phase >= 0, in_b, k, H), other=0.0)
    one = tl.load(row + tl.where(phase == 0, 1, 2) * H, mask=when(phase != 1, in_b, k, H), other=0.0)
    one += tl.load(hidden_ptrs + t * B * H, mask=when(phase == 1, in_b, k, H), other=0.0)
    two = tl.load(row, mask=when(phase == 0, in_b, k, H), other=0.0)
    two += tl.load(before_ptrs + t * B * H, mask=when(phase == 2, in_b, k, H), other=0.0)
    dy = tl.load(dy_ptrs + t * B * H, mask=when(phase == 0, in_b, k, H), other=0.0)
    return own, one, two, dy


@triton.jit
def _gru_kernel(
    dy, w, acts, hidden_n, before, dgates_x, dgates_h, dh0,
    T, B, H,
    PRECISION: tl.constexpr, BB: tl.constexpr, HP: tl.constexpr,
):  # fmt: skip
    lane = tl.program_id(1).to(tl.int64)
    b = tl.program_id(0) * BB + tl.arange(0, BB)
    j = tl.arange(0, HP)
    k = tl.arange(0, HP)
    in_b = b < B
    ok = in_b[:, None] & (k < H)[None, :]
    w_ptrs = w + lane * 3 * H * H + (j * H)[:, None] + k[None, :]
    w_ok = (j < H)[:, None] & (k < H)[None, :]
    row = lane * T * B * H + (b * H)[:, None] + k[None, :]
    row_3 = lane * T * B * 3 * H + (b * 3 * H)[:, None] + k[None, :]
    acts_ptrs = acts + row_3
    hidden_ptrs = hidden_n + row
    before_ptrs = before + row
    dy_ptrs = dy + row
    whole = tl.zeros((BB, HP), dtype=tl.float32)
    dn = tl.zeros((BB, HP), dtype=tl.float32)
    dh = tl.zeros((BB, HP), dtype=tl.float32)
    next_own, next_one, next_two, next_dy = _gru_saved(
        0, acts_ptrs, hidden_ptrs, before_ptrs, dy_ptrs, T, B, H, in_b, k
    )
    for turn in range(3 * T):
        own, one, two, dy_t = next_own, next_one, next_two, next_dy
        next_own, next_one, next_two, next_dy = _gru_saved(
            tl.minimum(turn + 1, 3 * T - 1), acts_ptrs, hidden_ptrs, before_ptrs, dy_ptrs, T, B, H, in_b, k
        )
        t = T - 1 - turn // 3
        phase = turn % 3
        gate = tl.where(phase == 0, 2, phase - 1)
        w_tile = tl.load(w_ptrs + gate * H * H, mask=w_ok, other=0.0)
        whole = tl.where(phase == 0, dh + dy_t, whole)
        dn = tl.where(phase == 0, whole * (1.0 - one) * (1.0 - own * own), dn)
        slope = own * (1.0 - own)
        d = tl.where(phase == 0, dn * two, tl.where(phase == 1, dn * one, whole * (two - one)) * slope)
        # Only the new gate's two parts differ: its hidden one went through the reset gate.
        at = t * B * 3 * H + gate * H
        tl.store(dgates_x + row_3 + at, tl.where(phase == 0, dn, d), mask=ok)
        tl.store(dgates_h + row_3 + at, d, mask=ok)
        dh = tl.dot(d, w_tile, tl.where(phase == 0, whole * one, dh), input_precision=PRECISION)
    tl.store(dh0 + lane * B * H + (b * H)[:, None] + k[None, :], dh, mask=ok)


@torch.library.custom_op("wide_compiler::lane_lstm_backward", mutates_args=())
def lane_lstm_backward(
    dy: Tensor, dc_last: Tensor, w_hh: Tensor, acts: Tensor, cells: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the gates `[N, T, B, 4H]`, of h0 and of c0 `[N, B, H]`."""
    N, T, B, H = dy.shape
    dgates = acts.new_empty(acts.shape)
    dh0, dc0 = (dy.new_empty(N, B, H) for _ in range(2))
    if dgates.numel() == 0:
        return dgates, dh0.zero_(), dc0.copy_(dc_last)
    inputs = dy.contiguous(), dc_last.contiguous(), w_hh.contiguous(), acts, cells
    with on_device(dy):
        _lstm_kernel[triton.cdiv(B, ROWS), N](*inputs, dgates, dh0, dc0, T, B, H, **launch(H))
    return dgates, dh0, dc0


@lane_lstm_backward.register_fake
def _(dy, dc_last, w_hh, acts, cells):
    N, _, B, H = dy.shape
    return acts.new_empty(acts.shape), dy.new_empty(N, B, H), dy.new_empty(N, B, H)


@torch.library.custom_op("wide_compiler::lane_gru_backward", mutates_args=())
def lane_gru_backward(
    dy: Tensor, w_hh: Tensor, acts: Tensor, hidden_n: Tensor, before: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the gates' input and hidden parts `[N, T, B, 3H]`, and of h0 `[N, B, H]`."""
    N, T, B, H = dy.shape
    dgates_x, dgates_h = (acts.new_empty(acts.shape) for _ in range(2))
    dh0 = dy.new_empty(N, B, H)
    if dgates_x.numel() == 0:
        return dgates_x, dgates_h, dh0.zero_()
    inputs = dy.contiguous(), w_hh.contiguous(), acts, hidden_n, before.contiguous()
    with on_device(dy):
        _gru_kernel[triton.cdiv(B, ROWS), N](*inputs, dgates_x, dgates_h, dh0, T, B, H, **launch(H))
    return dgates_x, dgates_h, dh0


@lane_gru_backward.register_fake
def _(dy, w_hh, acts, hidden_n, before):
    N, _, B, H = dy.shape
    return acts.new_empty(acts.shape), acts.new_empty(acts.shape), dy.new_empty(N, B, H)
