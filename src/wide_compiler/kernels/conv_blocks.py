"""The blocks that a convolution's kernel may work in, as the autotuner takes them."""

from __future__ import annotations

from collections.abc import Sequence

import triton

from ._triton import interpreting


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
