"""Padding of each lane's adapter tensors to common shapes."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import AlignmentError, ArgumentError
from .trunk import Trunk, adapter_tensors


def padded(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """Return zeros of `shape` with `tensor` in the first corner.

    A padded LoRA of smaller rank computes the same: zero rows of A meet zero columns of B, and each has a
    zero gradient because of the other.

    >>> padded(torch.ones(1, 2), (2, 3)).tolist()
    [[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]
    """
    out = torch.zeros(shape, dtype=tensor.dtype, device=tensor.device)
    out[corner(tensor.shape)] = tensor.detach()
    return out


def corner(shape: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(size) for size in shape)


def check_ranks(library: Any, model: nn.Module, what: str) -> None:
    """Raise `ArgumentError` if a rank exceeds the maximum rank of the adapted weight."""
    for path, (rank, most) in library.ranks(model).items():
        if rank > most:
            raise ArgumentError(
                f"{what}: rank {rank} is more than {path} can have ({most}); choose r of at most {most}, or "
                f"a smaller one for this module by rank_pattern"
            )


def lane_tensors(
    library: Any, model: nn.Module, trunk: Trunk, room: Mapping[str, Tensor], what: str
) -> dict[str, Tensor]:
    """Return for every tensor in `room` (path -> tensor of common shape) this lane's tensor, padded.

    Raises `AlignmentError` if the model has a tensor that does not fit.
    """
    own, numbers, ranks = adapter_tensors(model, trunk), library.numbers(model), library.ranks(model)
    for path, tensor in own.items():
        here = room.get(path)
        if here is None:
            raise AlignmentError(
                f"{what} has {path} {tuple(tensor.shape)}, the other lanes have no such tensor"
            )
        if tensor.dim() != here.dim() or any(a > b for a, b in zip(tensor.shape, here.shape, strict=True)):
            raise AlignmentError(
                f"{what}: {path} is {tuple(tensor.shape)}, there is room for {tuple(here.shape)}; larger "
                f"ranks need adapters.compile(..., max_rank=...)"
            )
        if tensor.shape != here.shape and not any(path.startswith(f"{layer}.lora_") for layer in ranks):
            raise AlignmentError(f"{what}: {path} is {tuple(tensor.shape)}, expected {tuple(here.shape)}")
    found = {}
    for path, here in room.items():
        if path in own:
            found[path] = padded(own[path].to(here), here.shape)
        elif path in numbers:
            found[path] = torch.full_like(here, numbers[path])
        elif "lora_" in path or "scaling" in path:  # a module that this lane does not adapt
            found[path] = torch.zeros_like(here)
        else:
            raise AlignmentError(f"{what} lacks {path} {tuple(here.shape)}, which other lanes have")
    return found
