"""Values come to a worker, leave it, and change their layout."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

from .layout import shardable
from .memory import read_payload, write_payload
from .sharded import replicated
from .table import Poison, Table
from .transfer import exchange
from .values import Value, cut, local_of, whole_of, wrap


class Placing(Table):
    def do_put(self, out: int, mesh: int, axis: int | None, shape: tuple, dtype: str, payload: Any) -> None:
        """payload: this worker's part."""
        local = read_payload(payload, getattr(torch, dtype)).to(self.device)
        self.values[out] = self._placed(local, mesh, axis, shape)

    def do_make(self, out: int, template: int, mesh: int, axis: int | None, draw: int | None) -> None:
        """A new tensor from no other: made whole, of which each worker keeps its part."""
        t = self.templates[template]
        self._count(t.name)
        if draw is not None:
            torch.manual_seed(draw)
        args, kwargs = t.arguments([], ())
        whole = t.func(*args, **kwargs)
        device_mesh = self.meshes[mesh][1]
        if device_mesh is not None and shardable(whole.shape, axis, device_mesh.size()):
            assert axis is not None
            like = _like(device_mesh, whole, Shard(axis))
            local = cut(whole, like).contiguous()
            self.values[out] = Value(wrap(local, like, whole.shape, whole.stride()))
        else:
            self.values[out] = self._placed(whole, mesh, None, whole.shape)

    def _placed(self, local: Tensor, mesh: int, axis: int | None, shape: tuple) -> Any:
        device_mesh = self.meshes[mesh][1]
        if device_mesh is None:
            return local
        if axis is None:
            return Value(replicated(local, device_mesh))
        whole = torch.empty(shape, dtype=local.dtype, device="meta")
        return Value(wrap(local, _like(device_mesh, whole, Shard(axis)), whole.shape, whole.stride()))

    def do_fetch(self, number: int, request: int, reporter: int) -> None:
        """The whole tensor, from one worker of its mesh."""
        value = self._get(number)
        if isinstance(value, Value):
            value = whole_of(value.current())
        if self.rank == reporter:
            self.reply(request, (str(value.dtype)[6:], write_payload(value.detach().cpu(), None)))

    def do_placement(self, number: int, request: int, reporter: int) -> None:
        value = self._get(number)
        if self.rank == reporter:
            placement = str(value.current().placements[0]) if isinstance(value, Value) else "whole"
            self.reply(request, placement)

    def do_move(
        self,
        out: int,
        number: int,
        source: int,
        target: int,
        axis: int | None,
        wire: int | None,
        shape: tuple[int, ...],
        dtype: str,
    ) -> None:
        """From one mesh to another, sharded along `wire` on the way; placed as `Shard(axis)` or
        replicated."""
        senders, _ = self.meshes[source]
        receivers, device_mesh = self.meshes[target]
        torch_dtype = getattr(torch, dtype)
        mine = self._wire_part(number, source, wire, shape, torch_dtype) if self.rank in senders else None
        self.instructions["move"] += 1
        held, sent = exchange(self.rank, senders, receivers, shape, torch_dtype, wire, mine, self.device)
        self.bytes_sent += sent
        if self.rank not in receivers:
            return
        assert held is not None
        if device_mesh is None:
            self.values[out] = held
            return
        whole = torch.empty(shape, dtype=torch_dtype, device="meta")
        placement = Replicate() if wire is None else Shard(wire)
        moved = wrap(held, _like(device_mesh, whole, placement), whole.shape, whole.stride())
        goal = Shard(axis) if axis is not None and shardable(shape, axis, len(receivers)) else Replicate()
        self.values[out] = Value(moved.redistribute(placements=[goal]))

    def _wire_part(
        self, number: int, mesh: int, wire: int | None, shape: tuple, dtype: torch.dtype
    ) -> Tensor | None:
        value = self.values.get(number)
        device_mesh = self.meshes[mesh][1]
        if isinstance(value, Poison):
            # The receivers wait; the controller knows that what they get is not to be used.
            value = torch.zeros(shape, dtype=dtype, device=self.device)
            return value if device_mesh is None else cut(value, _like(device_mesh, value, _wire(wire)))
        if not isinstance(value, Value):
            return value
        return local_of(value.current().redistribute(placements=[_wire(wire)]))

    def do_settle(self, out: int, gradient: int, parameter: int) -> None:
        """A gradient laid out as its parameter: partial sums are added up here, once."""
        value, like = self._get(gradient), self._get(parameter)
        if not isinstance(value, Value):
            self.values[out] = value
            return
        self.values[out] = Value(value.current().redistribute(placements=like.current().placements))

    def do_spread(self, out: int, number: int, mesh: int, axis: int | None) -> None:
        """The same values on the same workers, as `Shard(axis)` or replicated; a copy."""
        value = self._get(number)
        if not isinstance(value, Value):
            self.values[out] = value.clone()
            return
        goal = Replicate() if axis is None else Shard(axis)
        self.values[out] = Value(cast(DTensor, value.current().redistribute(placements=[goal]).clone()))


def _wire(axis: int | None) -> Replicate | Shard:
    return Replicate() if axis is None else Shard(axis)


def _like(mesh: DeviceMesh, whole: Tensor, placement: Replicate | Shard) -> DTensor:
    """A DTensor of which only the placement is used."""
    meta = TensorMeta(whole.shape, whole.stride(), whole.dtype)
    spec = DTensorSpec(mesh, (placement,), tensor_meta=meta)
    return DTensor(whole, spec, requires_grad=False)  # type: ignore[call-arg]
