"""The gradients of `lane_lstm` and `lane_gru`: back through all time steps in one Triton kernel.

As in `rnn`, one loop over (time, gate), time and gates backwards; a turn computes one gate's gradient, the
gradient of h or c times a slope that the forward has saved, and sends it through that gate's weight. The
gradient of the weight itself is one product over all steps, left to the caller.

Shapes as in `rnn`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ._triton import next_pow2, on_device, precision
from .operands import rounded

MULTIPROCESSORS = 132  # of an H200
SHARED = 227 * 1024  # bytes of shared memory that one of its programs can have


def _stages(width: int, block: int, device: torch.device) -> int:
    """How many turns of weights to have on the way: as many as fit into shared memory."""
    room = SHARED
    if device.type == "cuda":
        room = getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", SHARED)
    small = 4 * width * block  # a tile of a gate; one comes along with every weight, some are for exchange
    return max(min(1 + (room - 3 * small) // (4 * width * width + small), 4), 1)


def launch(hidden: int, rows: int, lanes: int, device: torch.device) -> dict[str, object]:
    """The settings that every recurrent kernel is started with; BB is how many rows a program takes.

    Few rows, so that every multiprocessor has a program; more where there are programs enough, as each
    reads the weights anew.
    """
    few = 8  # the fewest a tensor core takes
    block = 2 * few if rows > few and lanes * triton.cdiv(rows, few) > MULTIPROCESSORS else few
    width = max(next_pow2(hidden), 16)
    return {
        "H": hidden,
        "PRECISION": precision("matmul"),
        "BB": block,
        "HP": width,
        "num_warps": min(width // 16, 8),
        "num_stages": _stages(width, block, device),
    }


@triton.jit
def tanh(x):
    """Exact to float32's rounding of 1: a state or a gate is of that size."""
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def halves(x):
    """x as what a tensor core sees of it, the upper 19 bits, and the rest."""
    upper = (x.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)
    return upper, x - upper


@triton.jit
def product(w, upper, rest, start, turn, PRECISION: tl.constexpr):
    """start + w @ v for a vector per batch row, v given as its halves.

    Three products that do not wait for each other: triton's own "tf32x3" is one long chain of them.
    """
    w_upper, w_rest = halves(w)
    if PRECISION == "tf32":  # without the rest of it
        w_upper = rounded(w, PRECISION)
    # Zeros that triton does not see are zeros; else it would make a chain of the products.
    nothing = tl.full(start.shape, tl.where(turn < 0, 1.0, 0.0), tl.float32)
    small = tl.dot(w_upper, rest, nothing, input_precision="tf32")
    if PRECISION == "tf32x3":
        small += tl.dot(w_rest, upper, nothing, input_precision="tf32")
    return tl.dot(w_upper, upper, start, input_precision="tf32") + small


@triton.jit
def _lstm_kernel(
    dy, dc_last, w, slopes, dgates, dh0, dc0,
    T, B,
    H: tl.constexpr, PRECISION: tl.constexpr, BB: tl.constexpr, HP: tl.constexpr,
):  # fmt: skip
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
        # These two are wanted after the product only, which takes longer than to load them.
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
    dy, w, slopes, dgates_x, dgates_h, dh0,
    T, B,
    H: tl.constexpr, PRECISION: tl.constexpr, BB: tl.constexpr, HP: tl.constexpr,
):  # fmt: skip
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
        # As in the LSTM, for after the product: h's own slope and that of n's input part.
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
    """The gradients of the gates `[N, T, B, 4H]`, of h0 and of c0 `[N, B, H]`."""
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
    """The gradients of the gates' input and hidden parts `[N, T, B, 3H]`, and of h0 `[N, B, H]`."""
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
