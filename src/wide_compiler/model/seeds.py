"""Seeds per lane: a lane's draws depend only on its seed and the number of calls."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..capture.lock import OwnLock
from ..errors import ArgumentError

_STRIDE = 1_000_003  # between two calls; large, so that nearby seeds do not collide


class LaneSeeds:
    def __init__(self) -> None:
        # A tensor that is advanced at each call, so that torch.compile does not specialise on a count.
        self.seeds: Tensor | None = None
        self._lock = OwnLock()

    def set(self, seeds: int | Sequence[int] | None, n: int, device: torch.device) -> None:
        if seeds is None:
            self.seeds = None
            return
        values = [seeds + i for i in range(n)] if isinstance(seeds, int) else list(seeds)
        if len(values) != n:
            raise ArgumentError(f"seed takes one number or {n}, one per lane, got {len(values)}")
        self.seeds = torch.tensor(values, dtype=torch.int64, device=device)

    def peek(self) -> Tensor | None:
        """Return the seeds without advancing them."""
        return self.seeds

    def next(self) -> Tensor | None:
        """Advance and return the seeds `[N]` for one call; None if PyTorch's generator is used."""
        if self.seeds is None:
            return None
        if torch.compiler.is_dynamo_compiling():  # which traces no locks
            self.seeds = self.seeds + _STRIDE
            return self.seeds
        with self._lock:  # two threads never draw the same numbers
            self.seeds = seeds = self.seeds + _STRIDE
        return seeds

    def select(self, lanes: Sequence[int]) -> None:
        if self.seeds is not None:
            self.seeds = self.seeds[list(lanes)]

    def to(self, device: torch.device) -> None:
        if self.seeds is not None:
            self.seeds = self.seeds.to(device)
