"""Triton kernel of the forward of `lane_chain`: a lane of a small MLP, with the values for its gradient."""

from itertools import pairwise

import triton
import triton.language as tl

from ._triton import interpreting
from .activations import activate
from .chain_tiles import load, load_weight, store, warps_fit
from .operands import dot
from .tuned import tuned

SMOOTH = ("gelu", "gelu_tanh", "silu")  # derivative needs the pre-activation, not only the result

# (BB, STAGES, warps): BB batch rows per program. With three stages a program loops over lanes and prefetches
# the next lane's weights. The autotuner times those kept by `_prune`.
TILES = (
    *((16, 1, 4), (16, 1, 8), (32, 1, 4), (32, 1, 8), (32, 3, 8), (64, 1, 4)),
    *((16, 1, 2), (32, 1, 2), (64, 1, 2)),
)
CONFIGS = [triton.Config({"BB": bb, "STAGES": stages}, num_warps=warps) for bb, stages, warps in TILES]
if interpreting():  # no GPU to time them on
    CONFIGS = CONFIGS[:1]


def _prune(
    configs: list[triton.Config], named: dict, PADS: tuple, PRECISION: str, **_
) -> list[triton.Config]:
    """Keep tiles with enough rows per weight load and enough programs for all multiprocessors."""
    lanes, batch, sms = named["N_KEY"], max(named["B_KEY"], 16), named["SMS"]
    shared = 4 * sum(i * o for i, o in pairwise(PADS))

    def keep(config: triton.Config) -> bool:
        bb, stages = config.kwargs["BB"], config.kwargs["STAGES"]
        programs = lanes * triton.cdiv(batch, bb)
        if bb < min(batch, 32) and programs > 4 * sms:
            return False
        if bb == 64 and (programs < 2 * sms or max(PADS) > 64):
            return False
        return bb <= batch and (stages == 1 or (programs > 2 * sms and shared <= 64 * 1024))

    return [c for c in configs if keep(c) and warps_fit(c, PADS, PRECISION)]


def _held(args: dict) -> int:
    """Return how many layers' weights a program prefetches: as many as 128 registers per thread hold."""
    sizes = [i * o for i, o in pairwise(args["PADS"])]
    return max(1, min(len(sizes), 128 * 32 * args["num_warps"] // max(sizes)))


@triton.jit
def _layer(ws, bs, n, l: tl.constexpr, DIMS: tl.constexpr, PADS: tl.constexpr, BIAS: tl.constexpr):
    """Load lane n's weight and bias of layer l."""
    o = tl.arange(0, PADS[l + 1])
    bias = tl.zeros(o.shape, tl.float32)
    if BIAS[l]:
        bias = tl.load(bs[l] + n * DIMS[l + 1] + o, mask=o < DIMS[l + 1], other=0.0)
    return load_weight(ws, n, l, DIMS, PADS), bias


@triton.jit
def _slope(x, ACT: tl.constexpr):
    """Return the derivative at x of an activation in `SMOOTH`."""
    if ACT == "silu":
        p = tl.sigmoid(x)
        s = p * (1.0 + x * (1.0 - p))
    elif ACT == "gelu":
        s = 0.5 * (1.0 + tl.erf(x * 0.7071067811865476)) + x * 0.3989422804014327 * tl.exp(-0.5 * x * x)
    else:
        tl.static_assert(ACT == "gelu_tanh", "not a smooth activation")
        p = tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
        s = p + x * p * (1.0 - p) * 1.5957691216057308 * (1.0 + 0.134145 * x * x)
    return s


@triton.jit
def _forward_tile(
    x,
    ws,
    bs,
    y,
    saved,
    n,
    b,
    x_b,
    x_i,
    B,
    SB,
    DIMS: tl.constexpr,
    PADS: tl.constexpr,
    BIAS: tl.constexpr,
    ACTS: tl.constexpr,
    KEPT: tl.constexpr,
    SLOPES: tl.constexpr,
    ROWS: tl.constexpr,
    KEEP: tl.constexpr,
    EVEN: tl.constexpr,
    HELD: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Run rows b of lane n through all layers. The loop is unrolled because each layer has its own shapes."""
    L: tl.constexpr = len(ws)
    kept = saved + n * (ROWS * SB)
    i = tl.arange(0, PADS[0])
    h = tl.trans(load(x, b, i, B, DIMS[0], x_b, x_i, EVEN, DIMS[0] == PADS[0]))
    held = ()
    for l in tl.static_range(HELD):
        held = held + (_layer(ws, bs, n, l, DIMS, PADS, BIAS),)  # type: ignore  # noqa: RUF005
    for l in tl.static_range(L):
        o = tl.arange(0, PADS[l + 1])
        w, bias = held[0]  # type: ignore
        held = held[1:]
        z = dot(w, h, PRECISION)
        if l + HELD < L:
            held = held + (_layer(ws, bs, n, l + HELD, DIMS, PADS, BIAS),)  # type: ignore  # noqa: RUF005
        z += bias[:, None]
        h = activate(z, tl.constexpr(ACTS[l]))
        if KEEP and KEPT[l] >= 0:
            store(kept + KEPT[l] * SB, h, o, b, DIMS[l + 1], SB, DIMS[l + 1] == PADS[l + 1], EVEN)
        if KEEP and SLOPES[l] >= 0 and SLOPES[l] != KEPT[l]:
            s = _slope(z, tl.constexpr(ACTS[l]))
            store(kept + SLOPES[l] * SB, s, o, b, DIMS[l + 1], SB, DIMS[l + 1] == PADS[l + 1], EVEN)
    o = tl.arange(0, PADS[L])
    store(y + n * (B * DIMS[L]), tl.trans(h), b, o, B, DIMS[L], EVEN, DIMS[L] == PADS[L])


@tuned(
    CONFIGS,
    key=["N_KEY", "B_KEY", "PADS", "PRECISION"],
    prune=_prune,
)
@triton.heuristics({"EVEN": lambda args: args["B"] % args["BB"] == 0, "HELD": _held})
@triton.jit(do_not_specialize=["N_KEY", "B_KEY", "SMS"])
def forward_kernel(
    x,
    ws,
    bs,
    y,
    saved,
    x_n,
    x_b,
    x_i,
    N,
    B,
    SB,
    N_KEY,
    B_KEY,
    SMS,
    DIMS: tl.constexpr,
    PADS: tl.constexpr,
    BIAS: tl.constexpr,
    ACTS: tl.constexpr,
    KEPT: tl.constexpr,
    SLOPES: tl.constexpr,
    ROWS: tl.constexpr,
    KEEP: tl.constexpr,
    PRECISION: tl.constexpr,
    EVEN: tl.constexpr,
    HELD: tl.constexpr,
    BB: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Run one batch tile of one lane through all layers; with STAGES > 1 each program loops over tiles."""
    tiles = tl.cdiv(B, BB)
    if STAGES == 1:
        n = (tl.program_id(0) // tiles).to(tl.int64)
        b = tl.program_id(0) % tiles * BB + tl.arange(0, BB)
        _forward_tile(
            x + n * x_n, ws, bs, y, saved, n, b, x_b, x_i, B, SB, DIMS, PADS, BIAS, ACTS, KEPT, SLOPES,
            ROWS, KEEP, EVEN, HELD, PRECISION,
        )  # fmt: skip
    else:
        for tile in tl.range(tl.program_id(0), N * tiles, tl.num_programs(0), num_stages=STAGES):
            n = (tile // tiles).to(tl.int64)
            b = tile % tiles * BB + tl.arange(0, BB)
            _forward_tile(
                x + n * x_n, ws, bs, y, saved, n, b, x_b, x_i, B, SB, DIMS, PADS, BIAS, ACTS, KEPT, SLOPES,
                ROWS, KEEP, EVEN, HELD, PRECISION,
            )  # fmt: skip
