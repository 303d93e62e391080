"""A small MLP of N lanes as one Triton kernel; intermediate activations stay on chip.

At widths up to 128 a layer's product takes less time than its kernel launch and the memory traffic of its
output; one kernel per (lane, batch tile) pays for both once. The gradient is one kernel too. Import this
module only if `_triton.available()`: it needs triton.

Shapes: N lanes, B batch, I in-features, O out-features.
"""

from collections.abc import Sequence

import torch
import triton
from torch import Tensor

from ..errors import ArgumentError
from ._triton import HALVES, next_pow2, on_device, precision, sound_wgmma, supports
from .activations import ACTIVATIONS
from .chain_backward import backward_kernel
from .chain_forward import SMOOTH, forward_kernel
from .lane_linear import lane_linear

MAX_WIDTH = 128
SAFE_WIDTH = 64  # of 16-bit products by two warps
MAX_LAYERS = 12
MAX_TRAIN = 64 * 64  # batch x width: the gradient kernel holds a lane's batch as one tile in registers
MAX_TRAIN_BATCH = 64


def _plan(
    x: Tensor, weights: Sequence[Tensor], has_bias: Sequence[bool], activations: str, compute: torch.dtype
) -> dict:
    """Return the kernels' constants.

    KEPT and SLOPES give, for layer l, the first of a lane's ROWS in `saved` that holds the layer's result and
    its activation's derivative; -1 if not saved. Only the activations of `SMOOTH` save a derivative; for the
    others it follows from the result.
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
        "PRECISION": HALVES.get(compute) or precision("matmul"),
    }


def _columns(b: int) -> int:
    """Return the number of columns of `saved`: the batch rounded up to a multiple of 16."""
    return triton.cdiv(b, 16) * 16


def _spread(tensors: Sequence[Tensor], present: Sequence[bool], filler: Tensor | None) -> tuple:
    """Return one tensor per layer, with `filler` where one is absent; kernels take no None."""
    given = iter(tensors)
    return tuple(next(given) if p else filler for p in present)


def _sms(t: Tensor) -> int:
    return torch.cuda.get_device_properties(t.device).multi_processor_count if t.is_cuda else 1


@torch.library.custom_op("wide_compiler::lane_chain", mutates_args=())
def _chain(
    x: Tensor,
    weights: list[Tensor],
    biases: list[Tensor],
    has_bias: list[bool],
    activations: str,
    keep: bool,
    compute: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Return the output, and the values that the gradient needs (`_plan`), empty unless `keep`.

    `biases` has one tensor for each True in `has_bias`; `activations` is joined by commas.
    """
    plan = _plan(x, weights, has_bias, activations, compute)
    (N, B, _), sms = x.shape, _sms(x)
    y = x.new_empty(N, B, weights[-1].shape[1], dtype=compute)
    saved = x.new_empty(N * plan["ROWS"] * _columns(B) if keep else 0, dtype=torch.float32)

    def grid(meta: dict) -> tuple[int]:
        programs = N * triton.cdiv(B, meta["BB"])
        return (programs if meta["STAGES"] == 1 else min(programs, sms),)

    if N * B:
        weights = [w.contiguous() for w in weights]
        bias = _spread([b.contiguous() for b in biases], has_bias, x)
        with on_device(x):
            forward_kernel[grid](
                x, tuple(weights), bias, y, saved, *x.stride(), N, B, _columns(B),
                next_pow2(N), next_pow2(B), sms, KEEP=keep, **plan,
            )  # fmt: skip
    return y, saved


@_chain.register_fake
def _(x, weights, biases, has_bias, activations, keep, compute):
    N, B, _ = x.shape
    size = N * _plan(x, weights, has_bias, activations, compute)["ROWS"] * _columns(B) if keep else 0
    y = x.new_empty(N, B, weights[-1].shape[1], dtype=compute)
    return y, x.new_empty(size, dtype=torch.float32)


@torch.library.custom_op("wide_compiler::lane_chain_backward", mutates_args=())
def _chain_backward(
    dy: Tensor,
    x: Tensor,
    weights: list[Tensor],
    saved: Tensor,
    has_bias: list[bool],
    activations: str,
    need_dx: bool,
    compute: torch.dtype,
) -> list[Tensor]:
    """Return `[dx, *dweights, *dbiases]`; dx is empty unless `need_dx`. `_trains` must be True."""
    grads = _gradients(dy, x, weights, has_bias, need_dx)
    dx, dws, dbs = grads[0], grads[1 : len(weights) + 1], grads[len(weights) + 1 :]
    N, B, _ = x.shape
    if N * B == 0:
        return [g.zero_() for g in grads]
    with on_device(x):
        backward_kernel[lambda meta: (N, meta["PARTS"])](
            dy, x, tuple(w.contiguous() for w in weights), saved, dx, tuple(dws),
            _spread(dbs, has_bias, x), *dy.stride(), *x.stride(), B, _columns(B), next_pow2(N), _sms(x),
            NEED_DX=need_dx, BB=max(16, next_pow2(B)), **_plan(x, weights, has_bias, activations, compute),
        )  # fmt: skip
    return grads


@_chain_backward.register_fake
def _(dy, x, weights, saved, has_bias, activations, need_dx, compute):
    return _gradients(dy, x, weights, has_bias, need_dx)


def _gradients(dy, x, weights, has_bias, need_dx) -> list[Tensor]:
    dws = [w.new_empty(w.shape) for w in weights]
    dbs = [w.new_empty(w.shape[:2]) for w, p in zip(weights, has_bias, strict=True) if p]
    return [x.new_empty(x.shape if need_dx else 0), *dws, *dbs]


def _setup(ctx, inputs, output):
    x, weights, biases, ctx.has_bias, ctx.activations, ctx.keep, ctx.compute = inputs
    ctx.layers = len(weights)
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(output[1], x, *weights, *biases)


def _backward(ctx, dy, _):
    saved, x, *rest = ctx.saved_tensors
    weights, biases = rest[: ctx.layers], rest[ctx.layers :]
    if ctx.keep and _trains(x, weights) and not torch.is_grad_enabled():
        need_dx = ctx.needs_input_grad[0]
        layers = ctx.has_bias, ctx.activations, need_dx, ctx.compute
        dx, *grads = _chain_backward(dy, x, weights, saved, *layers)
    else:  # double backward, or nothing was saved: use differentiable ops
        dx, *grads = _layerwise_gradients(dy, x, weights, biases, ctx.has_bias, ctx.activations, ctx.compute)
        need_dx = True
    return dx if need_dx else None, grads[: ctx.layers], grads[ctx.layers :], None, None, None, None


def _layerwise_gradients(dy, x, weights, biases, has_bias, activations, compute) -> list[Tensor | None]:
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        # Views: a tensor used for two layers must get a separate gradient for each use, not twice the sum.
        x, *rest = inputs = [t.view_as(t) for t in (x, *weights, *biases)]
        weights, biases = rest[: len(weights)], rest[len(weights) :]
        y = _layerwise(x, weights, _spread(biases, has_bias, None), activations.split(","), compute)
        wanted = [t for t in inputs if t.requires_grad]
        grads = iter(torch.autograd.grad(y, wanted, dy, create_graph=again))
    return [next(grads) if t.requires_grad else None for t in inputs]


def _layerwise(x, weights, biases, activations, compute) -> Tensor:
    for w, b, act in zip(weights, biases, activations, strict=True):
        x = lane_linear(x, w, b, act, compute)
    return x


_chain.register_autograd(_backward, setup_context=_setup)


def fits(x: Tensor, weights: Sequence[Tensor], compute: torch.dtype | None = None) -> bool:
    """Return whether `lane_chain` supports this MLP: x `[N, B, I]`, few and narrow layers."""
    narrow = (compute or x.dtype) in HALVES and not sound_wgmma()
    widest = SAFE_WIDTH if narrow else MAX_WIDTH
    return (
        x.dim() == 3
        and 0 < len(weights) <= MAX_LAYERS
        and supports(x)
        and supports(*weights)
        and all(1 <= d <= widest for d in (x.shape[2], *(w.shape[1] for w in weights)))
    )


def _trains(x: Tensor, weights: Sequence[Tensor]) -> bool:
    b, width = x.shape[1], max(x.shape[2], *(w.shape[1] for w in weights))
    return b <= MAX_TRAIN_BATCH and b * width <= MAX_TRAIN


def lane_chain(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None] | None = None,
    activations: Sequence[str] | None = None,
    compute: torch.dtype | None = None,
) -> Tensor:
    """Run a chain of linear layers with activations for every lane; check `fits` first.

    With gradients enabled, a batch of more than 64 (32 if a layer is wider than 64) runs layer by layer
    through `lane_linear`.

    Args:
        x: `[N, B, I]`.
        weights, biases: one `[N, O, I]` per layer, and one `[N, O]` or None; None: no layer has a bias.
        activations: one of `ACTIVATIONS` per layer; None: "relu" between the layers.
        compute: dtype of the products and of the result, by default x's.
    """
    weights = list(weights)
    biases = [None] * len(weights) if biases is None else list(biases)
    activations = ["relu"] * (len(weights) - 1) + ["none"] if activations is None else list(activations)
    if not len(weights) == len(biases) == len(activations):
        raise ArgumentError("lane_chain: give one weight, one bias (or None) and one activation per layer")
    for act in activations:
        if act not in ACTIVATIONS:
            raise ArgumentError(f"lane_chain: unknown activation {act!r}; choose one of {list(ACTIVATIONS)}")
    present = [b for b in biases if b is not None]
    grad = torch.is_grad_enabled() and any(t.requires_grad for t in (x, *weights, *present))
    compute = compute or x.dtype
    if grad and not _trains(x, weights):
        return _layerwise(x, weights, biases, activations, compute)
    has_bias = [b is not None for b in biases]
    return _chain(x, weights, present, has_bias, ",".join(activations), grad, compute)[0]
