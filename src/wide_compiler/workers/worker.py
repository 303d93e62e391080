"""A worker: a table of values, and one method for each kind of instruction.

The same class runs in local processes, in the script's process and in Ray actors. On a mesh of one worker,
values are plain tensors and ops run directly; on a larger mesh they are `ShardedValue`s over DTensor.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import DeviceMesh

from .collectives import count_collectives
from .script_state import follow
from .sharded_value import ShardedValue, axes_of
from .templates import Template
from .worker_state import Poison, Poisoned, WorkerMesh
from .worker_steps import StepInstructions


class Worker(StepInstructions):
    """`execute` runs an instruction by the method `do_<kind>`."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        count_collectives()

    def execute(self, instruction: tuple) -> None:
        """Run one instruction `(kind, seq, ...)`."""
        getattr(self, "do_" + instruction[0])(*instruction[2:])

    def run(self, instruction: tuple, failed: Callable[[int, str, str, str], None]) -> None:
        """Execute an instruction; an error is given to `failed` (number, kind, text, trace)."""
        try:
            return self.execute(instruction)
        except Poisoned:
            pass
        except Exception as error:  # an op may raise anything; all of it is reported
            failed(instruction[1], type(error).__name__, str(error), traceback.format_exc())
        self.poison(instruction)

    def poison(self, instruction: tuple) -> None:
        """Mark the results of a failed instruction as `Poison`."""
        kind = instruction[0]
        outs: tuple = ()
        if kind in ("op", "ask", "draw", "region", "step", "lanes", "lanes_backward"):
            outs = instruction[4]
            if kind == "step":
                outs = (*outs, *self.steps[instruction[2]].replaced)
        elif kind in ("make", "put", "move", "settle", "spread"):
            outs = (instruction[2],)
        for out in outs:
            if kind not in ("region", "step") or out not in self.values:
                self.values[out] = Poison()

    # ---- set-up

    def do_template(self, number: int, name: str, args: tuple, kwargs: dict) -> None:
        self.templates[number] = Template(name, args, kwargs, self.device)

    def do_forget(self, number: int) -> None:
        del self.templates[number]

    def do_mesh(self, number: int, workers: tuple[int, ...], shape: tuple[int, ...]) -> None:
        """Create a mesh; every worker takes part in creating the groups, member or not."""
        devices = None
        if len(workers) > 1:
            grid = torch.tensor(workers).reshape(shape)
            mine = []  # this worker's group along each dimension
            for d in range(len(shape)):
                for line in grid.movedim(d, -1).reshape(-1, shape[d]).tolist():
                    group = dist.new_group(line)
                    mine += [group] if self.rank in line else []
            if mine:
                # DeviceMesh requires names for several dimensions, and none for one.
                names = tuple(f"dim_{d}" for d in range(len(shape))) if len(shape) > 1 else None
                groups: Any = mine if names else mine[0]
                devices = DeviceMesh.from_group(groups, self.device.type, mesh=grid, mesh_dim_names=names)
        self.meshes[number] = WorkerMesh(workers, shape, devices)

    def do_meet(self, setup: dict | None, meshes: list[tuple]) -> None:
        """Join the process group again after workers were added, and recreate the groups of every mesh.

        The groups are created in the same order, so they get the same names, by which the meshes of existing
        values find them.
        """
        if setup is not None:
            assert self.meet is not None
            self.meet(self.rank, setup)
        for number, workers, shape in meshes:
            old = self.meshes.get(number)
            self.do_mesh(number, workers, shape)
            if old is not None and old.devices is not None:
                new = self.meshes[number].devices
                assert new is not None and new._dim_group_names == old.devices._dim_group_names
                if hasattr(old.devices, "_pg_registry"):
                    old.devices._pg_registry.update(new._pg_registry)
                self.meshes[number] = old

    def do_forget_all(self) -> None:
        self.templates.clear()

    def do_settings(self, values: tuple) -> None:
        follow(values)

    def do_free(self, ids: list[int]) -> None:
        for number in ids:
            self.values.pop(number, None)

    # ---- requests

    def do_stats(self, request: int) -> None:
        self.reply(
            request,
            {
                "worker": self.rank,
                "instructions": dict(self.instructions),
                "bytes_sent": self.bytes_sent,
                "live_tensors": len(self.values),
                "memory": self.memory(),
                "templates": len(self.templates),
                "ways": self.ways.total(),
                **count_collectives(),
                "op_ways": self.ways.by_op(),
                "regions": {name: {**vars(counts)} for name, counts in self.region_counts.items()},
            },
        )

    def do_sync(self, request: int) -> None:
        self.reply(request, None)

    def do_save(self, folder: str, ids: dict[int, str], request: int) -> None:
        """Save these values, each worker its own shards, and reply with each value's layout."""
        dcp.save(self._saved(ids), checkpoint_id=folder, no_dist=not dist.is_initialized())
        values = {n: self._get(n) for n in ids}
        self.reply(
            request,
            {n: axes_of(v.reduced()) if isinstance(v, ShardedValue) else () for n, v in values.items()},
        )

    def do_load(self, folder: str, ids: dict[int, str], request: int) -> None:
        """Fill the values in place with what `do_save` wrote."""
        with torch.no_grad():
            dcp.load(self._saved(ids), checkpoint_id=folder, no_dist=not dist.is_initialized())
        self.reply(request, None)

    def _saved(self, ids: dict[int, str]) -> dict[str, torch.Tensor]:
        values = {name: self._get(n) for n, name in ids.items()}
        return {name: v.reduced() if isinstance(v, ShardedValue) else v for name, v in values.items()}
