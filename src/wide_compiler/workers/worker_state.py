"""State of a worker: values by id, templates, meshes, and counters by op."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from .sharded_value import ShardedValue
from .templates import Template

if TYPE_CHECKING:
    from .worker_lanes import LocalLaneGraph
    from .worker_regions import Region, RegionCounts
    from .worker_steps import PreparedStep

Reply = Callable[[int, Any], None]


class WorkerMesh(NamedTuple):
    """A mesh as a worker knows it; `devices` is None on non-members and on a mesh of one worker."""

    workers: tuple[int, ...]
    shape: tuple[int, ...]
    devices: DeviceMesh | None


class Poison:
    """Stands for a value whose op failed."""


class Poisoned(Exception):
    """An operand is the result of an op that failed earlier; nothing new to report."""


class Ways:
    """Counts how ops ran on sharded values; `took(way)` counts for the op that is running."""

    def __init__(self) -> None:
        self.op = ""
        self.counts: Counter[tuple[str, str]] = Counter()

    def took(self, way: str) -> None:
        self.counts[self.op, way] += 1

    def by_op(self) -> dict[str, dict[str, int]]:
        table: dict[str, dict[str, int]] = {}
        for (op, way), count in self.counts.items():
            table.setdefault(op, {})[way] = count
        return table

    def total(self) -> dict[str, int]:
        total: Counter[str] = Counter()
        for (_, way), count in self.counts.items():
            total[way] += count
        return dict(total)


class WorkerState:
    """State of a worker.

    Attributes:
        rank: the worker's id.
        reply: `reply(request, payload)` sends a reply to the controller.
        meet: `meet(rank, setup)` joins the process group of all workers.
        values: tensors, `ShardedValue`s and `Poison` by id.
        ways: counts how ops ran on sharded values.
    """

    def __init__(
        self, rank: int, device: torch.device, reply: Reply, meet: Callable[[int, dict], None] | None = None
    ) -> None:
        self.rank, self.device, self.reply, self.meet = rank, device, reply, meet
        self.values: dict[int, Any] = {}
        self.templates: dict[int, Template] = {}
        self.meshes: dict[int, WorkerMesh] = {}
        self.instructions: Counter[str] = Counter()
        self.ways = Ways()
        self.bytes_sent = 0
        self.lane_graphs: dict[int, LocalLaneGraph] = {}
        self.regions: dict[int, Region] = {}
        self.region_counts: dict[str, RegionCounts] = {}
        self.steps: dict[int, PreparedStep] = {}

    def _get(self, number: int) -> Any:
        value = self.values[number]
        if value.__class__ is Poison:
            raise Poisoned
        return value

    def memory(self) -> int:
        """Return the bytes of the held values, each storage counted once."""
        held = (v.dtensor._local_tensor if isinstance(v, ShardedValue) else v for v in self.values.values())
        storages = [t.untyped_storage() for t in held if isinstance(t, Tensor)]
        return sum({s.data_ptr(): s.nbytes() for s in storages}.values())

    def _count(self, name: str) -> None:
        self.instructions[name] += 1
