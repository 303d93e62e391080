"""Convolutions of N lanes, each by torch's convolution, concurrently on CUDA streams.

One lane's convolution rarely fills a GPU. Where the grouped convolution is slow, separate convolutions that
overlap are faster. Needs no triton. On a CPU the lanes run one after another.

Shapes: N lanes, B batch, C in-channels, O out-channels; 1, 2 or 3 spatial axes follow.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import ArgumentError

STREAMS = 16
Ints = int | Sequence[int]

_streams: dict[torch.device, list[torch.cuda.Stream]] = {}


@contextmanager
def _side_by_side(x: Tensor, n: int) -> Iterator[Callable[[int], AbstractContextManager]]:
    """Fork side streams from the current stream and join them at exit.

    Yields a function that returns the stream context of lane i. Fork and join use events, so both can be
    captured into a CUDA graph. Tensors allocated for a lane must not outlive its context: their memory
    belongs to the side stream.
    """
    # The op has the dtype of its inputs; autocast would change that of the convolutions.
    exact = torch.autocast(x.device.type, enabled=False)
    if not x.is_cuda:
        with exact:
            yield lambda lane: nullcontext()
        return
    here = torch.cuda.current_stream(x.device)
    sides = _streams.setdefault(x.device, [])
    sides.extend(torch.cuda.Stream(x.device) for _ in range(min(n, STREAMS) - len(sides)))
    used = sides[: min(n, STREAMS)]
    if here in used:  # streams come from a pool, so the caller may be on one of them
        used = [here]
    for side in used:
        side.wait_stream(here)
    try:
        with exact:
            yield lambda lane: torch.cuda.stream(used[lane % len(used)])
    finally:
        for side in used:
            here.wait_stream(side)


def _output_size(x: Tensor, weight: Tensor, stride, padding, dilation) -> tuple[int, ...]:
    axes = zip(x.shape[3:], weight.shape[3:], stride, padding, dilation, strict=True)
    spatial = ((size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, s, p, d in axes)
    return (x.shape[0], x.shape[1], weight.shape[1], *spatial)


@torch.library.custom_op("wide_compiler::streamed_conv", mutates_args=())
def _streamed_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    n = x.shape[0]
    # Allocated on the current stream, which joins the lanes, so record_stream is not needed.
    y = x.new_empty(_output_size(x, weight, stride, padding, dilation))
    biases = [None] * n if bias is None else bias.unbind(0)
    lanes = zip(y.unbind(0), x.unbind(0), weight.unbind(0), biases, strict=True)
    fixed = (stride, padding, dilation, False, [0] * len(stride), groups)
    with _side_by_side(x, n) as turn:
        for lane, (y_, x_, w_, b_) in enumerate(lanes):
            with turn(lane):
                y_.copy_(torch.convolution(x_, w_, b_, *fixed))
    return y


@_streamed_conv.register_fake
def _(x, weight, bias, stride, padding, dilation, groups):
    return x.new_empty(_output_size(x, weight, stride, padding, dilation))


@torch.library.custom_op("wide_compiler::streamed_conv_backward", mutates_args=())
def _streamed_conv_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    needed: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of input, weight and bias; an empty tensor for one that is not `needed`."""
    n, channels = weight.shape[:2]
    grads = _empty_gradients(dy, x, weight, needed)
    lanes = zip(dy.unbind(0), x.unbind(0), weight.unbind(0), strict=True)
    fixed = ([channels], stride, padding, dilation, False, [0] * len(stride), groups, needed)
    with _side_by_side(x, n) as turn:
        for lane, (dy_, x_, w_) in enumerate(lanes):
            with turn(lane):
                own = torch.ops.aten.convolution_backward(dy_, x_, w_, *fixed)
                for grad, part in zip(grads, own, strict=True):
                    if grad.numel() and part is not None:
                        grad[lane].copy_(part)
                del own, part
    return grads


def _empty_gradients(dy: Tensor, x: Tensor, weight: Tensor, needed) -> tuple[Tensor, Tensor, Tensor]:
    shapes = (x.shape, weight.shape, weight.shape[:2])
    dx, dw, db = (dy.new_empty(shape if need else (0,)) for shape, need in zip(shapes, needed, strict=True))
    return dx, dw, db


@_streamed_conv_backward.register_fake
def _(dy, x, weight, stride, padding, dilation, groups, needed):
    return _empty_gradients(dy, x, weight, needed)


def _setup(ctx, inputs, output):
    x, weight, _, *ctx.options = inputs
    ctx.save_for_backward(x, weight)


def _backward(ctx, dy):
    x, weight = ctx.saved_tensors
    needed = list(ctx.needs_input_grad[:3])
    grads = _streamed_conv_backward(dy, x, weight, *ctx.options, needed)
    return (*(g if need else None for g, need in zip(grads, needed, strict=True)), *[None] * 4)


_streamed_conv.register_autograd(_backward, setup_context=_setup)


def per_axis(value: Ints, rank: int) -> list[int]:
    """Return one number for each of `rank` spatial axes."""
    return [value] * rank if isinstance(value, int) else list(value) * (rank // len(value))


def plain_padding(
    x: Tensor, kernel: Sequence[int], padding: Ints | str, dilation: list[int]
) -> tuple[Tensor, list[int]]:
    """Return x and the numbers of padding per axis; `padding` may be "same" or "valid".

    With "same", if the two sides cannot be equal, x is returned padded by one at the end.
    """
    if not isinstance(padding, str):
        return x, per_axis(padding, len(kernel))
    if padding == "valid":
        return x, [0] * len(kernel)
    if padding != "same":
        raise ArgumentError(f'padding is a number, one per spatial axis, "same" or "valid"; got {padding!r}')
    total = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    if any(t % 2 for t in total):
        x = F.pad(x, [side for t in reversed(total) for side in (0, t % 2)])
    return x, [t // 2 for t in total]


def streamed_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: Ints | str = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> Tensor:
    """Convolution in 1, 2 or 3 dimensions, one call per lane, lanes distributed over CUDA streams.

    From x `[N, B, C, *spatial]`, weight `[N, O, C/groups, *kernel]` and bias `[N, O]`, with the member's
    settings; returns `[N, B, O, *spatial]`, contiguous.
    """
    rank = weight.dim() - 3
    stride, dilation = per_axis(stride, rank), per_axis(dilation, rank)
    x, padding = plain_padding(x, weight.shape[3:], padding, dilation)
    return _streamed_conv(x, weight, bias, stride, padding, dilation, groups)
