"""Triton kernels of the forward of `lane_lstm` and `lane_gru`, over all time steps.

One program runs a lane and a few rows of the batch through the whole sequence, with the state in registers.
It works gate by gate in one loop over (time, gate), so the weights of an iteration are known early and are
prefetched. Tiles are [H, B], hidden features first: a tensor core takes 16 rows but only 8 columns, so a
small batch wastes less of it.

Shapes as in `lane_rnn`.
"""

import triton
import triton.language as tl

from .rnn_parts import halves, product, tanh


@triton.jit
def lstm_kernel(
    gx,
    w,
    h0,
    c0,
    y,
    c_last,
    slopes,
    T,
    B,
    gx_n,
    gx_t,
    gx_b,
    H: tl.constexpr,
    SAVE: tl.constexpr,
    PRECISION: tl.constexpr,
    BB: tl.constexpr,
    HP: tl.constexpr,
):
    """Run an LSTM; gates in torch's order i, f, g, o.

    slopes is [N, T, B, 6H], written only if SAVE. It holds the derivatives of c with respect to the gates i,
    f and g, of h with respect to o, of h with respect to c, and of c with respect to the previous c.
    """
    lane = tl.program_id(1).to(tl.int64)
    b = tl.program_id(0) * BB + tl.arange(0, BB)
    j = tl.arange(0, HP)
    k = tl.arange(0, HP)
    ok = (j < H)[:, None] & (b < B)[None, :]
    at = j[:, None] + (b * H)[None, :]
    upper, rest = halves(tl.load(h0 + lane * B * H + at, mask=ok, other=0.0))
    c = tl.load(c0 + lane * B * H + at, mask=ok, other=0.0)
    w_ptrs = w + lane * 4 * H * H + (j * H)[:, None] + k[None, :]
    w_ok = (j < H)[:, None] & (k < H)[None, :]
    gx_ptrs = gx + lane * gx_n + j[:, None] + (b * gx_b)[None, :]
    y_ptrs = y + lane * T * B * H + at
    slope_ptrs = slopes + lane * T * B * 6 * H + j[:, None] + (b * 6 * H)[None, :]
    i = tl.zeros((HP, BB), dtype=tl.float32)
    f = tl.zeros((HP, BB), dtype=tl.float32)
    z = tl.zeros((HP, BB), dtype=tl.float32)
    ahead = tl.load(gx_ptrs, mask=ok, other=0.0)
    for turn in range(4 * T):
        t = turn // 4
        gate = turn % 4
        gates = ahead
        after = tl.minimum(turn + 1, 4 * T - 1)
        ahead = tl.load(gx_ptrs + (after // 4 * gx_t + after % 4 * H), mask=ok, other=0.0)
        w_tile = tl.load(w_ptrs + gate * H * H, mask=w_ok, other=0.0)
        # The previous iteration's gate is activated while this one's product runs.
        s = tl.sigmoid(tl.where(gate == 3, 2.0 * z, z))
        i = tl.where(gate == 1, s, i)
        f = tl.where(gate == 2, s, f)
        z = product(w_tile, upper, rest, gates, turn, PRECISION)
        if gate == 3:
            g = 2.0 * s - 1.0
            c_before = c
            c = f * c + i * g
            tanh_c = tanh(c)
            o = tl.sigmoid(z)
            h = o * tanh_c
            upper, rest = halves(h)
            tl.store(y_ptrs + t * B * H, h, mask=ok)
            if SAVE:
                row = slope_ptrs + t * B * 6 * H
                tl.store(row, g * i * (1.0 - i), mask=ok)
                tl.store(row + H, c_before * f * (1.0 - f), mask=ok)
                tl.store(row + 2 * H, i * (1.0 - g * g), mask=ok)
                tl.store(row + 3 * H, tanh_c * o * (1.0 - o), mask=ok)
                tl.store(row + 4 * H, o * (1.0 - tanh_c * tanh_c), mask=ok)
                tl.store(row + 5 * H, f, mask=ok)
    tl.store(c_last + lane * B * H + at, c, mask=ok)


@triton.jit
def gru_kernel(
    gx,
    w,
    bias,
    h0,
    y,
    slopes,
    T,
    B,
    gx_n,
    gx_t,
    gx_b,
    HAS_BIAS: tl.constexpr,
    SAVE: tl.constexpr,
    H: tl.constexpr,
    PRECISION: tl.constexpr,
    BB: tl.constexpr,
    HP: tl.constexpr,
):
    """Run a GRU; gates in torch's order r, z, n.

    slopes is [N, T, B, 5H], written only if SAVE. It holds the derivatives of h with respect to each gate's
    hidden part, to the previous h, and to n's input part.
    """
    lane = tl.program_id(1).to(tl.int64)
    b = tl.program_id(0) * BB + tl.arange(0, BB)
    j = tl.arange(0, HP)
    k = tl.arange(0, HP)
    in_j = j < H
    ok = in_j[:, None] & (b < B)[None, :]
    at = j[:, None] + (b * H)[None, :]
    h = tl.load(h0 + lane * B * H + at, mask=ok, other=0.0)
    upper, rest = halves(h)
    w_ptrs = w + lane * 3 * H * H + (j * H)[:, None] + k[None, :]
    w_ok = in_j[:, None] & (k < H)[None, :]
    gx_ptrs = gx + lane * gx_n + j[:, None] + (b * gx_b)[None, :]
    y_ptrs = y + lane * T * B * H + at
    slope_ptrs = slopes + lane * T * B * 5 * H + j[:, None] + (b * 5 * H)[None, :]
    if HAS_BIAS:
        bias_r = tl.load(bias + lane * 3 * H + j, mask=in_j, other=0.0)
        bias_z = tl.load(bias + lane * 3 * H + H + j, mask=in_j, other=0.0)
        bias_n = tl.load(bias + lane * 3 * H + 2 * H + j, mask=in_j, other=0.0)
    r = tl.zeros((HP, BB), dtype=tl.float32)
    part = tl.zeros((HP, BB), dtype=tl.float32)
    ahead = tl.load(gx_ptrs, mask=ok, other=0.0)
    for turn in range(3 * T):
        t = turn // 3
        gate = turn % 3
        gates = ahead
        after = tl.minimum(turn + 1, 3 * T - 1)
        ahead = tl.load(gx_ptrs + (after // 3 * gx_t + after % 3 * H), mask=ok, other=0.0)
        w_tile = tl.load(w_ptrs + gate * H * H, mask=w_ok, other=0.0)
        # The previous iteration's gate, as in the LSTM.
        s = tl.sigmoid(part)
        r = tl.where(gate == 1, s, r)
        start = tl.where(gate == 2, 0.0, gates)  # n's input part is added after r has scaled the hidden part
        if HAS_BIAS:
            start += tl.where(gate == 0, bias_r, tl.where(gate == 1, bias_z, bias_n))[:, None]
        part = product(w_tile, upper, rest, start, turn, PRECISION)
        if gate == 2:
            n = tanh(gates + r * part)
            if SAVE:
                row = slope_ptrs + t * B * 5 * H
                of_n = (1.0 - s) * (1.0 - n * n)
                tl.store(row, of_n * part * r * (1.0 - r), mask=ok)
                tl.store(row + H, (h - n) * s * (1.0 - s), mask=ok)
                tl.store(row + 2 * H, of_n * r, mask=ok)
                tl.store(row + 3 * H, s, mask=ok)
                tl.store(row + 4 * H, of_n, mask=ok)
            h = n + s * (h - n)
            upper, rest = halves(h)
            tl.store(y_ptrs + t * B * H, h, mask=ok)
