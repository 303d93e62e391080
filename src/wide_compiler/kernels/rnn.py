"""LSTM and GRU layers of N lanes, all time steps in one Triton kernel.

A step of a recurrent layer is mostly the launch of its kernels. Here one program takes a lane and a few
rows of the batch through the whole sequence, its state in registers. It works gate by gate, in one loop over
(time, gate): what a turn needs of the weight is then known early and fetched while earlier turns compute.
Import this module only after `_triton.available()`: it needs triton.

Shapes: N lanes, T time steps, B batch, H hidden features. float32 only.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ._triton import on_device, supports
from .rnn_backward import ROWS, lane_gru_backward, lane_lstm_backward, launch, tanh, when

WIDEST = 128  # a gate's weight of 128 x 128 floats, twice, is what a multiprocessor's shared memory holds


@triton.jit
def _lstm_kernel(
    gx, w, h0, c0, y, c_last, acts, cells,
    T, B, H, gx_n, gx_t, gx_b,
    SAVE: tl.constexpr, PRECISION: tl.constexpr, BB: tl.constexpr, HP: tl.constexpr,
):  # fmt: skip
    """Gates in torch's order i, f, g, o; acts is [N, T, B, 4H], cells [N, T+1, B, H], both only to SAVE."""
    lane = tl.program_id(1).to(tl.int64)
    b = tl.program_id(0) * BB + tl.arange(0, BB)
    j = tl.arange(0, HP)
    k = tl.arange(0, HP)
    in_b = b < B
    ok = in_b[:, None] & (j < H)[None, :]
    state = lane * B * H + (b * H)[:, None] + j[None, :]
    h = tl.load(h0 + state, mask=ok, other=0.0)
    c = tl.load(c0 + state, mask=ok, other=0.0)
    w_ptrs = w + lane * 4 * H * H + (j * H)[None, :] + k[:, None]
    w_ok = (k < H)[:, None] & (j < H)[None, :]
    gx_ptrs = gx + lane * gx_n + (b * gx_b)[:, None] + j[None, :]
    y_ptrs = y + lane * T * B * H + (b * H)[:, None] + j[None, :]
    acts_ptrs = acts + lane * T * B * 4 * H + (b * 4 * H)[:, None] + j[None, :]
    cells_ptrs = cells + lane * (T + 1) * B * H + (b * H)[:, None] + j[None, :]
    if SAVE:
        tl.store(cells_ptrs, c, mask=ok)
    i = tl.zeros((BB, HP), dtype=tl.float32)
    ahead = tl.load(gx_ptrs, mask=ok, other=0.0)
    for turn in range(4 * T):
        t = turn // 4
        gate = turn % 4
        gates = ahead
        after = tl.minimum(turn + 1, 4 * T - 1)
        ahead = tl.load(gx_ptrs + (after // 4 * gx_t + after % 4 * H), mask=ok, other=0.0)
        w_tile = tl.load(w_ptrs + gate * H * H, mask=w_ok, other=0.0)
        z = tl.dot(h, w_tile, gates, input_precision=PRECISION)
        s = tl.sigmoid(tl.where(gate == 2, 2.0 * z, z))
        act = tl.where(gate == 2, 2.0 * s - 1.0, s)
        i = tl.where(gate == 0, act, i)
        c = tl.where(gate == 1, act * c, tl.where(gate == 2, c + i * act, c))
        h = tl.where(gate == 3, act * tanh(c), h)
        tl.store(y_ptrs + t * B * H, h, mask=when(gate == 3, in_b, j, H))
        if SAVE:
            tl.store(acts_ptrs + (t * B * 4 * H + gate * H), act, mask=ok)
            tl.store(cells_ptrs + (t + 1) * B * H, c, mask=when(gate == 2, in_b, j, H))
    tl.store(c_last + state, c, mask=ok)


@triton.jit
def _gru_kernel(
    gx, w, bias, h0, y, acts, hidden_n,
    T, B, H, gx_n, gx_t, gx_b,
    HAS_BIAS: tl.constexpr, SAVE: tl.constexpr, PRECISION: tl.constexpr, BB: tl.constexpr, HP: tl.constexpr,
):  # fmt: skip
    """Gates in torch's order r, z, n; acts is [N, T, B, 3H], hidden_n [N, T, B, H], both only to SAVE."""
    lane = tl.program_id(1).to(tl.int64)
    b = tl.program_id(0) * BB + tl.arange(0, BB)
    j = tl.arange(0, HP)
    k = tl.arange(0, HP)
    in_b = b < B
    in_j = j < H
    ok = in_b[:, None] & in_j[None, :]
    h = tl.load(h0 + lane * B * H + (b * H)[:, None] + j[None, :], mask=ok, other=0.0)
    w_ptrs = w + lane * 3 * H * H + (j * H)[None, :] + k[:, None]
    w_ok = (k < H)[:, None] & in_j[None, :]
    gx_ptrs = gx + lane * gx_n + (b * gx_b)[:, None] + j[None, :]
    y_ptrs = y + lane * T * B * H + (b * H)[:, None] + j[None, :]
    acts_ptrs = acts + lane * T * B * 3 * H + (b * 3 * H)[:, None] + j[None, :]
    hidden_ptrs = hidden_n + lane * T * B * H + (b * H)[:, None] + j[None, :]
    if HAS_BIAS:
        bias_r = tl.load(bias + lane * 3 * H + j, mask=in_j, other=0.0)
        bias_z = tl.load(bias + lane * 3 * H + H + j, mask=in_j, other=0.0)
        bias_n = tl.load(bias + lane * 3 * H + 2 * H + j, mask=in_j, other=0.0)
    r = tl.zeros((BB, HP), dtype=tl.float32)
    z = tl.zeros((BB, HP), dtype=tl.float32)
    ahead = tl.load(gx_ptrs, mask=ok, other=0.0)
    for turn in range(3 * T):
        t = turn // 3
        gate = turn % 3
        gates = ahead
        after = tl.minimum(turn + 1, 3 * T - 1)
        ahead = tl.load(gx_ptrs + (after // 3 * gx_t + after % 3 * H), mask=ok, other=0.0)
        w_tile = tl.load(w_ptrs + gate * H * H, mask=w_ok, other=0.0)
        part = tl.dot(h, w_tile, input_precision=PRECISION)
        if HAS_BIAS:
            part += tl.where(gate == 0, bias_r, tl.where(gate == 1, bias_z, bias_n))[None, :]
        s = tl.sigmoid(gates + part)
        n = tanh(gates + r * part)
        r = tl.where(gate == 0, s, r)
        z = tl.where(gate == 1, s, z)
        h = tl.where(gate == 2, n + z * (h - n), h)
        tl.store(y_ptrs + t * B * H, h, mask=when(gate == 2, in_b, j, H))
        if SAVE:
            tl.store(acts_ptrs + (t * B * 3 * H + gate * H), tl.where(gate == 2, n, s), mask=ok)
            tl.store(hidden_ptrs + t * B * H, part, mask=when(gate == 2, in_b, j, H))


def _lstm_outputs(gates_x: Tensor, w_hh: Tensor, save: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    (N, T, B, _), H = gates_x.shape, w_hh.shape[2]
    shapes = (N, T, B, H), (N, B, H), (N, T, B, 4 * H) if save else (0,), (N, T + 1, B, H) if save else (0,)
    y, c_last, acts, cells = (gates_x.new_empty(shape) for shape in shapes)
    return y, c_last, acts, cells


@torch.library.custom_op("wide_compiler::lane_lstm", mutates_args=())
def _lane_lstm(
    gates_x: Tensor, w_hh: Tensor, h0: Tensor, c0: Tensor, save: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The output, the last c, and for the backward the activated gates and c of all steps."""
    out = _lstm_outputs(gates_x, w_hh, save)
    (N, T, B, _), H = gates_x.shape, w_hh.shape[2]
    if N * B * H == 0 or T == 0:
        out[1].copy_(c0)
        return out
    inputs = gates_x, w_hh.contiguous(), h0.contiguous(), c0.contiguous()
    with on_device(gates_x):
        _lstm_kernel[triton.cdiv(B, ROWS), N](
            *inputs, *out, T, B, H, *gates_x.stride()[:3], SAVE=save, **launch(H)
        )
    return out


@_lane_lstm.register_fake
def _(gates_x, w_hh, h0, c0, save):
    return _lstm_outputs(gates_x, w_hh, save)


def _gru_outputs(gates_x: Tensor, w_hh: Tensor, save: bool) -> tuple[Tensor, Tensor, Tensor]:
    (N, T, B, _), H = gates_x.shape, w_hh.shape[2]
    shapes = (N, T, B, H), (N, T, B, 3 * H) if save else (0,), (N, T, B, H) if save else (0,)
    y, acts, hidden_n = (gates_x.new_empty(shape) for shape in shapes)
    return y, acts, hidden_n


@torch.library.custom_op("wide_compiler::lane_gru", mutates_args=())
def _lane_gru(
    gates_x: Tensor, w_hh: Tensor, b_hh: Tensor | None, h0: Tensor, save: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The output, and for the backward the activated gates and the new gate's hidden part of all steps."""
    out = _gru_outputs(gates_x, w_hh, save)
    (N, T, B, _), H = gates_x.shape, w_hh.shape[2]
    if N * T * B * H == 0:
        return out
    bias = h0 if b_hh is None else b_hh.contiguous()
    with on_device(gates_x):
        _gru_kernel[triton.cdiv(B, ROWS), N](
            gates_x, w_hh.contiguous(), bias, h0.contiguous(), *out, T, B, H, *gates_x.stride()[:3],
            HAS_BIAS=b_hh is not None, SAVE=save, **launch(H),
        )  # fmt: skip
    return out


@_lane_gru.register_fake
def _(gates_x, w_hh, b_hh, h0, save):
    return _gru_outputs(gates_x, w_hh, save)


def _before(h0: Tensor, y: Tensor) -> Tensor:
    """What every step saw as its h: `[N, T, B, H]`."""
    return torch.cat([h0.unsqueeze(1), y[:, :-1]], 1)


def _weight_grad(dgates: Tensor, before: Tensor) -> Tensor:
    return torch.bmm(dgates.flatten(1, 2).mT, before.flatten(1, 2))


def _lstm_setup(ctx, inputs, output):
    _, w_hh, h0, _, _ = inputs
    y, _, acts, cells = output
    ctx.set_materialize_grads(False)  # nobody has a gradient for what is saved; do not fill zeros for it
    ctx.save_for_backward(w_hh, h0, y, acts, cells)


def _lstm_backward(ctx, dy, dc_last, _acts, _cells):
    w_hh, h0, y, acts, cells = ctx.saved_tensors
    if dy is None and dc_last is None:
        return (None,) * 5
    dy = torch.zeros_like(y) if dy is None else dy
    dc_last = torch.zeros_like(cells[:, 0]) if dc_last is None else dc_last
    dgates, dh0, dc0 = lane_lstm_backward(dy, dc_last, w_hh, acts, cells)
    return dgates, _weight_grad(dgates, _before(h0, y)) if ctx.needs_input_grad[1] else None, dh0, dc0, None


_lane_lstm.register_autograd(_lstm_backward, setup_context=_lstm_setup)


def _gru_setup(ctx, inputs, output):
    _, w_hh, _, h0, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(w_hh, h0, *output)


def _gru_backward(ctx, dy, _acts, _hidden_n):
    w_hh, h0, y, acts, hidden_n = ctx.saved_tensors
    if dy is None:
        return (None,) * 5
    before = _before(h0, y)
    dgates_x, dgates_h, dh0 = lane_gru_backward(dy, w_hh, acts, hidden_n, before)
    _, need_weight, need_bias = ctx.needs_input_grad[:3]
    dw = _weight_grad(dgates_h, before) if need_weight else None
    return dgates_x, dw, dgates_h.sum((1, 2)) if need_bias else None, dh0, None


_lane_gru.register_autograd(_gru_backward, setup_context=_gru_setup)


def fits(gates_x: Tensor, hidden: int) -> bool:
    """Whether the kernels take gates `[N, T, B, gates * hidden]`."""
    return (
        hidden <= WIDEST
        and supports(gates_x)
        and gates_x.dtype == torch.float32
        and not torch.is_autocast_enabled(gates_x.device.type)
        and gates_x.numel() * 2 < 2**31
    )


def _rows(gates_x: Tensor) -> Tensor:
    """Any order of lane, time and batch will do; what the kernels read must be contiguous within a row."""
    return gates_x if gates_x.stride(-1) == 1 else gates_x.contiguous()


def _save(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def lane_lstm(gates_x: Tensor, w_hh: Tensor, h0: Tensor, c0: Tensor) -> tuple[Tensor, Tensor]:
    """One LSTM layer of every lane, in one direction.

    Args:
        gates_x: `[N, T, B, 4H]`: x @ w_ih^T + b_ih + b_hh of all steps; gates i, f, g, o as in torch.
        w_hh: `[N, 4H, H]`.
        h0, c0: `[N, B, H]`.

    Returns:
        The output `[N, T, B, H]` (its last step is the last h) and the last c `[N, B, H]`.
    """
    y, c_last, _, _ = _lane_lstm(_rows(gates_x), w_hh, h0, c0, _save(gates_x, w_hh, h0, c0))
    return y, c_last


def lane_gru(gates_x: Tensor, w_hh: Tensor, b_hh: Tensor | None, h0: Tensor) -> Tensor:
    """One GRU layer of every lane, in one direction.

    Args:
        gates_x: `[N, T, B, 3H]`: x @ w_ih^T + b_ih of all steps; gates r, z, n as in torch.
        w_hh: `[N, 3H, H]`.
        b_hh: `[N, 3H]` or None.
        h0: `[N, B, H]`.

    Returns:
        The output `[N, T, B, H]`; its last step is the last h.
    """
    return _lane_gru(_rows(gates_x), w_hh, b_hh, h0, _save(gates_x, w_hh, b_hh, h0))[0]
