"""Lanes whose buffers a forward shall not move: they are put back after it."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


class HeldLanes:
    """Which lanes are held; none at first."""

    def __init__(self) -> None:
        self.lanes: Tensor | None = None  # whole numbers `[k]`, on the model's device
        self.changes = 0  # how often they were set: whoever records a call can see that they were

    def set(self, lanes: Sequence[int], device: torch.device) -> None:
        self.lanes = torch.tensor(lanes, dtype=torch.int64, device=device) if len(lanes) else None
        self.changes += 1

    def to(self, device: torch.device) -> None:
        if self.lanes is not None:
            self.lanes = self.lanes.to(device)
            self.changes += 1

    def rows(self, model: Any) -> list[tuple[Tensor, Tensor, Tensor]]:
        """(buffer, held lanes, their rows now) of every buffer with lanes."""
        if self.lanes is None:
            return []
        buffers = [t for t in model.stacked_tensors() if not isinstance(t, nn.Parameter)]
        return [(buffer, self.lanes, buffer.detach().index_select(0, self.lanes)) for buffer in buffers]

    @staticmethod
    def put_back(rows: list[tuple[Tensor, Tensor, Tensor]]) -> None:
        if not rows:
            return
        with torch.no_grad():
            for buffer, lanes, kept in rows:
                # `.data`: a backward pass that has kept the buffer must not take this for a change of it.
                buffer.data.index_copy_(0, lanes, kept)
