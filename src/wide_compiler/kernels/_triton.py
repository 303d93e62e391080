"""What every kernel of this folder asks before it runs; imports without triton.

The modules with `@triton.jit` functions import triton at their top, so callers import them only after
`available()` said yes: `import wide_compiler` then needs no triton.
"""

from __future__ import annotations

import importlib.util
import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from ..errors import ArgumentError

HAVE_TRITON = importlib.util.find_spec("triton") is not None
MULTIPROCESSORS = 132  # of an H100 or H200
TRIED = 4  # blocks of each kernel and shape that are compiled and timed
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
HALVES = {torch.bfloat16: "bf16", torch.float16: "fp16"}  # as kernels are told of them


def interpreting() -> bool:
    """Whether triton runs its kernels in Python, on CPU tensors (TRITON_INTERPRET=1).

    Read at every call: a test may set the variable after this module was imported.
    """
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")


def available() -> bool:
    """Whether triton kernels can run here: triton is installed and has a GPU, or the interpreter is on."""
    return HAVE_TRITON and (interpreting() or torch.cuda.is_available())


def supports(*tensors: Tensor | None) -> bool:
    """Whether the kernels take these tensors: one device they run on, one dtype of `DTYPES`.

    None is skipped. Says nothing about `available()`.
    """
    given = [t for t in tensors if t is not None]
    if not given:
        return False
    dtype, device = given[0].dtype, given[0].device
    return (
        dtype in DTYPES
        and (device.type == "cuda" or interpreting())
        and all(t.dtype == dtype and t.device == device for t in given)
    )


def precision(kind: str) -> str:
    """How float32 products are computed: "tf32", or "tf32x3" (float32 accuracy from tensor cores).

    Args:
        kind: "matmul" follows `torch.set_float32_matmul_precision`, "conv" follows
            `torch.backends.cudnn.allow_tf32`, so that a kernel is as exact as the torch op it replaces.
    """
    try:
        if kind == "matmul":
            fast = torch.get_float32_matmul_precision() != "highest"
        elif kind == "conv":
            fast = torch.backends.cudnn.allow_tf32
        else:
            raise ArgumentError(f'precision: kind is "matmul" or "conv", not {kind!r}')
    except RuntimeError:  # the old flags cannot be read once the new ones disagree: take the exact one
        return "tf32x3"
    return "tf32" if fast else "tf32x3"


def products(t: Tensor, kind: str) -> str:
    """How products of t are computed: `precision` for float32; halves are multiplied as they are, which the
    same word stands for.
    """
    return precision(kind) if t.dtype == torch.float32 else "tf32"


def next_pow2(n: int) -> int:
    """The smallest power of two that is at least n (and at least 1).

    >>> [next_pow2(n) for n in (0, 1, 5, 64, 65)]
    [1, 1, 8, 64, 128]
    """
    return 1 << max(n - 1, 0).bit_length()


def span(t: Tensor) -> int:
    """One more than the largest offset into t: what an index type must hold."""
    return 1 + sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True) if size)


def on_device(t: Tensor) -> AbstractContextManager:
    """A context in which triton launches on t's GPU: it would launch on the current one."""
    return torch.cuda.device(t.device) if t.is_cuda else nullcontext()


def briefly(call: Any, quantiles: Any) -> Any:
    """Time one block of a kernel, for the autotuner: what it would take by itself is ten times as long."""
    from triton.testing import do_bench

    return do_bench(call, warmup=4, rep=12, quantiles=quantiles)


def likeliest(configs: list[Any], rows: int, columns: int, lanes: int) -> list[Any]:
    """The few blocks of a product `[rows, columns]` in each lane that promise most.

    Compiling one takes a second or two, and every shape of convolution is compiled by itself: trying all of
    them would take minutes. What counts is how much of the blocks is padding, how much is read for each
    product, and how evenly the programs fill the GPU.
    """

    def cost(config: Any) -> float:
        bm, bn, warps = config.kwargs["BM"], config.kwargs["BN"], config.num_warps
        programs = -(-rows // bm) * -(-columns // bn) * lanes
        rounds = -(-programs // (MULTIPROCESSORS * 16 // warps))
        return rounds * (bm * bn + 32 * (bm + bn)) / warps

    return sorted(configs, key=cost)[:TRIED]
