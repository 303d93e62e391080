"""One Adam step for all lanes of many tensors, with hyper-parameters per lane, in one pass over memory.

torch's fused kernel works in chunks of 65,536 elements, which leaves most of a GPU idle for small models, and
takes one learning rate. Here a program updates a small chunk of one lane of one tensor, and a launch covers
several tensors.
"""

import warnings
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..errors import one_line
from ..guards.modes import capturing
from ._triton import on_device

BLOCK = 1024
TENSORS = 16  # per launch: their addresses are kernel arguments


class Numbers(NamedTuple):
    """Step count and hyper-parameters: each a number, a tensor `[]`, or `[N]` with one per lane."""

    step: Tensor
    lr: Any
    beta1: Any
    beta2: Any
    eps: Any
    weight_decay: Any


@triton.jit
def _of_lane(number, lane, BY_LANE: tl.constexpr):
    """Load a hyper-parameter as float64."""
    if BY_LANE:
        number += lane
    return tl.load(number).to(tl.float64)


@triton.jit
def _chosen(several, which):
    """Return the entry of a tuple at an index known only at run time."""
    entry = several[0]
    for i in tl.static_range(1, len(several)):
        if which == i:
            entry = several[i]
    return entry


# Sizes are not specialised, so new sizes do not recompile the kernel.
@triton.jit(do_not_specialize=["ends", "sizes"])
def _adam_kernel(
    weights,
    grads,
    averages,
    squares,
    largest,
    ends,
    sizes,
    step,
    lr,
    beta1,
    beta2,
    eps,
    weight_decay,
    STEP: tl.constexpr,
    LR: tl.constexpr,
    BETA1: tl.constexpr,
    BETA2: tl.constexpr,
    EPS: tl.constexpr,
    DECAY: tl.constexpr,
    DECAYS: tl.constexpr,
    DECOUPLED: tl.constexpr,
    AMSGRAD: tl.constexpr,
    MAXIMIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Update one chunk of one lane of one tensor.

    Args:
        weights, grads, averages, squares, largest: tuples with one pointer per tensor.
        ends: cumulative number of chunks per lane, for all tensors but the last.
        sizes: number of elements in a lane of each tensor.
    """
    piece, lane = tl.program_id(0), tl.program_id(1)
    which, begin = 0, 0
    for i in tl.static_range(len(ends)):
        if piece >= ends[i]:
            which, begin = i + 1, ends[i]
    size = _chosen(sizes, which)
    inside = (piece - begin).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = inside < size
    at = lane.to(tl.int64) * size + inside
    own_weights, own_averages = _chosen(weights, which), _chosen(averages, which)
    own_squares = _chosen(squares, which)
    dtype = weights[0].dtype.element_ty

    # In float64: 1 - 0.999 ** step would lose digits in float32.
    taken = _of_lane(step, lane, STEP)
    rate, small = _of_lane(lr, lane, LR), _of_lane(eps, lane, EPS)
    keep1, keep2 = _of_lane(beta1, lane, BETA1), _of_lane(beta2, lane, BETA2)
    gone1 = tl.where(keep1 > 0.0, tl.exp2(taken * tl.log2(tl.maximum(keep1, 1e-300))), 0.0)
    gone2 = tl.where(keep2 > 0.0, tl.exp2(taken * tl.log2(tl.maximum(keep2, 1e-300))), 0.0)
    size_of_step = (rate / (1.0 - gone1)).to(dtype)
    correction = (1.0 / tl.sqrt(1.0 - gone2)).to(dtype)

    value = tl.load(own_weights + at, mask=mask)
    grad = tl.load(_chosen(grads, which) + at, mask=mask)
    if MAXIMIZE:
        grad = -grad
    if DECAYS:
        decay = _of_lane(weight_decay, lane, DECAY)
        if DECOUPLED:
            value *= (1.0 - rate * decay).to(dtype)
        else:
            grad += decay.to(dtype) * value
    average = tl.load(own_averages + at, mask=mask)
    average += (1.0 - keep1).to(dtype) * (grad - average)
    square = keep2.to(dtype) * tl.load(own_squares + at, mask=mask) + (1.0 - keep2).to(dtype) * grad * grad
    tl.store(own_averages + at, average, mask=mask)
    tl.store(own_squares + at, square, mask=mask)
    if AMSGRAD:
        own_largest = _chosen(largest, which)
        square = tl.maximum(square, tl.load(own_largest + at, mask=mask))
        tl.store(own_largest + at, square, mask=mask)
    value -= size_of_step * average / (tl.sqrt(square) * correction + small.to(dtype))
    tl.store(own_weights + at, value, mask=mask)


def adam_(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    averages: Sequence[Tensor],
    squares: Sequence[Tensor],
    largest: Sequence[Tensor],
    numbers: Numbers,
    *,
    decoupled: bool,
    maximize: bool,
) -> None:
    """Take one Adam step in place; `numbers.step` must already count it.

    The tensors of each parameter have equal layout, dense, lane axis first if a hyper-parameter is per lane;
    `largest` is empty without amsgrad. `decoupled` is the weight decay of AdamW.
    """
    decays = isinstance(numbers.weight_decay, Tensor) or numbers.weight_decay != 0
    in_memory = [x if isinstance(x, Tensor) else _in_memory(float(x), params[0].device) for x in numbers]
    by_lane = [x.dim() > 0 for x in in_memory]
    lanes = max(x.numel() for x in in_memory)
    with on_device(params[0]):
        for first in range(0, len(params), TENSORS):
            taken = slice(first, first + TENSORS)
            kinds = [tuple(kind[taken]) for kind in (params, grads, averages, squares, largest or squares)]
            sizes = [param.numel() // lanes for param in kinds[0]]
            ends = list(accumulate(triton.cdiv(size, BLOCK) for size in sizes))
            # The last tensor ends with the launch, so its end is never compared.
            _adam_kernel[(ends[-1], lanes)](
                *kinds, tuple(ends[:-1]), tuple(sizes), *in_memory, *by_lane, DECAYS=decays,
                DECOUPLED=decoupled, AMSGRAD=bool(largest), MAXIMIZE=maximize, BLOCK=BLOCK,
            )  # fmt: skip


_works: dict[tuple[torch.device, torch.dtype], bool] = {}


def works_on(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether the kernel runs here; triton may be installed without a working compiler."""
    key = device, dtype
    if key not in _works:
        if capturing():  # a capture forbids a trial run
            return False
        _works[key] = _comes_out_right(device, dtype)
    return _works[key]


def _comes_out_right(device: torch.device, dtype: torch.dtype) -> bool:
    """Run a step of two lanes and compare its result."""
    weight, average, square = torch.ones(3, 2, 3, device=device, dtype=dtype).unbind(0)
    rates = torch.tensor([0.5, 0.25], device=device, dtype=torch.float64)
    numbers = Numbers(torch.ones((), device=device), rates, 0.9, 0.999, 0.0, 0.0)
    average.zero_(), square.zero_()
    try:
        adam_([weight], [weight * 3], [average], [square], [], numbers, decoupled=False, maximize=False)
        return torch.allclose(weight, (1 - rates[:, None]).to(dtype), rtol=1e-5)
    except Exception as error:  # any error here must fall back to torch's Adam, not fail the step
        why = one_line(error)
        warnings.warn(f"torch's Adam is used, because the Triton kernel failed: {why}", stacklevel=2)
        return False


_recorded: set[Tensor] = set()


def _in_memory(number: float, device: torch.device) -> Tensor:
    """Return the number as a float64 tensor; as a plain kernel argument it would become float32."""
    tensor = _lately_in_memory(number, device)
    if capturing():  # a captured graph reads it at every replay, so keep it alive
        _recorded.add(tensor)
    return tensor


@lru_cache(maxsize=1024)
def _lately_in_memory(number: float, device: torch.device) -> Tensor:
    return torch.tensor(number, dtype=torch.float64, device=device)
