"""Forward of a wide model whose lanes are on workers: its lane graph is sent once, then called by number.

Each worker runs the graph on its own lanes (`workers.worker_lanes`). If the graph cannot be sent,
`LaneRunner.of` returns None and it runs op by op, with the same values.
"""

from __future__ import annotations

import itertools
import logging
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.function import once_differentiable
from torch.utils._python_dispatch import _disable_current_modes

from ..errors import one_line
from ..widen import LaneGraph
from ..workers.layout import Axes, fitting, part_of, places
from ..workers.stream import Mesh
from ..workers.worker_lanes import LaneCode
from . import scope
from .dispatch import operand_on
from .moving import consider_adoption
from .op_plans import TensorMeta, contiguous, meta_of
from .sending import put_on
from .tensor import Home, Ref, SignalTensor, new_handle

log = logging.getLogger(__name__)
_numbers = itertools.count(1)


class LaneRunner:
    """Calls one lane graph with its arguments in order; returns its outputs, tensors `[n, ...]`."""

    def __init__(self, graph: LaneGraph, lanes: list[bool], arguments: list[Any], n: int) -> None:
        self.n = n
        self.positions = [i for i, a in enumerate(arguments) if isinstance(a, Tensor)]
        self.lanes = tuple([lanes[i] for i in self.positions])
        feeds = [graph.feeds[i] for i in self.positions]
        written = [i for i, (kind, key) in enumerate(feeds) if kind == "state" and key in graph.writes]
        self.written, self.here = written, graph.module
        self.metas, self.learning = _try(graph, arguments, self.positions, n)
        counts = [i for i, (kind, _) in enumerate(graph.feeds) if kind == "n"]
        fixed = {i: a for i, a in enumerate(arguments) if i not in self.positions}
        code = graph.module.graph.python_code("self")
        attributes = {
            str(node.target): getattr(graph.module, str(node.target))
            for node in graph.module.graph.nodes
            if node.op == "get_attr"
        }
        outputs = tuple([(meta.shape, meta.stride) for meta in self.metas])
        self.packed = LaneCode(
            *(code.src, code.globals, attributes, fixed, counts[0] if counts else None),
            *(self.lanes, tuple(written), outputs),
        ).pack()
        self._sent: dict[tuple, int] = {}  # by engine and mesh

    @classmethod
    def of(cls, graph: LaneGraph, lanes: list[bool], arguments: list[Any], n: int) -> LaneRunner | None:
        """Return a runner, or None (logged) if the graph cannot be sent."""
        try:
            return cls(graph, lanes, arguments, n)
        except Exception as error:  # whatever a trial run or pickle raises: the graph still runs op by op
            log.info("a lane graph runs op by op: %s", one_line(error))
            return None

    def __call__(self, *arguments: Any) -> tuple[Tensor, ...]:
        tensors = [arguments[i] for i in self.positions]
        if not any(l and isinstance(x, SignalTensor) for x, l in zip(tensors, self.lanes, strict=True)):
            return self.here(*arguments)  # all lanes were brought back, as by `load_state_dict(assign=True)`
        return _LaneGraphCall.apply(self, *tensors)

    def placed(self, tensors: tuple[Tensor, ...]) -> tuple[Mesh, Axes, list[SignalTensor]]:
        """Return the mesh of the lanes, the layout of lanes on it, and every tensor as a handle there."""
        first = next(
            t for t, lanes in zip(tensors, self.lanes, strict=True) if lanes and isinstance(t, SignalTensor)
        )
        mesh = first._ref.home.mesh
        axes = fitting((self.n,), (0,) * len(mesh.shape), mesh.shape)
        handles = []
        for x, lanes in zip(tensors, self.lanes, strict=True):
            if isinstance(x, SignalTensor):
                consider_adoption(x)
                handles.append(x if x._ref.home.mesh is mesh else operand_on(x, mesh, axes if lanes else ()))
            else:
                handles.append(put_on(x, mesh, axes) if lanes else operand_on(x, mesh, ()))
        return mesh, axes, handles

    def number_on(self, engine: Any, mesh: Mesh, axes: Axes) -> int:
        """Return the graph's number on the workers of the mesh; sends the graph on first use."""
        key = (engine.serial, mesh.number)
        if key not in self._sent:
            number = self._sent[key] = next(_numbers)
            whole = torch.arange(self.n)
            parts = [part_of(whole, axes, mesh.shape, place) for place in places(mesh.shape)]
            bounds = {w: (int(p[0]), int(p[-1]) + 1) for w, p in zip(mesh.workers, parts, strict=True)}
            content = (number, self.packed, bounds, mesh.number, axes)
            engine.record("lane_graph", content, mesh.workers, "lane_graph")
        return self._sent[key]


class _LaneGraphCall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, runner: LaneRunner, *tensors: Tensor) -> tuple[Tensor, ...]:
        mesh, axes, handles = runner.placed(tensors)
        engine = handles[0]._ref.engine
        number = runner.number_on(engine, mesh, axes)
        needs = [i for i, x in enumerate(tensors) if x.requires_grad] if any(ctx.needs_input_grad) else []
        inputs = tuple([h._ref.number for h in handles])
        made = [new_handle(engine, mesh, meta) for meta in runner.metas]
        outputs = tuple([x._ref.number for x in made])
        if needs:
            ctx.kept = Ref(engine, next(engine.ids), Home(mesh))
            outputs += (ctx.kept.number,)
        ctx.runner, ctx.mesh, ctx.axes, ctx.needs = runner, mesh, axes, needs
        ctx.inputs = [meta_of(tensors[i]) for i in needs]
        ctx.set_materialize_grads(False)
        content = (number, inputs, outputs, tuple(needs))
        with _labelled(mesh):
            engine.record("lanes", content, mesh.workers, "lanes", inputs, outputs)
        for i in runner.written:
            if handles[i] is not tensors[i]:  # a copy of a tensor that lies elsewhere was written
                tensors[i].data.copy_(
                    handles[i] if isinstance(tensors[i], SignalTensor) else handles[i].cpu()
                )
        ctx.mark_non_differentiable(*[x for x, d in zip(made, runner.learning, strict=True) if not d])
        return tuple(made)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        engine, mesh = ctx.kept.engine, ctx.mesh
        given = [None if g is None else _on(g, mesh, ctx.axes) for g in grads]
        if all(g is None for g in given):
            return (None,) * len(ctx.needs_input_grad)
        wanted = [i for i in ctx.needs if ctx.needs_input_grad[1 + i]]
        metas = [ctx.inputs[ctx.needs.index(i)] for i in wanted]
        made = [new_handle(engine, mesh, contiguous(meta.shape, meta.dtype)) for meta in metas]
        numbers = tuple([None if g is None else g._ref.number for g in given])
        inputs = (ctx.kept.number, *[n for n in numbers if n is not None])
        outputs = tuple([x._ref.number for x in made])
        content = (ctx.kept.number, numbers, outputs, tuple(wanted))
        with _labelled(mesh):
            engine.record("lanes_backward", content, mesh.workers, "lanes_backward", inputs, outputs)
        results: list[Tensor | None] = [None] * len(ctx.needs_input_grad)
        for i, gradient in zip(wanted, made, strict=True):
            results[1 + i] = gradient
        return tuple(results)


# The signal that placed the lanes, by workers; for observers.
signal_of: dict[tuple[int, ...], str] = {}


def _labelled(mesh: Mesh) -> AbstractContextManager[None]:
    return scope.setting(scope.lanes_of, signal_of.get(mesh.workers, ""))


def _on(gradient: Tensor, mesh: Mesh, axes: Axes) -> SignalTensor:
    if isinstance(gradient, SignalTensor) and gradient._ref.home.mesh is mesh:
        return gradient
    return operand_on(gradient, mesh, axes)


def _try(
    graph: LaneGraph, arguments: list[Any], positions: list[int], n: int
) -> tuple[list[TensorMeta], list[bool]]:
    """Return the `TensorMeta` of each output and whether it requires grad, from a run on fake tensors.

    Raises ValueError if an output is not a new tensor with a lane axis, or if an input that requires a
    gradient gets none.
    """
    learn = torch.is_grad_enabled()
    with _disable_current_modes(), FakeTensorMode(), torch.set_grad_enabled(learn):
        fakes = list(arguments)
        for i in positions:
            x = arguments[i]
            fakes[i] = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype)
            fakes[i].requires_grad_(learn and x.requires_grad)
        outputs = graph.module(*fakes)
        memory = [fakes[i].untyped_storage()._cdata for i in positions]
        for output in outputs:
            if not isinstance(output, Tensor) or output.shape[:1] != (n,):
                raise ValueError("an output has no lane axis")
            if output.untyped_storage()._cdata in memory:
                raise ValueError("outputs share memory with each other or with an input")
            memory.append(output.untyped_storage()._cdata)
        learning = [o.requires_grad for o in outputs]
        leaves = [fakes[i] for i in positions if fakes[i].requires_grad]
        if any(learning):
            roots = [o for o in outputs if o.requires_grad]
            ones = [torch.ones_like(o) for o in roots]
            if any(g is None for g in torch.autograd.grad(roots, leaves, ones, allow_unused=True)):
                raise ValueError("an input that requires a gradient gets none")
    return [meta_of(o) for o in outputs], learning


SignalTensor.lane_runner = LaneRunner.of  # type: ignore[attr-defined]
