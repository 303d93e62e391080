"""A tensor of a mesh of several workers, as each of them holds it.

A view of a DTensor is a real view of the local shard only while no redistribution was needed to make it. So a
`Value` remembers how it was made from its parent: after a write elsewhere a view that does not share
memory with the root is made again, and a write to such a view goes through the whole root.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

from .layout import shard_bounds


class Value:
    """A DTensor and, if it is a view, its parent and the op that makes it from the parent."""

    __slots__ = ("aliases", "dtensor", "made_from", "parent", "remake", "root", "seen_writes", "writes")

    def __init__(
        self, dtensor: DTensor, parent: Value | None = None, remake: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        self.dtensor = dtensor
        self.parent = parent
        self.remake = remake
        self.root: Value = self if parent is None else parent.root
        self.writes = 0  # counted at the root only
        self._remember()

    def _remember(self) -> None:
        self.seen_writes = self.root.writes
        if self.parent is None:
            self.aliases, self.made_from = True, None
            return
        self.made_from = self.parent.dtensor
        self.aliases = self.parent.aliases and _same_memory(self.dtensor, self.root.dtensor)

    def current(self) -> DTensor:
        """The DTensor with every write so far in it."""
        if self.parent is None:
            return self.dtensor
        parent = self.parent.current()
        if parent is not self.made_from or not (self.aliases or self.seen_writes == self.root.writes):
            assert self.remake is not None
            made = self.remake(parent)
            assert isinstance(made, DTensor)
            self.dtensor = made
            self._remember()
        return self.dtensor

    def reduced(self) -> DTensor:
        """The same with no partial sums left; the root itself is reduced, so every view sees it."""
        root = self.root
        if any(p.is_partial() for p in root.dtensor.placements):
            root.dtensor = reduced(root.dtensor)
        return self.current()

    def store(self, result: DTensor) -> None:
        """Write `result` (broadcast and cast as `copy_` does) into this value and all that shares memory."""
        target = self.reduced()
        if self.aliases:
            if result.shape != target.shape:
                result = cast(DTensor, result.expand(target.shape))
            local_of(target).copy_(local_of(result.redistribute(placements=target.placements)))
        else:
            root = self.root.dtensor
            full = whole_of(root).clone()
            self._on(full).copy_(whole_of(result))
            local_of(root).copy_(cut(full, root))
        self.root.writes += 1

    def _on(self, full_root: Tensor) -> Tensor:
        """This view of a plain copy of the root: a real view, whatever the view op."""
        if self.parent is None:
            return full_root
        assert self.remake is not None
        return self.remake(self.parent._on(full_root))


def whole_of(x: DTensor) -> Tensor:
    """All of a tensor. Where gloo has no name for its dtype, bytes travel, and sums are made in a wider one."""
    if x.dtype not in _UNKNOWN_TO_GLOO or all(p.is_replicate() for p in x.placements):
        return x.full_tensor()
    if any(p.is_partial() for p in x.placements):
        wide = torch.float32 if x.dtype.is_floating_point else torch.int64
        return whole_of(wrap(local_of(x).to(wide), x, x.shape, x.stride())).to(x.dtype)
    raw = local_of(x).contiguous().unsqueeze(-1).view(torch.uint8)
    shape = torch.Size((*x.shape, raw.shape[-1]))
    stride = torch.empty(shape, device="meta").stride()
    return wrap(raw, x, shape, stride).full_tensor().view(x.dtype).squeeze(-1)


_UNKNOWN_TO_GLOO = {
    getattr(torch, name)
    for name in (
        "int16 uint16 uint32 uint64 complex32 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu"
    ).split()
}


def local_of(x: DTensor) -> Tensor:
    """This worker's shard itself, not a differentiable copy."""
    return x._local_tensor


def _same_memory(a: DTensor, b: DTensor) -> bool:
    return local_of(a).untyped_storage().data_ptr() == local_of(b).untyped_storage().data_ptr()


def reduced(x: DTensor) -> DTensor:
    """`x` with partial sums added up."""
    if not any(p.is_partial() for p in x.placements):
        return x
    return x.redistribute(placements=[Replicate() if p.is_partial() else p for p in x.placements])


def cut(full: Tensor, like: DTensor) -> Tensor:
    """This worker's part of `full` under the placement of `like` (replicated or sharded, one mesh
    dimension)."""
    placement = like.placements[0]
    if not isinstance(placement, Shard):
        return full
    mesh = like.device_mesh
    start, end = shard_bounds(full.shape[placement.dim], mesh.size())[mesh.get_local_rank()]
    return full.narrow(placement.dim, start, end - start)


def wrap(local: Tensor, like: DTensor, shape: torch.Size, stride: tuple[int, ...]) -> DTensor:
    """A local result as a DTensor placed as `like`, without a look at the other workers."""
    spec = like._spec
    if spec.tensor_meta != (shape, stride, local.dtype):
        meta = TensorMeta(shape, stride, local.dtype)
        spec = DTensorSpec(like.device_mesh, like.placements, tensor_meta=meta)
    return DTensor(local, spec, requires_grad=False)  # type: ignore[call-arg]
