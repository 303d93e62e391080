"""LSTM and GRU layers of N lanes, all time steps in one Triton kernel.

Kernel launches dominate a step of a recurrent layer. Here all steps are one launch (`rnn_forward`), and so is
their gradient (`rnn_backward`). Import this module only if `_triton.available()`: it needs triton.

Shapes: N lanes, T time steps, B batch, H hidden features. float32 only.
"""

import torch
import triton
from torch import Tensor

from ._triton import on_device, supports
from .rnn_backward import lane_gru_backward, lane_lstm_backward
from .rnn_forward import gru_kernel, lstm_kernel
from .rnn_parts import launch

WIDEST = 128  # shared memory holds three stages of a 128 x 128 float32 weight


def _lstm_outputs(gates_x: Tensor, w_hh: Tensor, save: bool) -> tuple[Tensor, Tensor, Tensor]:
    (N, T, B, _), H = gates_x.shape, w_hh.shape[2]
    shapes = (N, T, B, H), (N, B, H), (N, T, B, 6 * H) if save else (0,)
    y, c_last, slopes = (gates_x.new_empty(shape) for shape in shapes)
    return y, c_last, slopes


@torch.library.custom_op("wide_compiler::lane_lstm", mutates_args=())
def _lane_lstm(
    gates_x: Tensor, w_hh: Tensor, h0: Tensor, c0: Tensor, save: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output, the last c, and if `save` the derivatives of all steps for the backward."""
    out = _lstm_outputs(gates_x, w_hh, save)
    (N, T, B, _), H = gates_x.shape, w_hh.shape[2]
    if N * B * H == 0 or T == 0:
        out[1].copy_(c0)
        return out
    inputs = gates_x, w_hh.contiguous(), h0.contiguous(), c0.contiguous(), *out
    settings = launch(H, B, N, gates_x.device)
    with on_device(gates_x):
        kernel = lstm_kernel[triton.cdiv(B, settings["BB"]), N]
        kernel(*inputs, T, B, *gates_x.stride()[:3], SAVE=save, **settings)
    return out


@_lane_lstm.register_fake
def _(gates_x, w_hh, h0, c0, save):
    return _lstm_outputs(gates_x, w_hh, save)


def _gru_outputs(gates_x: Tensor, w_hh: Tensor, save: bool) -> tuple[Tensor, Tensor]:
    (N, T, B, _), H = gates_x.shape, w_hh.shape[2]
    return gates_x.new_empty(N, T, B, H), gates_x.new_empty((N, T, B, 5 * H) if save else (0,))


@torch.library.custom_op("wide_compiler::lane_gru", mutates_args=())
def _lane_gru(
    gates_x: Tensor, w_hh: Tensor, b_hh: Tensor | None, h0: Tensor, save: bool
) -> tuple[Tensor, Tensor]:
    """Return the output, and if `save` the derivatives of all steps for the backward."""
    out = _gru_outputs(gates_x, w_hh, save)
    (N, T, B, _), H = gates_x.shape, w_hh.shape[2]
    if N * T * B * H == 0:
        return out
    bias = h0 if b_hh is None else b_hh.contiguous()
    settings = launch(H, B, N, gates_x.device)
    with on_device(gates_x):
        gru_kernel[triton.cdiv(B, settings["BB"]), N](
            gates_x, w_hh.contiguous(), bias, h0.contiguous(), *out, T, B, *gates_x.stride()[:3],
            HAS_BIAS=b_hh is not None, SAVE=save, **settings,
        )  # fmt: skip
    return out


@_lane_gru.register_fake
def _(gates_x, w_hh, b_hh, h0, save):
    return _gru_outputs(gates_x, w_hh, save)


def _before(h0: Tensor, y: Tensor) -> Tensor:
    """Return the h that each step read: `[N, T, B, H]`."""
    return torch.cat([h0.unsqueeze(1), y[:, :-1]], 1)


def _weight_grad(dgates: Tensor, before: Tensor) -> Tensor:
    return torch.bmm(dgates.flatten(1, 2).mT, before.flatten(1, 2))


def _lstm_setup(ctx, inputs, output):
    _, w_hh, h0, _, _ = inputs
    y, _, slopes = output
    ctx.set_materialize_grads(False)  # `slopes` never has a gradient; do not create zeros for it
    ctx.save_for_backward(w_hh, h0, y, slopes)


def _lstm_backward(ctx, dy, dc_last, _slopes):
    w_hh, h0, y, slopes = ctx.saved_tensors
    if dy is None and dc_last is None:
        return (None,) * 5
    dy = torch.zeros_like(y) if dy is None else dy
    dc_last = torch.zeros_like(h0) if dc_last is None else dc_last
    dgates, dh0, dc0 = lane_lstm_backward(dy, dc_last, w_hh, slopes)
    return dgates, _weight_grad(dgates, _before(h0, y)) if ctx.needs_input_grad[1] else None, dh0, dc0, None


_lane_lstm.register_autograd(_lstm_backward, setup_context=_lstm_setup)


def _gru_setup(ctx, inputs, output):
    _, w_hh, _, h0, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(w_hh, h0, *output)


def _gru_backward(ctx, dy, _slopes):
    w_hh, h0, y, slopes = ctx.saved_tensors
    if dy is None:
        return (None,) * 5
    dgates_x, dgates_h, dh0 = lane_gru_backward(dy, w_hh, slopes)
    _, need_weight, need_bias = ctx.needs_input_grad[:3]
    dw = _weight_grad(dgates_h, _before(h0, y)) if need_weight else None
    return dgates_x, dw, dgates_h.sum((1, 2)) if need_bias else None, dh0, None


_lane_gru.register_autograd(_gru_backward, setup_context=_gru_setup)


def fits(gates_x: Tensor, hidden: int) -> bool:
    """Return whether the kernels support gates `[N, T, B, gates * hidden]`."""
    return (
        hidden <= WIDEST
        and supports(gates_x)
        and gates_x.dtype == torch.float32
        and not torch.is_autocast_enabled(gates_x.device.type)
        and gates_x.numel() * 2 < 2**31
    )


def _rows(gates_x: Tensor) -> Tensor:
    """Return the gates with contiguous rows; lane, time and batch may have any order."""
    return gates_x if gates_x.stride(-1) == 1 else gates_x.contiguous()


def _save(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def lane_lstm(gates_x: Tensor, w_hh: Tensor, h0: Tensor, c0: Tensor) -> tuple[Tensor, Tensor]:
    """Run one LSTM layer of every lane, in one direction.

    `gates_x` is x @ w_ih^T + b_ih + b_hh of all steps, `[N, T, B, 4H]`, gates i, f, g, o as in torch; w_hh is
    `[N, 4H, H]`, h0 and c0 are `[N, B, H]`. Returns the output `[N, T, B, H]` (its last step is the last h)
    and the last c.
    """
    y, c_last, _ = _lane_lstm(_rows(gates_x), w_hh, h0, c0, _save(gates_x, w_hh, h0, c0))
    return y, c_last


def lane_gru(gates_x: Tensor, w_hh: Tensor, b_hh: Tensor | None, h0: Tensor) -> Tensor:
    """Run one GRU layer of every lane, in one direction.

    `gates_x` is x @ w_ih^T + b_ih of all steps, `[N, T, B, 3H]`, gates r, z, n as in torch; w_hh is
    `[N, 3H, H]`, b_hh `[N, 3H]` or None, h0 `[N, B, H]`. Returns the output `[N, T, B, H]`; its last step is
    the last h.
    """
    return _lane_gru(_rows(gates_x), w_hh, b_hh, h0, _save(gates_x, w_hh, b_hh, h0))[0]
