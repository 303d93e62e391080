"""Worker instructions that bring in, send out, move and redistribute values."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from .layout import Axes, fitting
from .sharded_value import ShardedValue, cut, is_partial, laid_out, local_of, placements_of, whole_of, wrap
from .shared_memory import read_payload, write_payload
from .transfer import exchange
from .worker_state import Poison, WorkerState


class PlacementInstructions(WorkerState):
    def do_put(self, out: int, mesh: int, axes: Axes, shape: tuple, dtype: str, payload: Any) -> None:
        """Store a tensor from the script; payload: this worker's shard."""
        local = read_payload(payload, getattr(torch, dtype)).to(self.device)
        devices = self.meshes[mesh].devices
        self.values[out] = local if devices is None else ShardedValue(laid_out(local, devices, axes, shape))

    def do_make(self, out: int, template: int, mesh: int, axes: Axes, draw: int | None) -> None:
        """Create a tensor from no operand: computed whole, each worker keeps its shard."""
        t = self.templates[template]
        self._count(t.name)
        if draw is not None:
            torch.manual_seed(draw)
        args, kwargs = t.arguments([], ())
        whole = t.func(*args, **kwargs)
        _, grid, devices = self.meshes[mesh]
        if devices is None:
            self.values[out] = whole
            return
        like = laid_out(whole, devices, fitting(whole.shape, axes, grid), whole.shape)
        part = cut(whole, like)
        part = part if part is whole else part.contiguous()
        self.values[out] = ShardedValue(wrap(part, like, whole.shape, whole.stride()))

    def do_fetch(self, number: int, request: int, reporter: int) -> None:
        """Send the whole tensor to the script, from one worker of its mesh."""
        value = self._get(number)
        if isinstance(value, ShardedValue):
            value = whole_of(value.current())
        if self.rank == reporter:
            self.reply(request, (str(value.dtype)[6:], write_payload(value.detach().cpu(), None)))

    def do_placement(self, number: int, request: int, reporter: int) -> None:
        value = self._get(number)
        if self.rank == reporter:
            held = value.current().placements if isinstance(value, ShardedValue) else ["whole"]
            self.reply(request, ", ".join(map(str, held)))

    def do_move(
        self,
        out: int,
        number: int,
        source: int,
        target: int,
        axes: Axes,
        wire: int | None,
        shape: tuple[int, ...],
        dtype: str,
    ) -> None:
        """Move a value from one mesh to another.

        It is sharded along `wire` during the transfer, then laid out by `axes`.
        """
        senders, senders_grid, _ = self.meshes[source]
        receivers, grid, devices = self.meshes[target]
        torch_dtype = getattr(torch, dtype)
        mine = self._wire_part(number, source, wire, shape, torch_dtype) if self.rank in senders else None
        self.instructions["move"] += 1
        sides = (senders_grid, grid)
        held, sent = exchange(
            self.rank, senders, receivers, sides, shape, torch_dtype, wire, mine, self.device
        )
        self.bytes_sent += sent
        if self.rank not in receivers:
            return
        assert held is not None
        if devices is None:
            self.values[out] = held
            return
        moved = laid_out(held, devices, (wire,) * len(grid), shape)
        self.values[out] = ShardedValue(moved.redistribute(placements=placements_of(axes)))

    def _wire_part(
        self, number: int, mesh: int, wire: int | None, shape: tuple, dtype: torch.dtype
    ) -> Tensor | None:
        value = self.values.get(number)
        _, grid, devices = self.meshes[mesh]
        on_wire = (wire,) * len(grid)
        if isinstance(value, Poison):
            # The receivers wait for data; the controller knows that the value is invalid.
            value = torch.zeros(shape, dtype=dtype, device=self.device)
            return value if devices is None else cut(value, laid_out(value, devices, on_wire, shape))
        if not isinstance(value, ShardedValue):
            return value
        return local_of(value.current().redistribute(placements=placements_of(on_wire)))

    def do_settle(self, out: int, gradient: int, parameter: int) -> None:
        """Lay out a gradient like its parameter.

        Partial sums are reduced once: immediately if the parameter is sharded to save memory, else on first
        use, so that gradients of several backward passes are added before the reduction.
        """
        value, like = self._get(gradient), self._get(parameter)
        if not isinstance(value, ShardedValue):
            self.values[out] = value
            return
        given, goal = value.current(), like.current().placements
        if is_partial(given) and not like.gathers:
            settled = ShardedValue(given)
            settled.goal = goal
        elif given.placements == goal:  # a copy: another parameter may have the same gradient
            settled = ShardedValue(cast(DTensor, given.clone()))
        else:
            settled = ShardedValue(given.redistribute(placements=goal))
        self.values[out] = settled

    def do_spread(self, out: int, number: int, mesh: int, axes: Axes) -> None:
        """Copy a value to another layout on the same workers."""
        value = self._get(number)
        if not isinstance(value, ShardedValue):
            self.values[out] = value.clone()
            return
        spread = value.current().redistribute(placements=placements_of(axes))
        self.values[out] = ShardedValue(cast(DTensor, spread.clone()))

    def do_gather(self, number: int, dimensions: tuple[int, ...]) -> None:
        """Mark a parameter to be gathered along these mesh dimensions for each op that uses it."""
        value = self._get(number)
        if isinstance(value, ShardedValue):
            value.gathers = dimensions
