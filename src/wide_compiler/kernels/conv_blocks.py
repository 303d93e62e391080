"""Block configs of the convolution kernels for the autotuner."""

from collections.abc import Sequence

import triton

from ._triton import interpreting, likeliest, next_pow2


def configs_of(blocks: Sequence[tuple]) -> list[triton.Config]:
    """Return the configs of blocks (BM, BN, BK, FLAT, warps, stages).

    With one stage, reads go through the L1 cache, which helps where windows overlap; with more stages they
    bypass it and are prefetched.
    """
    if interpreting():
        blocks = ((64, 32, 32, True, 4, 1),)  # one config: there is no GPU to time them on
    return [
        triton.Config({"BM": bm, "BN": bn, "BK": bk, "FLAT": flat}, num_warps=warps, num_stages=stages)
        for bm, bn, bk, flat, warps, stages in blocks
    ]


def pixel_blocks(
    configs: list[triton.Config], named: dict, taps: int, outputs: int, summed: int, stride: int
) -> list[triton.Config]:
    """Return the likeliest configs of a product [pixels, outputs] summed over channels and taps.

    Drops blocks much larger than the product and small blocks of a large one; blocks of two warps are kept
    only if `stride`, of the summed channels in memory, is not 1.
    """
    rows, columns = max(named["M_KEY"], 32), max(next_pow2(outputs), 16)
    kept = []
    for config in configs:
        block = config.kwargs
        fits_in = (
            block["BM"] <= rows and block["BN"] <= max(columns, 32) and block["BM"] * 8 >= min(rows, 512)
        )
        # With few channels most of a block along them would be empty.
        order = summed < 16 or summed % 32 > 0 if block["FLAT"] else summed >= 16
        # The cache helps where windows overlap and enough programs hide its latency.
        cached = config.num_stages > 1 or (taps > 1 and rows * named["N"] >= 2**15)
        innermost = config.num_warps > 2 or stride != 1
        if fits_in and order and cached and innermost:
            kept.append(config)
    return likeliest(kept, rows, columns, named["N"]) or configs[-1:]
