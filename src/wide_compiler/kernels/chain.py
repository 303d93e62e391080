"""A whole small MLP of N lanes as one Triton kernel: the values between its layers stay on the chip.

At widths up to 128 a layer's product is shorter than the launch of its kernel and the trip of its output
through memory; one kernel per (lane, batch tile) pays for both once. The gradient is one kernel too.
Import this module only after `_triton.available()`: it needs triton.

Inside the kernels tiles are transposed, `[features, batch]`: a weight is then the left side of its product,
which tensor cores want 64 rows tall, and goes from memory to registers as it lies.

Shapes: N lanes, B batch, I in-features, O out-features.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import triton
import triton.language as tl
from torch import Tensor

from ._triton import interpreting, next_pow2, on_device, precision, supports
from .linear import ACTIVATIONS, activate, lane_linear

MAX_WIDTH = 128
MAX_LAYERS = 12
MAX_TRAIN = 64 * 64  # batch x width: the gradient kernel takes a lane's batch as one tile, in registers
MAX_TRAIN_BATCH = 64
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
        z = tl.dot(w, h, input_precision=PRECISION)
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
)
@triton.heuristics({"EVEN": lambda args: args["B"] % args["BB"] == 0, "HELD": _held})
@triton.jit(do_not_specialize=["N_KEY", "B_KEY", "SMS"])
def _forward_kernel(
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
)
@triton.heuristics({"EVEN": lambda args: args["B"] == args["BB"], "EARLY": _early})
@triton.jit(do_not_specialize=["N_KEY", "SMS"])
def _backward_kernel(
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
            g = tl.dot(tl.trans(w), g, input_precision=PRECISION)
        if l > 0 and not EARLY:
            ahead = _operands(ws, x, kept, n, b, x_b, x_i, B, SB, l - 1, DIMS, PADS, KEPT, NEED_DX, EVEN)
        if l > 0:
            h, w = ahead
    if NEED_DX:
        i = tl.arange(0, PADS[0])
        if part == 0:
            _store(dx + n * (B * DIMS[0]), tl.trans(g), b, i, B, DIMS[0], EVEN, DIMS[0] == PADS[0])


def _plan(x: Tensor, weights: Sequence[Tensor], has_bias: Sequence[bool], activations: str) -> dict:
    """The kernels' constants.

    KEPT and SLOPES: from which of a lane's ROWS of `saved` on layer l's result and the slope of its
    activation are, -1 if nowhere. Unless it is smooth, the slope follows from the result.
    """
    dims = (x.shape[2], *(w.shape[1] for w in weights))
    acts = tuple(activations.split(","))
    kept, slopes, rows = [], [], 0
    for l, act in enumerate(acts):
        smooth, last = act in SMOOTH, l + 1 == len(acts)
        has_kept = not last or not (smooth or act == "none")
        kept.append(rows if has_kept else -1)
        rows += dims[l + 1] if has_kept else 0
        slopes.append(rows if smooth else -1 if act == "none" else kept[l])
        rows += dims[l + 1] if smooth else 0
    return {
        "DIMS": dims,
        "PADS": tuple(max(16, next_pow2(d)) for d in dims),
        "BIAS": tuple(has_bias),
        "ACTS": acts,
        "KEPT": tuple(kept),
        "SLOPES": tuple(slopes),
        "ROWS": rows,
        "PRECISION": precision("matmul"),
    }


def _columns(b: int) -> int:
    """The columns of `saved`: those of the batch, and more until every row starts at a multiple of 16."""
    return triton.cdiv(b, 16) * 16


def _spread(tensors: Sequence[Tensor], present: Sequence[bool], filler: Tensor | None) -> tuple:
    """One per layer. Kernels take no None: their filler for an absent bias is any tensor, never read."""
    given = iter(tensors)
    return tuple(next(given) if p else filler for p in present)


def _sms(t: Tensor) -> int:
    return torch.cuda.get_device_properties(t.device).multi_processor_count if t.is_cuda else 1


@torch.library.custom_op("wide_compiler::lane_chain", mutates_args=())
def _chain(
    x: Tensor, weights: list[Tensor], biases: list[Tensor], has_bias: list[bool], activations: str, keep: bool
) -> tuple[Tensor, Tensor]:
    """The output, and what the gradient needs of the layers (`_plan`), empty unless `keep`.

    `biases` are those of the layers that `has_bias` marks; `activations` is joined by commas.
    """
    plan = _plan(x, weights, has_bias, activations)
    (N, B, _), sms = x.shape, _sms(x)
    y = x.new_empty(N, B, weights[-1].shape[1])
    saved = x.new_empty(N * plan["ROWS"] * _columns(B) if keep else 0)

    def grid(meta: dict) -> tuple[int]:
        programs = N * triton.cdiv(B, meta["BB"])
        return (programs if meta["STAGES"] == 1 else min(programs, sms),)

    if N * B:
        weights = [w.contiguous() for w in weights]
        bias = _spread([b.contiguous() for b in biases], has_bias, x)
        with on_device(x):
            _forward_kernel[grid](
                x, tuple(weights), bias, y, saved, *x.stride(), N, B, _columns(B),
                next_pow2(N), next_pow2(B), sms, KEEP=keep, **plan,
            )  # fmt: skip
    return y, saved


@_chain.register_fake
def _(x, weights, biases, has_bias, activations, keep):
    N, B, _ = x.shape
    size = N * _plan(x, weights, has_bias, activations)["ROWS"] * _columns(B) if keep else 0
    return x.new_empty(N, B, weights[-1].shape[1]), x.new_empty(size)


@torch.library.custom_op("wide_compiler::lane_chain_backward", mutates_args=())
def _chain_backward(
    dy: Tensor,
    x: Tensor,
    weights: list[Tensor],
    saved: Tensor,
    has_bias: list[bool],
    activations: str,
    need_dx: bool,
) -> list[Tensor]:
    """`[dx, *dweights, *dbiases]`; dx is empty unless `need_dx`. For what `_trains` allows."""
    grads = _gradients(dy, x, weights, has_bias, need_dx)
    dx, dws, dbs = grads[0], grads[1 : len(weights) + 1], grads[len(weights) + 1 :]
    N, B, _ = x.shape
    if N * B == 0:
        return [g.zero_() for g in grads]
    with on_device(x):
        _backward_kernel[lambda meta: (N, meta["PARTS"])](
            dy, x, tuple(w.contiguous() for w in weights), saved, dx, tuple(dws),
            _spread(dbs, has_bias, x), *dy.stride(), *x.stride(), B, _columns(B), next_pow2(N), _sms(x),
            NEED_DX=need_dx, BB=max(16, next_pow2(B)), **_plan(x, weights, has_bias, activations),
        )  # fmt: skip
    return grads


@_chain_backward.register_fake
def _(dy, x, weights, saved, has_bias, activations, need_dx):
    return _gradients(dy, x, weights, has_bias, need_dx)


def _gradients(dy, x, weights, has_bias, need_dx) -> list[Tensor]:
    dws = [dy.new_empty(w.shape) for w in weights]
    dbs = [dy.new_empty(w.shape[:2]) for w, p in zip(weights, has_bias, strict=True) if p]
    return [dy.new_empty(x.shape if need_dx else 0), *dws, *dbs]


def _setup(ctx, inputs, output):
    x, weights, biases, ctx.has_bias, ctx.activations, ctx.keep = inputs
    ctx.layers = len(weights)
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(output[1], x, *weights, *biases)


def _backward(ctx, dy, _):
    saved, x, *rest = ctx.saved_tensors
    weights, biases = rest[: ctx.layers], rest[ctx.layers :]
    if ctx.keep and _trains(x, weights) and not torch.is_grad_enabled():
        need_dx = ctx.needs_input_grad[0]
        dx, *grads = _chain_backward(dy, x, weights, saved, ctx.has_bias, ctx.activations, need_dx)
    else:  # a gradient of this gradient is asked for, or nothing was kept: ops that autograd knows
        dx, *grads = _layerwise_gradients(dy, x, weights, biases, ctx.has_bias, ctx.activations)
        need_dx = True
    return dx if need_dx else None, grads[: ctx.layers], grads[ctx.layers :], None, None, None


def _layerwise_gradients(dy, x, weights, biases, has_bias, activations) -> list[Tensor | None]:
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        # Views: a tensor given for two layers gets the gradient of each place, not twice the sum.
        x, *rest = inputs = [t.view_as(t) for t in (x, *weights, *biases)]
        weights, biases = rest[: len(weights)], rest[len(weights) :]
        y = _layerwise(x, weights, _spread(biases, has_bias, None), activations.split(","))
        wanted = [t for t in inputs if t.requires_grad]
        grads = iter(torch.autograd.grad(y, wanted, dy, create_graph=again))
    return [next(grads) if t.requires_grad else None for t in inputs]


def _layerwise(x, weights, biases, activations) -> Tensor:
    for w, b, act in zip(weights, biases, activations, strict=True):
        x = lane_linear(x, w, b, act)
    return x


_chain.register_autograd(_backward, setup_context=_setup)


def fits(x: Tensor, weights: Sequence[Tensor]) -> bool:
    """Whether `lane_chain` takes this MLP: float32, `[N, B, I]`, few and narrow layers."""
    return (
        x.dim() == 3
        and x.dtype == torch.float32
        and 0 < len(weights) <= MAX_LAYERS
        and supports(x, *weights)
        and all(1 <= d <= MAX_WIDTH for d in (x.shape[2], *(w.shape[1] for w in weights)))
    )


def _trains(x: Tensor, weights: Sequence[Tensor]) -> bool:
    b, width = x.shape[1], max(x.shape[2], *(w.shape[1] for w in weights))
    return b <= MAX_TRAIN_BATCH and b * width <= MAX_TRAIN


def lane_chain(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None] | None = None,
    activations: Sequence[str] | None = None,
) -> Tensor:
    """A chain of linear layers, each with its activation, for every lane; ask `fits` first.

    Under grad a batch of more than 64 (32 where a layer is wider than 64) runs layer by layer through
    `lane_linear`.

    Args:
        x: `[N, B, I]`.
        weights: one `[N, O, I]` per layer.
        biases: one `[N, O]` or None per layer; None: no layer has one.
        activations: one of `linear.ACTIVATIONS` per layer; None: "relu" between the layers.

    Returns:
        `[N, B, O]` of the last layer.
    """
    weights = list(weights)
    biases = [None] * len(weights) if biases is None else list(biases)
    activations = ["relu"] * (len(weights) - 1) + ["none"] if activations is None else list(activations)
    if not len(weights) == len(biases) == len(activations):
        raise ValueError("lane_chain: give one weight, one bias (or None) and one activation per layer")
    for act in activations:
        if act not in ACTIVATIONS:
            raise ValueError(f"lane_chain: unknown activation {act!r}; choose one of {list(ACTIVATIONS)}")
    present = [b for b in biases if b is not None]
    grad = torch.is_grad_enabled() and any(t.requires_grad for t in (x, *weights, *present))
    if grad and not _trains(x, weights):
        return _layerwise(x, weights, biases, activations)
    return _chain(x, weights, present, [b is not None for b in biases], ",".join(activations), grad)[0]
