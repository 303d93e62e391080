"""A sharded tensor as one worker of its mesh holds it.

A view of a DTensor is a view of the local shard only if making it needed no redistribution. A `ShardedValue`
therefore remembers how it was made from its parent: after a write elsewhere, a view that does not share
memory with the root is remade, and a write to such a view goes through the whole root.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

from .layout import Axes, part_of


class ShardedValue:
    """A DTensor and, if it is a view, its parent and the op that makes it from the parent.

    Attributes:
        gathers: mesh dimensions along which a parameter is sharded to save memory; it is gathered for ops
            that use it.
        goal: placements of the parameter whose gradient this is, while its partial sums are not yet reduced.
        writes: number of writes so far, counted at the root.
        aliases: whether the local shard shares memory with the root's.
    """

    __slots__ = (
        *("aliases", "dtensor", "gathers", "goal", "made_from", "parent", "remake", "root", "seen_writes"),
        *("whole", "writes"),
    )

    def __init__(
        self,
        dtensor: DTensor,
        parent: ShardedValue | None = None,
        remake: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.dtensor = dtensor
        self.parent = parent
        self.remake = remake
        self.root: ShardedValue = self if parent is None else parent.root
        self.writes = 0  # counted at the root only
        self.gathers: tuple[int, ...] = () if parent is None else parent.gathers
        self.goal: tuple[Placement, ...] | None = None
        self.whole: tuple[DTensor, int, DTensor] | None = None
        self._remember()

    def _remember(self) -> None:
        self.seen_writes = self.root.writes
        if self.parent is None:
            self.aliases, self.made_from = True, None
            return
        self.made_from = self.parent.dtensor
        self.aliases = self.parent.aliases and _same_memory(self.dtensor, self.root.dtensor)

    def current(self) -> DTensor:
        """Return the DTensor with all writes so far; remakes a stale view."""
        if self.parent is None:
            if self.goal is not None:
                self.dtensor = self.dtensor.redistribute(placements=self.goal)
                self.goal = None
            return self.dtensor
        parent = self.parent.current()
        if parent is not self.made_from or not (self.aliases or self.seen_writes == self.root.writes):
            assert self.remake is not None
            made = self.remake(parent)
            assert isinstance(made, DTensor)
            self.dtensor = made
            self._remember()
        return self.dtensor

    def gathered(self) -> DTensor:
        """Return the DTensor as an op uses it: gathered along `gathers`.

        The last few are cached for the next ops that use them (each step of a recurrent layer, for example).
        """
        held = self.current()
        if not self.gathers:
            return held
        if self.parent is not None:
            assert self.remake is not None
            return cast(DTensor, self.remake(self.parent.gathered()))
        if self.whole is None or self.whole[0] is not held or self.whole[1] != self.writes:
            goal = [Replicate() if d in self.gathers else p for d, p in enumerate(held.placements)]
            if len(_lately_gathered) == _KEPT_WHOLE:
                _lately_gathered.popleft().whole = None
            _lately_gathered.append(self)
            self.whole = (held, self.writes, held.redistribute(placements=goal))
        return self.whole[2]

    def reduced(self) -> DTensor:
        """Return the DTensor without partial sums; the root is reduced, so every view sees it."""
        root = self.root
        if is_partial(root.current()):
            root.dtensor = reduced(root.dtensor)
        return self.current()

    def store(self, result: DTensor) -> None:
        """Write `result` (broadcast and cast as `copy_` does) into this value and its aliases."""
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
        """Return this view of a plain copy of the root; always a true view."""
        if self.parent is None:
            return full_root
        assert self.remake is not None
        return self.remake(self.parent._on(full_root))


_KEPT_WHOLE = 4
_lately_gathered: deque[ShardedValue] = deque()


def whole_of(x: DTensor) -> Tensor:
    """Return the whole tensor; for an empty one without communication."""
    if not x.numel():
        return torch.empty(x.shape, dtype=x.dtype, device=local_of(x).device)
    return x.full_tensor()


def local_of(x: DTensor) -> Tensor:
    """Return this worker's shard itself, not a differentiable copy."""
    return x._local_tensor


def _same_memory(a: DTensor, b: DTensor) -> bool:
    return local_of(a).untyped_storage().data_ptr() == local_of(b).untyped_storage().data_ptr()


def is_partial(x: DTensor) -> bool:
    """Return whether the workers hold partial sums."""
    return any(p.is_partial() for p in x.placements)


def reduced(x: DTensor) -> DTensor:
    """Return `x` with partial sums reduced."""
    if not is_partial(x):
        return x
    return x.redistribute(placements=[Replicate() if p.is_partial() else p for p in x.placements])


def cut(full: Tensor, like: DTensor) -> Tensor:
    """Return this worker's part of `full` under the placements of `like` (replicated or sharded)."""
    mesh = like.device_mesh
    place = mesh.get_coordinate()
    assert place is not None, "only members of a mesh have parts"
    return part_of(full, axes_of(like), tuple(mesh.shape), place)


def axes_of(x: DTensor) -> Axes:
    """Return the axis that each mesh dimension shards, None if replicated."""
    return tuple([p.dim if isinstance(p, Shard) else None for p in x.placements])


def placements_of(axes: Axes) -> list[Placement]:
    return [Replicate() if axis is None else Shard(axis) for axis in axes]


def laid_out(local: Tensor, mesh: DeviceMesh, axes: Axes, shape: tuple[int, ...]) -> DTensor:
    """Return this worker's shard as a DTensor of the given shape, without communication."""
    look = torch.empty(shape, dtype=local.dtype, device="meta")
    meta = TensorMeta(look.shape, look.stride(), look.dtype)
    spec = DTensorSpec(mesh, tuple(placements_of(axes)), tensor_meta=meta)
    return DTensor(local, spec, requires_grad=False)  # type: ignore[call-arg]


def wrap(local: Tensor, like: DTensor, shape: torch.Size, stride: tuple[int, ...]) -> DTensor:
    """Return a local result as a DTensor placed like `like`, without communication."""
    spec = like._spec
    if spec.tensor_meta != (shape, stride, local.dtype):
        meta = TensorMeta(shape, stride, local.dtype)
        spec = DTensorSpec(like.device_mesh, like.placements, tensor_meta=meta)
    return DTensor(local, spec, requires_grad=False)  # type: ignore[call-arg]
