"""Numbers of an adapter (scaling, dropout rate) as buffers, so that lanes may differ in them.

A Python number would be a constant of the captured graph, and each distinct value would need a capture.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn


class NumberBuffers(nn.Module):
    """A dict of numbers by adapter name, each a 0-dim buffer on the device of `beside`."""

    def __init__(self, numbers: dict[str, float], beside: Tensor):
        super().__init__()
        for name, number in numbers.items():
            buffer = torch.tensor(float(number), dtype=torch.float64, device=beside.device)
            self.register_buffer(name, buffer, persistent=False)

    def __getitem__(self, name: str) -> Tensor:
        return self._buffers[name]  # type: ignore[return-value]

    def __contains__(self, name: str) -> bool:
        return name in self._buffers

    def __iter__(self) -> Iterator[str]:
        return iter(self._buffers)

    def keys(self) -> list[str]:
        return list(self._buffers)

    def _apply(self, fn, recurse: bool = True):  # type: ignore[no-untyped-def]
        for name, number in self._buffers.items():  # move to another device, but keep float64
            assert number is not None
            self._buffers[name] = number.to(fn(number).device)
        return self


class LaneDropout(nn.Module):
    """Dropout whose rate is a buffer `p` on the device of `beside`."""

    p: Tensor

    def __init__(self, p: float, beside: Tensor):
        super().__init__()
        self.register_buffer("p", torch.tensor(float(p), device=beside.device), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        p = self.p.to(x.dtype)
        kept = torch.rand_like(x) >= p
        return torch.where(kept, x / (1 - p), torch.zeros_like(x))
