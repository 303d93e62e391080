"""Dispatch of every op on a handle: choose the mesh, plan the results, record the instruction.

An in-place op runs on the mesh of the tensor it writes; a view on that of its base; an op of a backward pass
on the backward signal's workers; any other on the active signal's workers, else on the mesh of its largest
operand.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from ..errors import UnsupportedError
from ..observe import instruction_log
from ..workers.engine import Engine
from ..workers.layout import Axes
from ..workers.script_state import draw_seed
from ..workers.stream import Mesh
from . import scope, tensor
from .moving import consider_adoption, move
from .op_plans import OpCall, OpPlan, TensorMeta, find_plan, read
from .sending import put_on, put_operand
from .special_ops import Handler, Op, special_handler
from .tensor import Home, Ref, SignalTensor, handle

_ROWS: Axes = (0,)
# Keyed by id, because hashing an op is slow; an op stays alive, since its plans hold it.
_handlers: dict[int, tuple[Op, Handler | None]] = {}


def dispatch(func: Op, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Run one op with at least one handle among its operands. This is the hot path of every op."""
    known = _handlers.get(id(func))
    if known is None:
        known = _handlers[id(func)] = (func, special_handler(func))
    if known[1] is not None:
        return known[1](func, args, kwargs)
    generator = None
    if kwargs:
        if "device" in kwargs:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        if "generator" in kwargs:
            kwargs = dict(kwargs)
            generator = kwargs.pop("generator")
    call = OpCall()
    read(args, kwargs, call)
    tensors = call.tensors
    handles = [t for t in tensors if t.__class__ is SignalTensor]
    engine = handles[0]._ref.engine
    plan = find_plan(engine, func, args, kwargs, call)
    for i in plan.written:
        if tensors[i].__class__ is not SignalTensor:
            return _write_plain(func, args, kwargs, call, plan)
    for t in handles:
        home = t._ref.home
        if not (home.hooked and home.adopted):
            consider_adoption(t)
    mesh, axes = choose_mesh(tensors, handles, plan)
    operands = [
        t if t.__class__ is SignalTensor and t._ref.home.mesh is mesh else operand_on(t, mesh, axes)
        for t in tensors
    ]
    return run(engine, plan, call, operands, mesh, generator)


def run(
    engine: Engine,
    plan: OpPlan,
    call: OpCall,
    operands: list[SignalTensor],
    mesh: Mesh,
    generator: torch.Generator | None = None,
) -> Any:
    """Record the instruction; returns the results as handles."""
    numbers = tuple([o._ref.number for o in operands])
    if plan.asks:
        return _ask(engine, plan, call, numbers, mesh)
    outputs: tuple[int, ...]
    content: tuple
    if plan.fresh is not None and not instruction_log.active:  # fast path: one new result and no log
        outputs = (number := next(engine.ids),)
        content = (plan.template, numbers, outputs, tuple(call.floats))
        engine.record("op", content, mesh.workers, plan.name, numbers, outputs)
        return handle(Ref(engine, number, Home(mesh)), plan.fresh)
    results: list[Tensor | None] = []
    outputs = ()
    for meta, same in plan.results:
        if same is not None:
            results.append(call.tensors[same])
        elif meta is None:
            results.append(None)
        else:
            number = next(engine.ids)
            outputs += (number,)
            home = operands[0]._ref.home if plan.view else Home(mesh)
            results.append(handle(Ref(engine, number, home, plan.view), meta))
    touched = outputs + tuple([numbers[i] for i in plan.written]) if plan.written else outputs
    content = (plan.template, numbers, outputs, tuple(call.floats))
    if plan.random:
        engine.record("draw", (*content, draw_seed(generator)), mesh.workers, plan.name, numbers, touched)
    else:
        engine.record("op", content, mesh.workers, plan.name, numbers, touched)
    if instruction_log.active:
        instruction_log.op(plan, mesh, numbers, outputs)
    returns = plan.returns
    if returns == "one":
        return results[0]
    if returns == "none":
        return None
    return results if returns == "list" else tuple(results)


def _ask(engine: Engine, plan: OpPlan, call: OpCall, numbers: tuple[int, ...], mesh: Mesh) -> Any:
    """Run an op whose result, or its shape, depends on values: wait for the workers' reply."""
    returns = plan.op._schema.returns
    count = _MOST_IN_A_LIST if str(returns[0].type) == "List[Tensor]" else len(returns)
    outputs = tuple(next(engine.ids) for _ in range(count))
    content = (plan.template, numbers, outputs, tuple(call.floats))
    answer = engine.ask("ask", content, mesh, plan.name, numbers, outputs)
    if not isinstance(answer, list):
        return answer
    made = []
    for number, (shape, stride, dtype) in zip(outputs, answer, strict=False):
        meta = TensorMeta(shape, stride, getattr(torch, dtype.removeprefix("torch.")))
        made.append(handle(Ref(engine, number, Home(mesh)), meta))
    if count == _MOST_IN_A_LIST:
        return made
    return made[0] if len(made) == 1 else tuple(made)


_MOST_IN_A_LIST = 64  # ids reserved for an op whose number of results depends on values

# ---- placement


def choose_mesh(tensors: list, handles: list[SignalTensor], plan: OpPlan) -> tuple[Mesh, Axes]:
    """Return the mesh that runs an op, and the axes along which operands moved there are sharded."""
    if plan.written:
        meshes = {tensors[i]._ref.home.mesh for i in plan.written}
        if len(meshes) > 1:
            raise UnsupportedError(
                f"{plan.name} writes to tensors on different workers at once "
                f"({', '.join(str(list(m.workers)) for m in sorted(meshes))}); call it for each of them"
            )
        return meshes.pop(), _ROWS
    if plan.view:
        return handles[0]._ref.home.mesh, ()
    placement = None
    if torch._C._current_graph_task_id() != -1:
        node = torch._C._current_autograd_node()
        if node is not None:
            placement = scope.backward_placement(node._sequence_nr())
            scope.follow_backward(handles[0]._ref.engine.regions, placement)
    else:
        placement = scope.current()
        regions = handles[0]._ref.engine.regions
        if regions.backward:
            regions.close()  # left open by a backward pass that failed
    if placement is not None:
        return placement.mesh, placement.axes
    mesh = handles[0]._ref.home.mesh
    for t in handles:
        if t._ref.home.mesh is not mesh:
            return max(handles, key=Tensor.numel)._ref.home.mesh, _ROWS  # the first of the largest
    return mesh, _ROWS


def operand_on(t: Tensor, mesh: Mesh, axes: Axes) -> SignalTensor:
    """Return a copy of an operand on the mesh."""
    if t.__class__ is not SignalTensor:
        return put_operand(t, mesh)
    assert isinstance(t, SignalTensor)
    return move(t, mesh, () if t._ref.home.parameter else axes)


def _write_plain(func: Op, args: tuple, kwargs: dict[str, Any], call: OpCall, plan: OpPlan) -> Any:
    """Run an op that writes to a plain tensor.

    Fetches the other operands. If it also writes to tensors on workers, sends the plain tensor and copies the
    result back.
    """
    written = [call.tensors[i] for i in plan.written]
    if not any(isinstance(t, SignalTensor) for t in written):
        args, kwargs = tree_map_only(SignalTensor, SignalTensor.fetch, (args, kwargs))
        return func(*args, **kwargs)
    mesh = next(t for t in written if isinstance(t, SignalTensor))._ref.home.mesh
    sent = {id(t): put_on(t, mesh, ()) for t in written if not isinstance(t, SignalTensor)}
    back = {id(sent[id(t)]): t for t in written if id(t) in sent}
    args, kwargs = tree_map_only(Tensor, lambda t: sent.get(id(t), t), (args, kwargs))
    result = dispatch(func, args, kwargs)
    for plain in back.values():
        plain.copy_(sent[id(plain)].fetch())
    return tree_map_only(Tensor, lambda t: back.get(id(t), t), result)


tensor._run = dispatch
