"""Launch settings and the split product shared by the recurrent kernels.

Shapes as in `lane_rnn`.
"""

import torch
import triton
import triton.language as tl

from ._triton import MULTIPROCESSORS, next_pow2, precision
from .operands import rounded

SHARED = 227 * 1024  # bytes of shared memory available to one program


def _stages(width: int, block: int, device: torch.device) -> int:
    """Return how many iterations of weights to prefetch: as many as fit into shared memory, at most 4."""
    room = SHARED
    if device.type == "cuda":
        room = getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", SHARED)
    small = 4 * width * block  # tile of a gate: one per weight, a few for exchange
    return max(min(1 + (room - 3 * small) // (4 * width * width + small), 4), 1)


def launch(hidden: int, rows: int, lanes: int, device: torch.device) -> dict[str, object]:
    """Return the launch settings of every recurrent kernel; BB is the number of batch rows per program.

    Few rows, so that every multiprocessor has a program; more if there are programs enough, because each
    program reads the weights again.
    """
    few = 8  # fewest columns of a tensor core
    block = 2 * few if rows > few and lanes * triton.cdiv(rows, few) > MULTIPROCESSORS else few
    width = max(next_pow2(hidden), 16)
    tiles = {"H": hidden, "PRECISION": precision("matmul"), "BB": block, "HP": width}
    return {**tiles, "num_warps": min(width // 16, 8), "num_stages": _stages(width, block, device)}


@triton.jit
def tanh(x):
    """Compute tanh of a tile, accurate to float32 rounding at 1, the size of states and gates."""
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def halves(x):
    """Split x into the part a tensor core reads (the upper 19 bits) and the remainder."""
    upper = (x.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)
    return upper, x - upper


@triton.jit
def product(w, upper, rest, start, turn, PRECISION: tl.constexpr):
    """Compute start + w @ v, with v given as `halves`.

    Three independent products; triton's "tf32x3" is one dependent chain of them.
    """
    w_upper, w_rest = halves(w)
    if PRECISION == "tf32":  # the remainder of w is dropped
        w_upper = rounded(w, PRECISION)
    # Zeros that triton cannot see are constant; otherwise it would chain the products.
    nothing = tl.full(start.shape, tl.where(turn < 0, 1.0, 0.0), tl.float32)
    small = tl.dot(w_upper, rest, nothing, input_precision="tf32")
    if PRECISION == "tf32x3":
        small += tl.dot(w_rest, upper, nothing, input_precision="tf32")
    return tl.dot(w_upper, upper, start, input_precision="tf32") + small
