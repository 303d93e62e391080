"""Triton kernel of the backward of `lane_chain`: all gradients of one lane of a small MLP."""

from itertools import pairwise

import triton
import triton.language as tl

from ._triton import interpreting
from .chain_tiles import load, load_weight, store, warps_fit
from .operands import dot
from .tuned import tuned

# (PARTS, warps): PARTS programs per lane, each of which stores the gradients of its share of the layers.
SHARES = ((1, 4), (1, 8), (4, 4), (4, 8), (1, 2), (4, 2))
CONFIGS = [triton.Config({"PARTS": parts}, num_warps=warps) for parts, warps in SHARES]
if interpreting():  # no GPU to time them on
    CONFIGS = CONFIGS[:1]


def _prune(
    configs: list[triton.Config], named: dict, PADS: tuple, PRECISION: str, **_
) -> list[triton.Config]:
    """Use several parts only for long chains with few lanes."""
    few = len(PADS) > 3 and 2 * named["N_KEY"] <= named["SMS"]
    return [c for c in configs if (few or c.kwargs["PARTS"] == 1) and warps_fit(c, PADS, PRECISION)]


def _early(args: dict) -> bool:
    """Return whether the registers can hold the operands of two layers at once."""
    pads = args["PADS"]
    held = 3 * max(i * o for i, o in pairwise(pads)) + 3 * max(pads) * args["BB"]
    return held <= 160 * 32 * args["num_warps"]


@triton.jit
def _through(g, s, ACT: tl.constexpr):
    """Return the gradient before an activation; s is its result, or for `SMOOTH` ones its derivative."""
    if ACT == "relu":
        g = tl.where(s <= 0.0, 0.0, g)
    elif ACT == "tanh":
        g = g * (1.0 - s * s)
    elif ACT == "sigmoid":
        g = g * s * (1.0 - s)
    else:
        g = g * s
    return g


@triton.jit
def _operands(
    ws,
    x,
    kept,
    n,
    b,
    x_b,
    x_i,
    B,
    SB,
    l: tl.constexpr,
    DIMS: tl.constexpr,
    PADS: tl.constexpr,
    KEPT: tl.constexpr,
    NEED_DX: tl.constexpr,
    EVEN: tl.constexpr,
):
    """Load layer l's input (`[B, I]` for the first layer, else saved as `[I, B]`) and its weight."""
    i = tl.arange(0, PADS[l])
    if l == 0:
        h = load(x, b, i, B, DIMS[0], x_b, x_i, EVEN, DIMS[0] == PADS[0])
    else:
        h = load(kept + KEPT[l - 1] * SB, i, b, DIMS[l], SB, SB, 1, DIMS[l] == PADS[l], EVEN)
    w = h
    if l > 0 or NEED_DX:
        w = load_weight(ws, n, l, DIMS, PADS)
    return h, w


@triton.jit
def _parameter_grads(dws, dbs, g, h, n, l: tl.constexpr, DIMS: tl.constexpr, PADS: tl.constexpr,
                     BIAS: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """Store lane n's gradients of layer l from g `[O, B]` and the input h from `_operands`."""
    o = tl.arange(0, PADS[l + 1])
    i = tl.arange(0, PADS[l])
    if BIAS[l]:
        tl.store(dbs[l] + n * DIMS[l + 1] + o, tl.sum(g, 1), mask=o < DIMS[l + 1])
    # Rows past the batch add nothing: their g is zero. The right operand of each product has contiguous
    # columns, as tensor cores need in float32.
    if l == 0:
        dw = tl.trans(dot(tl.trans(h), tl.trans(g), PRECISION))
    else:
        dw = dot(g, tl.trans(h), PRECISION)
    at = dws[l] + n * (DIMS[l] * DIMS[l + 1])
    store(at, dw, o, i, DIMS[l + 1], DIMS[l], DIMS[l + 1] == PADS[l + 1], DIMS[l] == PADS[l])


@tuned(
    CONFIGS,
    key=["N_KEY", "PADS", "BB", "PRECISION"],
    prune=_prune,
)
@triton.heuristics({"EVEN": lambda args: args["B"] == args["BB"], "EARLY": _early})
@triton.jit(do_not_specialize=["N_KEY", "SMS"])
def backward_kernel(
    dy,
    x,
    ws,
    saved,
    dx,
    dws,
    dbs,
    dy_n,
    dy_b,
    dy_o,
    x_n,
    x_b,
    x_i,
    B,
    SB,
    N_KEY,
    SMS,
    DIMS: tl.constexpr,
    PADS: tl.constexpr,
    BIAS: tl.constexpr,
    ACTS: tl.constexpr,
    KEPT: tl.constexpr,
    SLOPES: tl.constexpr,
    ROWS: tl.constexpr,
    NEED_DX: tl.constexpr,
    PRECISION: tl.constexpr,
    EVEN: tl.constexpr,
    EARLY: tl.constexpr,
    BB: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Compute the gradients of one lane; its whole batch is one tile, so each dw is one product."""
    L: tl.constexpr = len(ws)
    n = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    x += n * x_n
    kept = saved + n * (ROWS * SB)
    b = tl.arange(0, BB)
    o = tl.arange(0, PADS[L])
    g = load(dy + n * dy_n, b, o, B, DIMS[L], dy_b, dy_o, EVEN, DIMS[L] == PADS[L])
    g = tl.trans(g.to(tl.float32))
    s = g
    if SLOPES[L - 1] >= 0:
        s = load(kept + SLOPES[L - 1] * SB, o, b, DIMS[L], SB, SB, 1, DIMS[L] == PADS[L], EVEN)
    h, w = _operands(ws, x, kept, n, b, x_b, x_i, B, SB, L - 1, DIMS, PADS, KEPT, NEED_DX, EVEN)
    for l in tl.static_range(L - 1, -1, -1):
        if l > 0 and EARLY:  # the loads overlap with this layer's products
            ahead = _operands(ws, x, kept, n, b, x_b, x_i, B, SB, l - 1, DIMS, PADS, KEPT, NEED_DX, EVEN)
        if SLOPES[l] >= 0:
            g = _through(g, s, tl.constexpr(ACTS[l]))
        if l > 0:
            s = h
            if SLOPES[l - 1] >= 0 and SLOPES[l - 1] != KEPT[l - 1]:
                i = tl.arange(0, PADS[l])
                s = load(kept + SLOPES[l - 1] * SB, i, b, DIMS[l], SB, SB, 1, DIMS[l] == PADS[l], EVEN)
        if PARTS == 1:  # noqa: SIM114 (`or` would be asked at run time)
            _parameter_grads(dws, dbs, g, h, n, l, DIMS, PADS, BIAS, PRECISION)
        elif l % PARTS == part:
            _parameter_grads(dws, dbs, g, h, n, l, DIMS, PADS, BIAS, PRECISION)
        if l > 0 or NEED_DX:
            g = dot(tl.trans(w), g, PRECISION)
        if l > 0 and not EARLY:
            ahead = _operands(ws, x, kept, n, b, x_b, x_i, B, SB, l - 1, DIMS, PADS, KEPT, NEED_DX, EVEN)
        if l > 0:
            h, w = ahead
    if NEED_DX:
        i = tl.arange(0, PADS[0])
        if part == 0:
            store(dx + n * (B * DIMS[0]), tl.trans(g), b, i, B, DIMS[0], EVEN, DIMS[0] == PADS[0])
