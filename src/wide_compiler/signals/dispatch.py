"""Every op on a handle comes through here: where does it run, what does it make, tell the workers.

An op runs on the mesh of what it writes to; a view where its memory lies; in a backward pass on the backward
signal's workers; else on the active signal's; else where its largest operand lies.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import UnsupportedError
from ..observe import instruction_log
from ..workers.engine import Engine, Mesh
from ..workers.layout import shardable
from ..workers.transfer import wire_axis
from . import runtime, scope, tensor
from .plans import Call, Look, Plan, find_plan, look_of, read
from .tensor import Home, Ref, SignalTensor

aten = torch.ops.aten
Op = torch._ops.OpOverload


def dispatch(func: Op, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Run one op with at least one handle among its operands."""
    special = _special(func)
    if special is not None:
        return special(func, args, kwargs)
    if "device" in kwargs:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    if "generator" in kwargs:
        kwargs = {k: v for k, v in kwargs.items() if k != "generator"}
    call = Call()
    read(args, kwargs, call)
    handles = [t for t in call.tensors if isinstance(t, SignalTensor)]
    engine = handles[0]._ref.engine
    looks = tuple([t._look if isinstance(t, SignalTensor) else look_of(t) for t in call.tensors])
    plan = find_plan(engine, func, args, kwargs, call, looks)
    if any(not isinstance(call.tensors[i], SignalTensor) for i in plan.written):
        return _write_plain(func, args, kwargs, call, plan)
    for handle in handles:
        home = handle._ref.home
        if not (home.hooked and home.adopted):
            consider_adoption(handle)
    mesh, axis = choose_mesh(call.tensors, handles, plan)
    operands = [operand_on(t, mesh, axis) for t in call.tensors]
    return run(engine, plan, call, operands, mesh)


def run(engine: Engine, plan: Plan, call: Call, operands: list[SignalTensor], mesh: Mesh) -> Any:
    """Record the instruction; the results as handles."""
    numbers = tuple([o._ref.number for o in operands])
    if plan.asks:
        return _ask(engine, plan, call, numbers, mesh)
    results: list[Tensor | None] = []
    fresh: list[int] = []
    home = operands[0]._ref.home if plan.view else None
    for look, same in zip(plan.looks, plan.same, strict=True):
        if same is not None:
            results.append(call.tensors[same])
            continue
        if look is None:
            results.append(None)
            continue
        number = next(engine.ids)
        fresh.append(number)
        results.append(SignalTensor(Ref(engine, number, home or Home(mesh), plan.view), look))
    outputs = tuple(fresh)
    touched = outputs + tuple([numbers[i] for i in plan.written])
    content: tuple = (plan.template, numbers, outputs, tuple(call.floats))
    kind = "op"
    if plan.random:
        kind, content = "draw", (*content, runtime.next_draw())
    engine.record(kind, content, mesh.workers, plan.name, numbers, touched)
    if instruction_log.active:
        instruction_log.op(plan, mesh, numbers, outputs)
    return _structured(plan.returns, results)


def _structured(returns: str, results: list[Tensor | None]) -> Any:
    if returns == "one":
        return results[0]
    if returns == "none":
        return None
    return results if returns == "list" else tuple(results)


def _ask(engine: Engine, plan: Plan, call: Call, numbers: tuple[int, ...], mesh: Mesh) -> Any:
    """The result, or its shape, depends on values: wait for the workers."""
    outputs = tuple(next(engine.ids) for _ in range(_RESULTS_OF_ASKED.get(plan.name, 1)))
    content = (plan.template, numbers, outputs, tuple(call.floats))
    answer = engine.ask("ask", content, mesh, plan.name, numbers, outputs)
    if not isinstance(answer, list):
        return answer
    made = []
    for number, (shape, stride, dtype) in zip(outputs, answer, strict=True):
        look = Look(shape, stride, getattr(torch, dtype.removeprefix("torch.")))
        made.append(SignalTensor(Ref(engine, number, Home(mesh)), look))
    return made[0] if len(made) == 1 else tuple(made)


_RESULTS_OF_ASKED = {
    "aten._unique2.default": 3,
    "aten.unique_dim.default": 3,
    "aten.unique_consecutive.default": 3,
    "aten._unique.default": 2,
}


# ---- where


def choose_mesh(tensors: list, handles: list[SignalTensor], plan: Plan) -> tuple[Mesh, int | None]:
    """The workers that run an op, and the axis along which its operands move there."""
    if plan.written:
        return tensors[plan.written[0]]._ref.home.mesh, 0
    if plan.view:
        return handles[0]._ref.home.mesh, None
    placement = None
    if torch._C._current_graph_task_id() != -1:
        node = torch._C._current_autograd_node()
        if node is not None:
            placement = scope.backward_placement(node._sequence_nr())
    else:
        placement = scope.current()
    if placement is not None:
        return placement.mesh, placement.axis
    largest = handles[0]
    for handle in handles:
        if handle.numel() > largest.numel():
            largest = handle
    return largest._ref.home.mesh, 0


def operand_on(t: Tensor, mesh: Mesh, axis: int | None) -> SignalTensor:
    """The operand as the mesh can use it: itself, or a copy there."""
    from .creation import put_operand

    if not isinstance(t, SignalTensor):
        return put_operand(t, mesh)
    home = t._ref.home
    if home.mesh == mesh:
        return t
    return move(t, mesh, None if home.parameter else axis)


def consider_adoption(t: SignalTensor) -> None:
    """A parameter or buffer belongs to the first context that uses it, unless views of it exist elsewhere."""
    home = t._ref.home
    if not home.hooked and getattr(t, "_is_param", False):
        _welcome_parameter(t)
    if home.parameter and not home.adopted:
        placement = scope.current()
        if placement is not None and torch._C._current_graph_task_id() == -1:
            if home.mesh != placement.mesh and home.refs == 1:
                adopt_handle(t, placement.mesh)
            home.adopted = True


def _welcome_parameter(p: SignalTensor) -> None:
    """First seen: from now on its gradients are laid out as it is."""
    home = p._ref.home
    home.parameter = home.hooked = True
    if p.requires_grad and p.is_leaf:
        weak = weakref.ref(p)
        p.register_hook(lambda grad: _settled(grad, weak()))


def _settled(grad: Tensor, p: SignalTensor | None) -> Tensor | None:
    """A gradient on its parameter's mesh, laid out as the parameter: partial sums are added up here, once."""
    if p is None or not isinstance(grad, SignalTensor):
        return None
    mesh = p._ref.home.mesh
    moved = grad if grad._ref.home.mesh == mesh else move(grad, mesh, None)
    if len(mesh.workers) == 1:
        return moved if moved is not grad else None
    engine = p._ref.engine
    number = next(engine.ids)
    numbers = (moved._ref.number, p._ref.number)
    settled = SignalTensor(Ref(engine, number, Home(mesh)), grad._look)
    engine.record("settle", (number, *numbers), mesh.workers, "settle", numbers, (number,))
    return settled


def adopt_handle(t: SignalTensor, mesh: Mesh) -> SignalTensor:
    """Move a parameter or buffer itself: from now on it lives there, replicated."""
    copy = move(t, mesh, None)
    home, new = t._ref.home, copy._ref
    old_number, old_mesh = t._ref.number, home.mesh
    # The handle and everything that shares its id change together.
    t._ref.number, new.number = new.number, old_number
    home.mesh, new.home.mesh = mesh, old_mesh
    home.adopted = True
    return t


def move(t: SignalTensor, mesh: Mesh, axis: int | None) -> SignalTensor:
    """A copy on another mesh: `Shard(axis)` if no shard would be empty, else replicated."""
    engine, look = t._ref.engine, t._look
    source = t._ref.home.mesh
    if axis is not None and not shardable(look.shape, axis, len(mesh.workers)):
        axis = None
    wire = wire_axis(look.shape, len(source.workers), len(mesh.workers), axis)
    number = next(engine.ids)
    workers = tuple(sorted({*source.workers, *mesh.workers}))
    content = (
        number, t._ref.number, source.number, mesh.number, axis, wire, look.shape, str(look.dtype)[6:]
    )  # fmt: skip
    contiguous = _contiguous(look)
    made = SignalTensor(Ref(engine, number, Home(mesh)), contiguous)
    engine.record("move", content, workers, "move", (t._ref.number,), (number,))
    if instruction_log.active:
        instruction_log.move(t._ref.number, number, source, mesh, axis, look)
    return made


def spread(t: SignalTensor, mesh: Mesh, axis: int | None) -> SignalTensor:
    """A copy of `t` on `mesh` as `Shard(axis)`, or replicated where a shard would be empty."""
    if t._ref.home.mesh != mesh:
        return move(t, mesh, axis)
    engine = t._ref.engine
    if axis is not None and not shardable(t.shape, axis, len(mesh.workers)):
        axis = None
    number = next(engine.ids)
    made = SignalTensor(Ref(engine, number, Home(mesh)), _contiguous(t._look))
    content = (number, t._ref.number, mesh.number, axis)
    engine.record("spread", content, mesh.workers, "spread", (t._ref.number,), (number,))
    return made


def _contiguous(look: Look) -> Look:
    stride, step = [], 1
    for size in reversed(look.shape):
        stride.append(step)
        step *= max(size, 1)
    return Look(look.shape, tuple(reversed(stride)), look.dtype)


# ---- ops with a way of their own


def _alias(func: Op, args: tuple, kwargs: dict[str, Any]) -> Tensor:
    """The same values under another tensor: the same id."""
    return SignalTensor(args[0]._ref, args[0]._look)


def _scalar(func: Op, args: tuple, kwargs: dict[str, Any]) -> Any:
    return args[0].fetch().item()


def _foreach(func: Op, args: tuple, kwargs: dict[str, Any]) -> Any:
    """`_foreach_` ops, one tensor at a time: the tensors may live on different meshes."""
    name = func._opname.removeprefix("_foreach_")
    inplace = name.endswith("_")
    count = len(args[0])
    packet = getattr(aten, name)
    results = []
    for i in range(count):
        row = [a[i] if isinstance(a, list | tuple) and len(a) == count else a for a in args]
        named = {k: a[i] if isinstance(a, list | tuple) and len(a) == count else a for k, a in kwargs.items()}
        if name.startswith(("addcmul", "addcdiv")) and len(row) == 4:
            named["value"] = row.pop()  # only there is it positional
        results.append(packet(*row, **named))
    return None if inplace else results


@functools.cache
def _special(func: Op) -> Callable[[Op, tuple, dict[str, Any]], Any] | None:
    """The op's own way, if it has one."""
    if func._opname.startswith("_foreach_"):
        return _foreach
    _refuse(func)
    return _SPECIAL.get(func)


def _refuse(func: Op) -> None:
    if torch.Tag.inplace_view in func.tags or func in _REFUSED:
        raise UnsupportedError(
            f"{func} changes the shape or the memory of a tensor that lives on workers; use the form that "
            "returns a new tensor"
        )
    if func._opname.startswith("_fused_"):
        raise UnsupportedError(f"{func}: fused optimisers are not for tensors on workers; pass fused=False")


_REFUSED = {aten.set_.source_Tensor, aten.set_.source_Storage, aten.resize_.default, aten.set_.default}


def _write_plain(func: Op, args: tuple, kwargs: dict[str, Any], call: Call, plan: Plan) -> Any:
    """A plain tensor is written to: bring the other operands here."""
    from torch.utils._pytree import tree_map_only

    if any(isinstance(call.tensors[i], SignalTensor) for i in plan.written):
        raise UnsupportedError(f"{func} writes to plain tensors and to tensors on workers at once")
    args, kwargs = tree_map_only(SignalTensor, SignalTensor.fetch, (args, kwargs))
    return func(*args, **kwargs)


def _shape_question(func: Op, args: tuple, kwargs: dict[str, Any]) -> bool:
    return args[0].shape == args[1].shape


_SPECIAL: dict[Op, Any] = {
    aten.detach.default: _alias,
    aten.alias.default: _alias,
    aten.lift_fresh.default: _alias,
    aten._local_scalar_dense.default: _scalar,
    aten.is_same_size.default: _shape_question,
    aten.is_pinned.default: lambda func, args, kwargs: False,
}

tensor._run = dispatch
