"""Moves a tensor from one mesh to another.

On the wire the tensor is sharded along one dimension on both sides, so neither side has to know the other's
placement. Every worker of either mesh runs this at the same point of the global instruction order, so two
transfers cannot deadlock.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from .collectives import WITHOUT_NAME, to_bytes
from .layout import fitting, nested_bounds


def wire_axis(
    shape: Sequence[int], senders: Sequence[int], receivers: Sequence[int], prefer: int | None
) -> int | None:
    """Return a dimension that can be sharded over all workers of both meshes, or None.

    With None the first sender sends the whole tensor.

    >>> wire_axis((8, 6), (2,), (4,), 0), wire_axis((2, 6), (2,), (3,), 0), wire_axis((), (1,), (2, 2), 0)
    (0, 1, None)
    """
    axes = range(len(shape)) if prefer is None else (prefer, *range(len(shape)))
    for axis in axes:
        if all(None not in fitting(shape, (axis,) * len(mesh), mesh) for mesh in (senders, receivers)):
            return axis
    return None


def exchange(
    rank: int,
    senders: tuple[int, ...],
    receivers: tuple[int, ...],
    sides: tuple[Sequence[int], Sequence[int]],
    shape: tuple[int, ...],
    dtype: torch.dtype,
    axis: int | None,
    mine: Tensor | None,
    device: torch.device,
) -> tuple[Tensor | None, int]:
    """Send and receive this worker's parts; returns a receiver's result (or None) and the bytes sent.

    Args:
        rank: this worker.
        senders, receivers: workers of both meshes.
        sides: shapes of both meshes.
        shape, dtype: of the whole tensor.
        axis: the dimension sharded on the wire, or None.
        mine: a sender's shard along `axis`, or the whole tensor if `axis` is None.
        device: of the result.
    """
    if axis is None:
        parts = {senders[0]: (0, 1)}
        wanted = dict.fromkeys(receivers, (0, 1))
    else:
        parts = dict(zip(senders, nested_bounds(shape[axis], sides[0]), strict=True))
        wanted = dict(zip(receivers, nested_bounds(shape[axis], sides[1]), strict=True))

    def part(x: Tensor, start: int, end: int) -> Tensor:
        return x if axis is None else x.narrow(axis, start, end - start)

    def room(start: int, end: int, where: torch.device | str) -> Tensor:
        size = shape if axis is None else (*shape[:axis], end - start, *shape[axis + 1 :])
        return torch.empty(size, dtype=dtype, device=where)

    through_host = dist.get_backend() == "gloo" and device.type != "cpu"
    requests: list = []
    keep: list[Tensor] = []  # buffers in flight must stay alive
    arrived: list[tuple[Tensor, Tensor]] = []  # where a part belongs, and its buffer
    sent = 0
    held = room(*wanted[rank], device) if rank in wanted else None
    for sender, (s0, s1) in parts.items():
        for receiver, (r0, r1) in wanted.items():
            start, end = max(s0, r0), min(s1, r1)
            if start >= end or rank not in (sender, receiver):
                continue
            piece = None if mine is None or rank != sender else part(mine, start - s0, end - s0)
            goal = None if held is None or rank != receiver else part(held, start - r0, end - r0)
            if piece is None:
                assert goal is not None
                buffer = room(start, end, "cpu" if through_host else device)
                requests.append(dist.irecv(_sendable(buffer), sender))
                arrived.append((goal, buffer))
            elif goal is not None:
                goal.copy_(piece)
            else:
                piece = piece.contiguous()
                keep.append(piece.cpu() if through_host else piece)
                requests.append(dist.isend(_sendable(keep[-1]), receiver))
                sent += piece.numel() * piece.element_size()
    for request in requests:
        request.wait()
    for goal, buffer in arrived:
        goal.copy_(buffer)
    return held, sent


def _sendable(x: Tensor) -> Tensor:
    """Return the same memory in a dtype that can be sent."""
    return to_bytes(x) if x.dtype in WITHOUT_NAME else x
