"""Lane graphs run on each worker's lanes: one instruction forward, one backward, no communication.

The graph is sent once, as source code and the functions it uses. Every worker runs it on its own lanes, as
plain tensors, and keeps the autograd graph until the script frees it.
"""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

from .layout import Axes
from .sharded_value import ShardedValue, laid_out, local_of, placements_of
from .worker_state import WorkerState


class LaneCode(NamedTuple):
    """A lane graph in a form that can be sent.

    Attributes:
        source: code of `forward(self, ...)`.
        names: its globals, with modules as their names.
        attributes: of `self`.
        fixed: non-tensor arguments by position; tuples among them are sliced by lane.
        lane_count: position of the number of lanes among the arguments, or None.
        lanes: for each tensor argument, whether it has a lane axis.
        written: positions of the tensors that the graph writes.
        outputs: (shape, stride) of each output, for all lanes.
    """

    source: str
    names: dict[str, Any]
    attributes: dict[str, Any]
    fixed: dict[int, Any]
    lane_count: int | None
    lanes: tuple[bool, ...]
    written: tuple[int, ...]
    outputs: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]

    def pack(self) -> bytes:
        """Pickle the code; raises pickle's error for a function that cannot be found by name."""
        names = {k: _Module(v.__name__) if isinstance(v, ModuleType) else v for k, v in self.names.items()}
        return pickle.dumps(self._replace(names=names))


class _Module(NamedTuple):
    name: str


class LocalLaneGraph(NamedTuple):
    """A lane graph on one worker, which holds the lanes `start` to `end`."""

    run: Callable[..., Any]
    code: LaneCode
    start: int
    end: int
    mesh: int
    axes: Axes

    def arguments(self, tensors: list[Tensor]) -> list[Any]:
        values: list[Any] = []
        rest = iter(tensors)
        for position in range(len(tensors) + len(self.code.fixed)):
            if position not in self.code.fixed:
                values.append(next(rest))
            elif position == self.code.lane_count:
                values.append(self.end - self.start)
            else:
                fixed = self.code.fixed[position]
                values.append(fixed[self.start : self.end] if isinstance(fixed, tuple) else fixed)
        return values


class SavedGraph(NamedTuple):
    """Kept for a backward pass: the outputs, the inputs that need gradients, and their positions."""

    outputs: list[Tensor]
    inputs: list[Tensor]
    positions: list[int]
    graph: LocalLaneGraph


class LaneInstructions(WorkerState):
    def do_lane_graph(
        self, number: int, packed: bytes, bounds: dict[int, tuple[int, int]], mesh: int, axes: Axes
    ) -> None:
        """Compile a lane graph; bounds: the lanes of each worker."""
        code: LaneCode = pickle.loads(packed)
        names = {
            k: importlib.import_module(v.name) if isinstance(v, _Module) else v for k, v in code.names.items()
        }
        exec(code.source, names)
        self.lane_graphs[number] = LocalLaneGraph(
            names["forward"].__get__(SimpleNamespace(**code.attributes)), code, *bounds[self.rank], mesh, axes
        )

    def do_forget_lane_graph(self, number: int) -> None:
        self.lane_graphs.pop(number, None)

    def do_lanes(self, number: int, inputs: tuple, outputs: tuple, learns: tuple[int, ...]) -> None:
        """Run a lane graph forward.

        learns: positions of the inputs that need gradients. If there are any, the last id in `outputs` is
        that of the `SavedGraph` autograd graph.
        """
        self._count("lanes")
        graph = self.lane_graphs[number]
        values = [self._get(i) for i in inputs]
        shards = [self._shard(v, graph, lanes) for v, lanes in zip(values, graph.code.lanes, strict=True)]
        for position in learns:
            shards[position] = shards[position].detach().requires_grad_()
        with torch.set_grad_enabled(bool(learns)):
            results = list(graph.run(*graph.arguments(shards)))
        for position in graph.code.written:
            if isinstance(values[position], ShardedValue):
                self._store_written(values[position], shards[position], graph, graph.code.lanes[position])
        for out, result, (shape, stride) in zip(outputs, results, graph.code.outputs, strict=False):
            self.values[out] = self._kept(result.detach(), graph, placements_of(graph.axes), shape, stride)
        if learns:
            leaves = [shards[p] for p in learns]
            self.values[outputs[-1]] = SavedGraph(results, leaves, list(learns), graph)

    def do_lanes_backward(self, kept: int, gradients: tuple, outputs: tuple, wanted: tuple[int, ...]) -> None:
        """Run the backward of a lane graph.

        gradients: an id for each output, None for an output without a gradient. wanted: positions of the
        inputs whose gradients are stored. The gradient of a shared input is a partial sum.
        """
        self._count("lanes_backward")
        saved: SavedGraph = self._get(kept)
        graph = saved.graph
        given = [
            (out, self._shard(self._get(g), graph, True))
            for out, g in zip(saved.outputs, gradients, strict=True)
            if g is not None and out.requires_grad
        ]
        inputs = [x for x, position in zip(saved.inputs, saved.positions, strict=True) if position in wanted]
        results = torch.autograd.grad(
            [o for o, _ in given], inputs, [g for _, g in given], retain_graph=True, allow_unused=True
        )
        n = graph.code.outputs[0][0][0]
        for out, x, result, position in zip(outputs, inputs, results, wanted, strict=True):
            gradient = torch.zeros_like(x) if result is None else result
            lanes = graph.code.lanes[position]
            shape = (n, *x.shape[1:]) if lanes else tuple(x.shape)
            stride = torch.empty(shape, device="meta").stride()
            places = placements_of(graph.axes)
            if not lanes:
                places = [Partial() if isinstance(p, Shard) else p for p in places]
            self.values[out] = self._kept(gradient.detach(), graph, places, shape, stride)

    def _store_written(self, value: ShardedValue, shard: Tensor, graph: LocalLaneGraph, lanes: bool) -> None:
        """Take over what the graph wrote into its shard, a copy if the value is laid out in another way."""
        if value.aliases and shard is local_of(value.current()):
            value.root.writes += 1
            return
        mesh = self.meshes[graph.mesh].devices
        assert mesh is not None
        axes = graph.axes if lanes else (None,) * len(graph.axes)
        value.store(laid_out(shard, mesh, axes, tuple(value.current().shape)))

    def _shard(self, value: Any, graph: LocalLaneGraph, lanes: bool) -> Tensor:
        """Return this worker's lanes of a value, or the whole value if it is shared."""
        if not isinstance(value, ShardedValue):
            return value
        held = value.reduced()
        goal = placements_of(graph.axes) if lanes else [Replicate() for _ in graph.axes]
        return local_of(held if list(held.placements) == goal else held.redistribute(placements=goal))

    def _kept(self, local: Tensor, graph: LocalLaneGraph, places: list, shape: tuple, stride: tuple) -> Any:
        mesh = self.meshes[graph.mesh].devices
        if mesh is None:
            return local
        spec = DTensorSpec(
            mesh, tuple(places), tensor_meta=TensorMeta(torch.Size(shape), stride, local.dtype)
        )
        return ShardedValue(DTensor(local, spec, requires_grad=False))  # type: ignore[call-arg]
