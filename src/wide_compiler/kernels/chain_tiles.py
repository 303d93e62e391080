"""Tile loads and stores shared by the kernels of `lane_chain`.

Tiles are transposed, `[features, batch]`: a weight is then the left operand of its product, which tensor
cores take in 64 rows, and is loaded into registers without a transpose.
"""

from itertools import pairwise

import triton
import triton.language as tl

from ._triton import HALVES, sound_wgmma


def warps_fit(config: triton.Config, PADS: tuple, PRECISION: str) -> bool:
    """Return whether a config suits the widths.

    Eight warps work on 128 rows of a weight at once; four warps hold at most 64 x 128 of one in registers,
    two warps 64 x 64. Two warps do not use wgmma.
    """
    if (config.num_warps == 2) != (PRECISION in HALVES.values() and not sound_wgmma()):
        return False
    if config.num_warps == 8:
        return max(PADS) == 128
    return max(i * o for i, o in pairwise(PADS)) <= 64 * 32 * config.num_warps


@triton.jit
def _inside(r, c, R, C, FULL_R: tl.constexpr, FULL_C: tl.constexpr):
    """Return which elements (r, c) lie in R x C; a constant, so no mask remains, if both axes are full."""
    inside = tl.full((r.shape[0], c.shape[0]), True, tl.int1)
    if not FULL_R:
        inside = inside & (r[:, None] < R)
    if not FULL_C:
        inside = inside & (c[None, :] < C)
    return inside


@triton.jit
def load(ptr, r, c, R, C, r_step, c_step, FULL_R: tl.constexpr, FULL_C: tl.constexpr):
    """Load elements (r, c) of the R x C matrix at ptr, zeros outside."""
    ptrs = ptr + (r[:, None] * r_step + c[None, :] * c_step)
    return tl.load(ptrs, mask=_inside(r, c, R, C, FULL_R, FULL_C), other=0.0)


@triton.jit
def store(ptr, tile, r, c, R, C, FULL_R: tl.constexpr, FULL_C: tl.constexpr):
    tl.store(ptr + (r[:, None] * C + c[None, :]), tile, mask=_inside(r, c, R, C, FULL_R, FULL_C))


@triton.jit
def load_weight(ws, n, l: tl.constexpr, DIMS: tl.constexpr, PADS: tl.constexpr):
    """Load lane n's weight of layer l as a padded `[O, I]` tile."""
    o = tl.arange(0, PADS[l + 1])
    i = tl.arange(0, PADS[l])
    at = ws[l] + n * (DIMS[l] * DIMS[l + 1])
    return load(at, o, i, DIMS[l + 1], DIMS[l], DIMS[l], 1, DIMS[l + 1] == PADS[l + 1], DIMS[l] == PADS[l])
