"""A whole small MLP of N lanes as one Triton kernel: the values between its layers stay on the chip.

At widths up to 128 a layer's product is shorter than the launch of its kernel and the trip of its output
through memory; one kernel per (lane, batch tile) pays for both once. The gradient is one kernel too.
Import this module only after `_triton.available()`: it needs triton.

Shapes: N lanes, B batch, I in-features, O out-features.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import triton
import triton.language as tl
from torch import Tensor

from ._triton import next_pow2, on_device, precision, supports
from .linear import ACTIVATIONS, activate, lane_linear

MAX_WIDTH = 128
MAX_LAYERS = 12
MAX_TRAIN = 64 * 64  # batch x width: the gradient kernel takes a lane's batch as one tile, in registers
MAX_TRAIN_BATCH = 64
SMS = 132


@triton.jit
def _load(ptr, in_b, b, COLS: tl.constexpr, PAD: tl.constexpr, stride):
    """Rows b of a matrix with COLS contiguous columns, as a tile padded with zeros to PAD columns."""
    i = tl.arange(0, PAD)
    return tl.load(
        ptr + (b[:, None] * stride + i[None, :]), mask=in_b[:, None] & (i[None, :] < COLS), other=0.0
    )


@triton.jit
def _weight(w, n, IN: tl.constexpr, OUT: tl.constexpr, PAD_IN: tl.constexpr, PAD_OUT: tl.constexpr):
    """Lane n's weight as a padded `[OUT, IN]` tile."""
    o = tl.arange(0, PAD_OUT)
    return _load(w + n * (IN * OUT), o < OUT, o, IN, PAD_IN, IN)


@triton.jit
def _store(ptr, tile, in_b, b, COLS: tl.constexpr, PAD: tl.constexpr):
    i = tl.arange(0, PAD)
    tl.store(ptr + (b[:, None] * COLS + i[None, :]), tile, mask=in_b[:, None] & (i[None, :] < COLS))


@triton.jit
def _smooth(ACT: tl.constexpr):
    """Whether the slope needs the value before the activation; the others have it from the value after."""
    return ACT == "gelu" or ACT == "gelu_tanh" or ACT == "silu"


@triton.jit
def _through(g, s, ACT: tl.constexpr):
    """The gradient before an activation from the one after it; s as `_smooth` says."""
    if ACT == "relu":
        g = tl.where(s <= 0.0, 0.0, g)
    elif ACT == "tanh":
        g = g * (1.0 - s * s)
    elif ACT == "sigmoid":
        g = g * s * (1.0 - s)
    elif ACT == "silu":
        p = tl.sigmoid(s)
        g = g * p * (1.0 + s * (1.0 - p))
    elif ACT == "gelu":
        cdf = 0.5 * (1.0 + tl.erf(s * 0.7071067811865476))
        g = g * (cdf + s * 0.3989422804014327 * tl.exp(-0.5 * s * s))
    elif ACT == "gelu_tanh":
        p = tl.sigmoid(1.5957691216057308 * (s + 0.044715 * s * s * s))
        g = g * (p + s * p * (1.0 - p) * 1.5957691216057308 * (1.0 + 0.134145 * s * s))
    else:
        tl.static_assert(ACT == "none", "unknown activation")
    return g


@triton.jit
def _forward_kernel(
    x, ws, bs, y, saved, x_n, x_b, B,
    DIMS: tl.constexpr, PADS: tl.constexpr, BIAS: tl.constexpr, ACTS: tl.constexpr, OFFSETS: tl.constexpr,
    KEEP: tl.constexpr, EARLY: tl.constexpr, PRECISION: tl.constexpr, BB: tl.constexpr,
):  # fmt: skip
    """One batch tile of one lane through every layer. The loop is unrolled: each layer has its own shapes."""
    L: tl.constexpr = len(ws)
    tiles = tl.cdiv(B, BB)
    n = (tl.program_id(0) // tiles).to(tl.int64)
    b = (tl.program_id(0) % tiles) * BB + tl.arange(0, BB)
    in_b = b < B
    h = _load(x + n * x_n, in_b, b, DIMS[0], PADS[0], x_b)
    for l in tl.static_range(L):
        if l == 0 or not EARLY:
            w = _weight(ws[l], n, DIMS[l], DIMS[l + 1], PADS[l], PADS[l + 1])
        if l + 1 < L and EARLY:  # ask for the next weights before this product: they arrive while it runs
            ahead = _weight(ws[l + 1], n, DIMS[l + 1], DIMS[l + 2], PADS[l + 1], PADS[l + 2])
        z = tl.dot(h, tl.trans(w), input_precision=PRECISION)
        if BIAS[l]:
            o = tl.arange(0, PADS[l + 1])
            z += tl.load(bs[l] + n * DIMS[l + 1] + o, mask=o < DIMS[l + 1], other=0.0)[None, :]
        h = activate(z, tl.constexpr(ACTS[l]))
        if KEEP and OFFSETS[l] >= 0:
            block = saved + (n * OFFSETS[L] + OFFSETS[l]) * B
            if _smooth(tl.constexpr(ACTS[l])):
                _store(block, z, in_b, b, DIMS[l + 1], PADS[l + 1])
            else:
                _store(block, h, in_b, b, DIMS[l + 1], PADS[l + 1])
        if l + 1 < L and EARLY:
            w = ahead
    _store(y + n * B * DIMS[L], h, in_b, b, DIMS[L], PADS[L])


@triton.jit
def _backward_kernel(
    dy, x, ws, saved, dx, dws, dbs, x_n, x_b, B,
    DIMS: tl.constexpr, PADS: tl.constexpr, BIAS: tl.constexpr, ACTS: tl.constexpr, OFFSETS: tl.constexpr,
    NEED_DX: tl.constexpr, EARLY: tl.constexpr, PRECISION: tl.constexpr, BB: tl.constexpr,
):  # fmt: skip
    """Every gradient of one lane: its whole batch is one tile, so each dw is one product, stored once."""
    L: tl.constexpr = len(ws)
    n = tl.program_id(0).to(tl.int64)
    b = tl.arange(0, BB)
    in_b = b < B
    kept = saved + n * OFFSETS[L] * B
    g = _load(dy + n * B * DIMS[L], in_b, b, DIMS[L], PADS[L], DIMS[L])
    if ACTS[L - 1] != "none":
        s = _load(kept + OFFSETS[L - 1] * B, in_b, b, DIMS[L], PADS[L], DIMS[L])
    for l in tl.static_range(L - 1, -1, -1):
        o = tl.arange(0, PADS[l + 1])
        in_o = o < DIMS[l + 1]
        if (l > 0 or NEED_DX) and EARLY:
            w = _weight(ws[l], n, DIMS[l], DIMS[l + 1], PADS[l], PADS[l + 1])
        if ACTS[l] != "none":
            g = _through(g, s, tl.constexpr(ACTS[l]))
        if l > 0:  # the layer's input, which the layer before kept
            s = _load(kept + OFFSETS[l - 1] * B, in_b, b, DIMS[l], PADS[l], DIMS[l])
            h = s
            if _smooth(tl.constexpr(ACTS[l - 1])):
                h = activate(s, tl.constexpr(ACTS[l - 1]))
        else:
            h = _load(x + n * x_n, in_b, b, DIMS[0], PADS[0], x_b)
        if BIAS[l]:
            tl.store(dbs[l] + n * DIMS[l + 1] + o, tl.sum(g, 0), mask=in_o)
        # Rows past the batch add nothing: their g is zero from the start.
        dw = tl.dot(tl.trans(g), h, input_precision=PRECISION)
        _store(dws[l] + n * (DIMS[l] * DIMS[l + 1]), dw, in_o, o, DIMS[l], PADS[l])
        if (l > 0 or NEED_DX) and not EARLY:
            w = _weight(ws[l], n, DIMS[l], DIMS[l + 1], PADS[l], PADS[l + 1])
        if l > 0 or NEED_DX:
            g = tl.dot(g, w, input_precision=PRECISION)
    if NEED_DX:
        _store(dx + n * B * DIMS[0], g, in_b, b, DIMS[0], PADS[0])


def _plan(x: Tensor, weights: Sequence[Tensor], has_bias: Sequence[bool], activations: str) -> dict:
    """The kernels' constants; OFFSETS: where layer l's block of `saved` starts, the last entry its end."""
    dims = (x.shape[2], *(w.shape[1] for w in weights))
    acts = tuple(activations.split(","))
    offsets, end = [], 0
    for l, act in enumerate(acts):
        kept = l + 1 < len(acts) or act != "none"
        offsets.append(end if kept else -1)
        end += dims[l + 1] if kept else 0
    pads = tuple(max(16, next_pow2(d)) for d in dims)
    return {
        "DIMS": dims,
        "PADS": pads,
        "BIAS": tuple(has_bias),
        "ACTS": acts,
        "OFFSETS": (*offsets, end),
        # Two weights of 128 x 128 at once would spill registers.
        "EARLY": max(i * o for i, o in pairwise(pads)) <= 64 * 128,
        "PRECISION": precision("matmul"),
        "num_warps": 4 if max(dims) <= 64 else 8,
    }


def _rows(t: Tensor) -> Tensor:
    """t with contiguous rows; lanes that share one input (stride 0) stay shared."""
    return t if t.stride(-1) == 1 else t.contiguous()


def _spread(tensors: Sequence[Tensor], present: Sequence[bool], filler: Tensor | None) -> tuple:
    """One per layer. Kernels take no None: their filler for an absent bias is any tensor, never read."""
    given = iter(tensors)
    return tuple(next(given) if p else filler for p in present)


def _tile(n: int, b: int, width: int) -> int:
    """Batch rows per program: few enough that all multiprocessors get some and registers hold them."""
    if b >= 64 and width <= 64 and n * triton.cdiv(b, 64) >= 2 * SMS:
        return 64
    return 32 if b > 16 and n * triton.cdiv(b, 32) >= SMS else 16


@torch.library.custom_op("wide_compiler::lane_chain", mutates_args=())
def _chain(
    x: Tensor, weights: list[Tensor], biases: list[Tensor], has_bias: list[bool], activations: str, keep: bool
) -> tuple[Tensor, Tensor]:
    """The output, and what the gradient needs of the layers (`_plan`'s OFFSETS), empty unless `keep`.

    `biases` are those of the layers that `has_bias` marks; `activations` is joined by commas.
    """
    plan = _plan(x, weights, has_bias, activations)
    (N, B, _), x = x.shape, _rows(x)
    y = x.new_empty(N, B, weights[-1].shape[1])
    saved = x.new_empty(N * B * plan["OFFSETS"][-1] if keep else 0)
    if N * B:
        weights = [w.contiguous() for w in weights]
        bias = _spread([b.contiguous() for b in biases], has_bias, x)
        BB = _tile(N, B, max(plan["DIMS"]))
        with on_device(x):
            _forward_kernel[(N * triton.cdiv(B, BB),)](
                x, tuple(weights), bias, y, saved, x.stride(0), x.stride(1), B, KEEP=keep, BB=BB, **plan
            )
    return y, saved


@_chain.register_fake
def _(x, weights, biases, has_bias, activations, keep):
    N, B, _ = x.shape
    size = N * B * _plan(x, weights, has_bias, activations)["OFFSETS"][-1] if keep else 0
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
    x, plan = _rows(x), _plan(x, weights, has_bias, activations)
    with on_device(x):
        _backward_kernel[(N,)](
            dy.contiguous(), x, tuple(w.contiguous() for w in weights), saved, dx, tuple(dws),
            _spread(dbs, has_bias, x), x.stride(0), x.stride(1), B,
            NEED_DX=need_dx, BB=max(16, next_pow2(B)), **plan,
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
