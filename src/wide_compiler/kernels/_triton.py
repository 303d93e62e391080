"""Availability checks and launch helpers for the kernels of this folder; importable without triton.

Modules with `@triton.jit` functions import triton at the top, so callers import them only if `available()` is
True; `import wide_compiler` then needs no triton.
"""

import functools
import importlib.util
import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import ArgumentError

HAVE_TRITON = importlib.util.find_spec("triton") is not None
MULTIPROCESSORS = 132  # of an H100 or H200
TRIED = 4  # number of block sizes compiled and timed per kernel and shape
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
HALVES = {torch.bfloat16: "bf16", torch.float16: "fp16"}  # names used by the kernels' PRECISION
# Activations that kernels can apply to their result.
ACTIVATIONS = {
    "none": lambda x: x,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
}


def interpreting() -> bool:
    """Return whether triton interprets its kernels in Python, on CPU tensors (TRITON_INTERPRET=1).

    Read at every call, because a test may set the variable after import.
    """
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes", "y")


def available() -> bool:
    """Return whether triton is installed and has a GPU, or the interpreter is on."""
    return HAVE_TRITON and (interpreting() or torch.cuda.is_available())


def supports(*tensors: Tensor | None) -> bool:
    """Return whether the kernels support these tensors: one device they run on, one dtype of `DTYPES`.

    None is skipped. Does not check `available()`.
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
    """Return how float32 products are computed: "tf32", or "tf32x3" (float32 accuracy from tensor cores).

    Args:
        kind: "matmul" follows `torch.set_float32_matmul_precision`, "conv" follows
            `torch.backends.cudnn.allow_tf32`, so a kernel is as accurate as the torch op it replaces.
    """
    try:
        if kind == "matmul":
            fast = torch.get_float32_matmul_precision() != "highest"
        elif kind == "conv":
            fast = torch.backends.cudnn.allow_tf32
        else:
            raise ArgumentError(f'precision: kind is "matmul" or "conv", not {kind!r}')
    except RuntimeError:  # the old flags cannot be read if the new ones disagree: use the exact mode
        return "tf32x3"
    return "tf32" if fast else "tf32x3"


@functools.cache
def sound_wgmma() -> bool:
    """Return whether a kernel may have several 16-bit products by Hopper's warp group instructions (wgmma).

    ptxas 12.8, which Triton 3.6 brings, miscompiles many such kernels: it takes an operand's address from a
    register that nothing has set, which gives wrong numbers or an illegal access. Version 12.9 does not.
    """
    if interpreting() or not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
        return True
    from triton import knobs

    return tuple(int(part) for part in knobs.nvidia.ptxas.version.split(".")[:2]) >= (12, 9)


def products(t: Tensor, kind: str) -> str:
    """Return how products of t are computed: `precision` for float32, "tf32" for 16-bit dtypes.

    16-bit operands are multiplied without conversion; "tf32" changes nothing for them.
    """
    return precision(kind) if t.dtype == torch.float32 else "tf32"


def next_pow2(n: int) -> int:
    """Return the smallest power of two that is at least n and at least 1.

    >>> [next_pow2(n) for n in (0, 1, 5, 64, 65)]
    [1, 1, 8, 64, 128]
    """
    return 1 << max(n - 1, 0).bit_length()


def span(t: Tensor) -> int:
    """Return one more than the largest offset into t, which the index type must be able to hold."""
    return 1 + sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True) if size)


def on_device(t: Tensor) -> AbstractContextManager:
    """Return a context in which triton launches on t's GPU; its default is the current one."""
    return torch.cuda.device(t.device) if t.is_cuda else nullcontext()


def briefly(call: Any, quantiles: Any) -> Any:
    """Time one config for the autotuner, with a tenth of its default time."""
    from triton.testing import do_bench

    return do_bench(call, warmup=4, rep=12, quantiles=quantiles)


def likeliest(configs: list[Any], rows: int, columns: int, lanes: int) -> list[Any]:
    """Return the `TRIED` configs with the lowest estimated cost for a product `[rows, columns]` in each lane.

    Compiling a config takes a second or two, and every shape of convolution is compiled separately, so trying
    all would take minutes. The cost accounts for padding in the blocks, the reads per product, and how evenly
    the programs fill the GPU.
    """

    def cost(config: Any) -> float:
        bm, bn, warps = config.kwargs["BM"], config.kwargs["BN"], config.num_warps
        programs = -(-rows // bm) * -(-columns // bn) * lanes
        rounds = -(-programs // (MULTIPROCESSORS * 16 // warps))
        return rounds * (bm * bn + 32 * (bm + bn)) / warps

    return sorted(configs, key=cost)[:TRIED]
