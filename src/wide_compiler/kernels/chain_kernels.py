"""The Triton kernels of `chain`: a whole small MLP of one lane, forward and backward.

Tiles are transposed, `[features, batch]`: a weight is then the left side of its product, which tensor cores
want 64 rows tall, and goes from memory to registers as it lies.
"""

from __future__ import annotations

from itertools import pairwise

import triton
import triton.language as tl

from ._triton import briefly, interpreting
from .activations import activate
from .operands import rounded

SMOOTH = ("gelu", "gelu_tanh", "silu")  # their slope needs the value before them; the others' does not

# (BB, STAGES, warps): BB batch rows per program. With three stages a program walks over lanes and fetches
# the next one's weights while it computes. The autotuner times those that `_prune_forward` leaves.
TILES = ((16, 1, 4), (16, 1, 8), (32, 1, 4), (32, 1, 8), (32, 3, 8), (64, 1, 4))
# (PARTS, warps): PARTS programs per lane, each of which stores the gradients of its share of the layers.
SHARES = ((1, 4), (1, 8), (4, 4), (4, 8))
FORWARD = [triton.Config({"BB": bb, "STAGES": stages}, num_warps=warps) for bb, stages, warps in TILES]
BACKWARD = [triton.Config({"PARTS": parts}, num_warps=warps) for parts, warps in SHARES]
if interpreting():  # there is no GPU to time them on
    FORWARD, BACKWARD = FORWARD[:1], BACKWARD[:1]


def _warps(config: triton.Config, PADS: tuple) -> bool:
    """Eight warps work on 128 rows of a weight at once; four hold at most 64 x 128 of one in registers."""
    return max(PADS) == 128 if config.num_warps == 8 else max(i * o for i, o in pairwise(PADS)) <= 64 * 128


def _prune_forward(configs: list[triton.Config], named: dict, PADS: tuple, **_) -> list[triton.Config]:
    """Rows enough to be worth a weight's trip, programs enough for all multiprocessors."""
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

    return [c for c in configs if keep(c) and _warps(c, PADS)]


def _prune_backward(configs: list[triton.Config], named: dict, PADS: tuple, **_) -> list[triton.Config]:
    """Parts for long chains of few lanes."""
    few = len(PADS) > 3 and 2 * named["N_KEY"] <= named["SMS"]
    return [c for c in configs if (few or c.kwargs["PARTS"] == 1) and _warps(c, PADS)]


def _held(args: dict) -> int:
    """How many layers' weights a program asks for ahead: what 128 registers of a thread hold."""
    sizes = [i * o for i, o in pairwise(args["PADS"])]
    return max(1, min(len(sizes), 128 * 32 * args["num_warps"] // max(sizes)))


def _early(args: dict) -> bool:
    """Whether the gradient kernel's registers hold what two layers need at once."""
    pads = args["PADS"]
    held = 3 * max(i * o for i, o in pairwise(pads)) + 3 * max(pads) * args["BB"]
    return held <= 160 * 32 * args["num_warps"]


@triton.jit
def _inside(r, c, R, C, FULL_R: tl.constexpr, FULL_C: tl.constexpr):
    """Which elements (r, c) lie in R x C. Constant, so that no mask is left, if all do on both axes."""
    inside = tl.full((r.shape[0], c.shape[0]), True, tl.int1)
    if not FULL_R:
        inside = inside & (r[:, None] < R)
    if not FULL_C:
        inside = inside & (c[None, :] < C)
    return inside


@triton.jit
def _load(ptr, r, c, R, C, r_step, c_step, FULL_R: tl.constexpr, FULL_C: tl.constexpr):
    """Elements (r, c) of the R x C matrix at ptr, zeros outside of it."""
    ptrs = ptr + (r[:, None] * r_step + c[None, :] * c_step)
    return tl.load(ptrs, mask=_inside(r, c, R, C, FULL_R, FULL_C), other=0.0)


@triton.jit
def _store(ptr, tile, r, c, R, C, FULL_R: tl.constexpr, FULL_C: tl.constexpr):
    tl.store(ptr + (r[:, None] * C + c[None, :]), tile, mask=_inside(r, c, R, C, FULL_R, FULL_C))


@triton.jit
def _weight(ws, n, l: tl.constexpr, DIMS: tl.constexpr, PADS: tl.constexpr):
    """Lane n's weight of layer l as a padded `[O, I]` tile."""
    o = tl.arange(0, PADS[l + 1])
    i = tl.arange(0, PADS[l])
    at = ws[l] + n * (DIMS[l] * DIMS[l + 1])
    return _load(at, o, i, DIMS[l + 1], DIMS[l], DIMS[l], 1, DIMS[l + 1] == PADS[l + 1], DIMS[l] == PADS[l])


@triton.jit
def _layer(ws, bs, n, l: tl.constexpr, DIMS: tl.constexpr, PADS: tl.constexpr, BIAS: tl.constexpr):
    """Lane n's weight and bias of layer l."""
    o = tl.arange(0, PADS[l + 1])
    bias = tl.zeros(o.shape, tl.float32)
    if BIAS[l]:
        bias = tl.load(bs[l] + n * DIMS[l + 1] + o, mask=o < DIMS[l + 1], other=0.0)
    return _weight(ws, n, l, DIMS, PADS), bias


@triton.jit
def _slope(x, ACT: tl.constexpr):
    """The derivative at x of an activation of `SMOOTH`."""
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
def _through(g, s, ACT: tl.constexpr):
    """The gradient before an activation from the one after it; s: its result, or a smooth one's slope."""
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
def _forward_tile(
    x, ws, bs, y, saved, n, b, x_b, x_i, B, SB,
    DIMS: tl.constexpr, PADS: tl.constexpr, BIAS: tl.constexpr, ACTS: tl.constexpr,
    KEPT: tl.constexpr, SLOPES: tl.constexpr, ROWS: tl.constexpr, KEEP: tl.constexpr,
    EVEN: tl.constexpr, HELD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Rows b of lane n through every layer. The loop is unrolled: each layer has its own shapes."""
    L: tl.constexpr = len(ws)
    kept = saved + n * (ROWS * SB)
    i = tl.arange(0, PADS[0])
    h = tl.trans(_load(x, b, i, B, DIMS[0], x_b, x_i, EVEN, DIMS[0] == PADS[0]))
    held = ()
    for l in tl.static_range(HELD):
        held = held + (_layer(ws, bs, n, l, DIMS, PADS, BIAS),)  # type: ignore  # noqa: RUF005
    for l in tl.static_range(L):
        o = tl.arange(0, PADS[l + 1])
        w, bias = held[0]  # type: ignore
        held = held[1:]
        z = tl.dot(rounded(w, PRECISION), rounded(h, PRECISION), input_precision=PRECISION)
        if l + HELD < L:
            held = held + (_layer(ws, bs, n, l + HELD, DIMS, PADS, BIAS),)  # type: ignore  # noqa: RUF005
        z += bias[:, None]
        h = activate(z, tl.constexpr(ACTS[l]))
        if KEEP and KEPT[l] >= 0:
            _store(kept + KEPT[l] * SB, h, o, b, DIMS[l + 1], SB, DIMS[l + 1] == PADS[l + 1], EVEN)
        if KEEP and SLOPES[l] >= 0 and SLOPES[l] != KEPT[l]:
            s = _slope(z, tl.constexpr(ACTS[l]))
            _store(kept + SLOPES[l] * SB, s, o, b, DIMS[l + 1], SB, DIMS[l + 1] == PADS[l + 1], EVEN)
    o = tl.arange(0, PADS[L])
    _store(y + n * (B * DIMS[L]), tl.trans(h), b, o, B, DIMS[L], EVEN, DIMS[L] == PADS[L])


@triton.autotune(
    FORWARD,
    key=["N_KEY", "B_KEY", "PADS", "PRECISION"],
    prune_configs_by={"early_config_prune": _prune_forward},
    do_bench=briefly,
)
@triton.heuristics({"EVEN": lambda args: args["B"] % args["BB"] == 0, "HELD": _held})
@triton.jit(do_not_specialize=["N_KEY", "B_KEY", "SMS"])
def forward_kernel(
    x, ws, bs, y, saved, x_n, x_b, x_i, N, B, SB, N_KEY, B_KEY, SMS,
    DIMS: tl.constexpr, PADS: tl.constexpr, BIAS: tl.constexpr, ACTS: tl.constexpr,
    KEPT: tl.constexpr, SLOPES: tl.constexpr, ROWS: tl.constexpr, KEEP: tl.constexpr,
    PRECISION: tl.constexpr, EVEN: tl.constexpr, HELD: tl.constexpr,
    BB: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One batch tile of one lane through every layer; with STAGES > 1 a program takes its share of them."""
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


@triton.jit
def _operands(
    ws, x, kept, n, b, x_b, x_i, B, SB, l: tl.constexpr, DIMS: tl.constexpr, PADS: tl.constexpr,
    KEPT: tl.constexpr, NEED_DX: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Layer l's input, `[I, B]` as the layer before kept it or `[B, I]` for the first, and its weight."""
    i = tl.arange(0, PADS[l])
    if l == 0:
        h = _load(x, b, i, B, DIMS[0], x_b, x_i, EVEN, DIMS[0] == PADS[0])
    else:
        h = _load(kept + KEPT[l - 1] * SB, i, b, DIMS[l], SB, SB, 1, DIMS[l] == PADS[l], EVEN)
    w = h
    if l > 0 or NEED_DX:
        w = _weight(ws, n, l, DIMS, PADS)
    return h, w


@triton.jit
def _parameter_grads(dws, dbs, g, h, n, l: tl.constexpr, DIMS: tl.constexpr, PADS: tl.constexpr,
                     BIAS: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """Store lane n's gradients of layer l from g `[O, B]` and its input h as `_operands` gives it."""
    o = tl.arange(0, PADS[l + 1])
    i = tl.arange(0, PADS[l])
    if BIAS[l]:
        tl.store(dbs[l] + n * DIMS[l + 1] + o, tl.sum(g, 1), mask=o < DIMS[l + 1])
    # Rows past the batch add nothing: their g is zero from the start. The right side of either product
    # has its columns contiguous, as tensor cores want it in float32.
    g, h = rounded(g, PRECISION), rounded(h, PRECISION)
    if l == 0:
        dw = tl.trans(tl.dot(tl.trans(h), tl.trans(g), input_precision=PRECISION))
    else:
        dw = tl.dot(g, tl.trans(h), input_precision=PRECISION)
    at = dws[l] + n * (DIMS[l] * DIMS[l + 1])
    _store(at, dw, o, i, DIMS[l + 1], DIMS[l], DIMS[l + 1] == PADS[l + 1], DIMS[l] == PADS[l])


@triton.autotune(
    BACKWARD,
    key=["N_KEY", "PADS", "BB", "PRECISION"],
    prune_configs_by={"early_config_prune": _prune_backward},
    do_bench=briefly,
)
@triton.heuristics({"EVEN": lambda args: args["B"] == args["BB"], "EARLY": _early})
@triton.jit(do_not_specialize=["N_KEY", "SMS"])
def backward_kernel(
    dy, x, ws, saved, dx, dws, dbs, dy_n, dy_b, dy_o, x_n, x_b, x_i, B, SB, N_KEY, SMS,
    DIMS: tl.constexpr, PADS: tl.constexpr, BIAS: tl.constexpr, ACTS: tl.constexpr,
    KEPT: tl.constexpr, SLOPES: tl.constexpr, ROWS: tl.constexpr, NEED_DX: tl.constexpr,
    PRECISION: tl.constexpr, EVEN: tl.constexpr, EARLY: tl.constexpr,
    BB: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """The gradients of one lane: its whole batch is one tile, so each dw is one product, stored once."""
    L: tl.constexpr = len(ws)
    n = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    x += n * x_n
    kept = saved + n * (ROWS * SB)
    b = tl.arange(0, BB)
    o = tl.arange(0, PADS[L])
    g = tl.trans(_load(dy + n * dy_n, b, o, B, DIMS[L], dy_b, dy_o, EVEN, DIMS[L] == PADS[L]))
    s = g
    if SLOPES[L - 1] >= 0:
        s = _load(kept + SLOPES[L - 1] * SB, o, b, DIMS[L], SB, SB, 1, DIMS[L] == PADS[L], EVEN)
    h, w = _operands(ws, x, kept, n, b, x_b, x_i, B, SB, L - 1, DIMS, PADS, KEPT, NEED_DX, EVEN)
    for l in tl.static_range(L - 1, -1, -1):
        if l > 0 and EARLY:  # they arrive while this layer's products run
            ahead = _operands(ws, x, kept, n, b, x_b, x_i, B, SB, l - 1, DIMS, PADS, KEPT, NEED_DX, EVEN)
        if SLOPES[l] >= 0:
            g = _through(g, s, tl.constexpr(ACTS[l]))
        if l > 0:
            s = h
            if SLOPES[l - 1] >= 0 and SLOPES[l - 1] != KEPT[l - 1]:
                i = tl.arange(0, PADS[l])
                s = _load(kept + SLOPES[l - 1] * SB, i, b, DIMS[l], SB, SB, 1, DIMS[l] == PADS[l], EVEN)
        if PARTS == 1:  # noqa: SIM114 (`or` would be asked at run time)
            _parameter_grads(dws, dbs, g, h, n, l, DIMS, PADS, BIAS, PRECISION)
        elif l % PARTS == part:
            _parameter_grads(dws, dbs, g, h, n, l, DIMS, PADS, BIAS, PRECISION)
        if l > 0 or NEED_DX:
            w, g = rounded(w, PRECISION), rounded(g, PRECISION)
            g = tl.dot(tl.trans(w), g, input_precision=PRECISION)
        if l > 0 and not EARLY:
            ahead = _operands(ws, x, kept, n, b, x_b, x_i, B, SB, l - 1, DIMS, PADS, KEPT, NEED_DX, EVEN)
        if l > 0:
            h, w = ahead
    if NEED_DX:
        i = tl.arange(0, PADS[0])
        if part == 0:
            _store(dx + n * (B * DIMS[0]), tl.trans(g), b, i, B, DIMS[0], EVEN, DIMS[0] == PADS[0])
