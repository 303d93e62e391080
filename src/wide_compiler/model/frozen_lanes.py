"""Lanes whose buffers stay constant: a forward's changes to them are undone."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..remote_tensors import memory_id


class FrozenLanes:
    """Lanes with frozen buffers; none at first."""

    def __init__(self) -> None:
        self.lanes: Tensor | None = None  # indices `[k]`, on the model's device
        self.changes = 0  # number of changes, compared by recordings

    def set(self, lanes: Sequence[int], device: torch.device) -> None:
        self.lanes = torch.tensor(lanes, dtype=torch.int64, device=device) if len(lanes) else None
        self.changes += 1

    def to(self, device: torch.device) -> None:
        if self.lanes is not None:
            self.lanes = self.lanes.to(device)
            self.changes += 1

    def rows(self, model: Any) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Return (buffer, frozen lanes, their current rows) for every buffer with lanes."""
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
                # Backward may have saved the buffer and counts writes: `.data` avoids the counter here; on
                # workers only other memory does.
                if memory_id(buffer) is None:
                    buffer.data.index_copy_(0, lanes, kept)
                else:
                    buffer.data = buffer.data.index_copy(0, lanes, kept)
