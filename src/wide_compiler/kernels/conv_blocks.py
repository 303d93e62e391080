"""The blocks that a convolution's kernel may work in, as the autotuner takes them."""

from __future__ import annotations

from collections.abc import Sequence

import triton

from ._triton import interpreting, likeliest, next_pow2


def configs_of(blocks: Sequence[tuple]) -> list[triton.Config]:
    """The configs of blocks (BM, BN, BK, FLAT, warps, stages).

    One stage: what is read goes through the first-level cache, where the taps of a window overlap; more: past
    it, but ahead of time.
    """
    if interpreting():
        blocks = ((64, 32, 32, True, 4, 1),)  # one: there is no GPU to time them on
    return [
        triton.Config({"BM": bm, "BN": bn, "BK": bk, "FLAT": flat}, num_warps=warps, num_stages=stages)
        for bm, bn, bk, flat, warps, stages in blocks
    ]


def pixel_blocks(
    configs: list[triton.Config], named: dict, taps: int, outputs: int, summed: int, stride: int
) -> list[triton.Config]:
    """Those of a product [pixels, outputs] summed over channels and taps: blocks much larger than it, and
    slivers of a large one, cannot win.

    Args:
        outputs, summed: channels that come out, and those summed over.
        stride: of the summed channels in what is read with fewer warps.
    """
    rows, columns = max(named["M_KEY"], 32), max(next_pow2(outputs), 16)
    kept = []
    for config in configs:
        block = config.kwargs
        fits_in = (
            block["BM"] <= rows and block["BN"] <= max(columns, 32) and block["BM"] * 8 >= min(rows, 512)
        )
        # Few channels would leave most of a block along them empty.
        order = summed < 16 or summed % 32 > 0 if block["FLAT"] else summed >= 16
        # The cache is worth the wait where windows overlap and there are programs enough to wait in turn.
        cached = config.num_stages > 1 or (taps > 1 and rows * named["N"] >= 2**15)
        innermost = config.num_warps > 2 or stride != 1
        if fits_in and order and cached and innermost:
            kept.append(config)
    return likeliest(kept, rows, columns, named["N"]) or configs[-1:]
