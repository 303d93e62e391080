"""Estimate of the device memory that a training step needs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .. import _tree
from ..errors import ArgumentError
from ..model.inputs import normalize_sample
from .trunk import Trunk, adapter_tensors


@dataclass(frozen=True)
class Estimate:
    """Bytes needed by one training step of all lanes.

    Attributes:
        trunk: the base's tensors, once.
        adapters: weights, gradients and two Adam moments of all lanes.
        activations: memory saved for backward by the lanes that run at once.
        lanes: number of lanes that run at once.
        free: free memory of the device; None if it is not a GPU.
    """

    trunk: int
    adapters: int
    activations: int
    lanes: int
    free: int | None

    @property
    def total(self) -> int:
        return self.trunk + self.adapters + self.activations

    @classmethod
    def of(
        cls, member: nn.Module, trunk: Trunk, n: int, sample: Any, kwargs: Any, chunk_lanes: int | None
    ) -> "Estimate":
        """Run one forward of `member` on `sample`, and count the tensors saved for backward."""
        tensors = list(trunk.model.parameters())
        kept = _kept_bytes(member, sample, kwargs)
        adapters = sum(map(_bytes, adapter_tensors(member, trunk).values()))
        lanes = min(n, chunk_lanes or n)
        device = next((t.device for t in tensors), torch.device("cpu"))
        free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None
        return cls(sum(map(_bytes, tensors)), 4 * n * adapters, kept * lanes, lanes, free)

    def check(self, limit: int | None) -> None:
        """Raise `ArgumentError` if more than `limit` bytes are needed; by default, the free memory."""
        need = self.total if limit is not None else self.adapters + self.activations  # the trunk exists
        limit = self.free if limit is None else limit
        if limit is None or need <= limit:
            return
        room = limit - (need - self.activations)
        lanes = int(room // max(self.activations // self.lanes, 1))
        remedy = (
            f"chunk_lanes={lanes} would fit" if lanes > 0 else "not even one lane fits: use smaller batches"
        )
        raise ArgumentError(f"{self}; there are {_gib(limit)}; {remedy}")

    def __str__(self) -> str:
        return (
            f"a training step of {self.lanes} lanes at once needs about {_gib(self.total)} (base "
            f"{_gib(self.trunk)}, adapters with gradients and moments {_gib(self.adapters)}, activations "
            f"{_gib(self.activations)})"
        )


def _kept_bytes(member: nn.Module, sample: Any, kwargs: Mapping[str, Any] | None) -> int:
    args, keywords = normalize_sample(sample, kwargs)
    given = [x for x in _tree.flatten((args, keywords))[0] if isinstance(x, Tensor)]
    own = {t.untyped_storage().data_ptr() for t in (*member.parameters(), *member.buffers(), *given)}
    found: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        memory = tensor.untyped_storage()
        if memory.data_ptr() not in own:
            found[memory.data_ptr()] = memory.nbytes()
        return tensor

    with (
        torch.enable_grad(),
        torch.random.fork_rng(),
        torch.autograd.graph.saved_tensors_hooks(note, lambda t: t),
    ):
        output = member(*args, **keywords)
    leaves = [x for x in _tree.flatten(output)[0] if isinstance(x, Tensor)]
    return sum(found.values()) + sum(map(_bytes, leaves))


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB" if size > 2**27 else f"{size / 2**20:.1f} MiB"
