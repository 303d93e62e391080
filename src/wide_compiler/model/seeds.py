"""A seed per lane: the numbers a lane draws depend on its own seed and on how often it has drawn."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import ArgumentError

_STRIDE = 1_000_003  # between two calls; any number that keeps nearby seeds and calls apart


class LaneSeeds:
    def __init__(self) -> None:
        self.seeds: Tensor | None = (
            None  # a tensor that moves on, so that torch.compile need not know the count
        )

    def set(self, seeds: int | Sequence[int] | None, n: int, device: torch.device) -> None:
        if seeds is None:
            self.seeds = None
            return
        values = [seeds + i for i in range(n)] if isinstance(seeds, int) else list(seeds)
        if len(values) != n:
            raise ArgumentError(f"seed takes one number or {n}, one per lane, got {len(values)}")
        self.seeds = torch.tensor(values, dtype=torch.int64, device=device)

    def peek(self) -> Tensor | None:
        """Seeds to try something with, without moving on."""
        return self.seeds

    def next(self) -> Tensor | None:
        """The seeds `[N]` for one call; None if PyTorch's own generator draws."""
        if self.seeds is None:
            return None
        self.seeds = self.seeds + _STRIDE
        return self.seeds

    def select(self, lanes: Sequence[int]) -> None:
        if self.seeds is not None:
            self.seeds = self.seeds[list(lanes)]

    def to(self, device: torch.device) -> None:
        if self.seeds is not None:
            self.seeds = self.seeds.to(device)
