"""What the recurrent kernels, forward and backward, have in common: their settings, and a turn's product.

Shapes as in `rnn`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ._triton import MULTIPROCESSORS, next_pow2, precision
from .operands import rounded

SHARED = 227 * 1024  # bytes of shared memory that one of its programs can have


def _stages(width: int, block: int, device: torch.device) -> int:
    """How many turns of weights to have on the way: as many as fit into shared memory."""
    room = SHARED
    if device.type == "cuda":
        room = getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", SHARED)
    small = 4 * width * block  # a tile of a gate; one comes along with every weight, some are for exchange
    return max(min(1 + (room - 3 * small) // (4 * width * width + small), 4), 1)


def launch(hidden: int, rows: int, lanes: int, device: torch.device) -> dict[str, object]:
    """The settings that every recurrent kernel is started with; BB is how many rows a program takes.

    Few rows, so that every multiprocessor has a program; more where there are programs enough, as each
    reads the weights anew.
    """
    few = 8  # the fewest a tensor core takes
    block = 2 * few if rows > few and lanes * triton.cdiv(rows, few) > MULTIPROCESSORS else few
    width = max(next_pow2(hidden), 16)
    return {
        "H": hidden,
        "PRECISION": precision("matmul"),
        "BB": block,
        "HP": width,
        "num_warps": min(width // 16, 8),
        "num_stages": _stages(width, block, device),
    }


@triton.jit
def tanh(x):
    """Exact to float32's rounding of 1: a state or a gate is of that size."""
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def halves(x):
    """x as what a tensor core sees of it, the upper 19 bits, and the rest."""
    upper = (x.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)
    return upper, x - upper


@triton.jit
def product(w, upper, rest, start, turn, PRECISION: tl.constexpr):
    """start + w @ v for a vector per batch row, v given as its halves.

    Three products that do not wait for each other: triton's own "tf32x3" is one long chain of them.
    """
    w_upper, w_rest = halves(w)
    if PRECISION == "tf32":  # without the rest of it
        w_upper = rounded(w, PRECISION)
    # Zeros that triton does not see are zeros; else it would make a chain of the products.
    nothing = tl.full(start.shape, tl.where(turn < 0, 1.0, 0.0), tl.float32)
    small = tl.dot(w_upper, rest, nothing, input_precision="tf32")
    if PRECISION == "tf32x3":
        small += tl.dot(w_rest, upper, nothing, input_precision="tf32")
    return tl.dot(w_upper, upper, start, input_precision="tf32") + small
