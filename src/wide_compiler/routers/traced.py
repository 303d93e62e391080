"""Towers under torch.compile: the lane graph becomes part of the trace, with the weights as inputs.

The tracer follows all code that is not marked as constant. So this code reads, tower by tower, everything
that the choice of a lane graph depends on: the tracer guards each value, and a change causes a recompile.
"""

import contextlib
import functools
import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .. import _tree
from ..guards.modes import ambient_modes
from ..lanes import hand_out
from ..model.isolation import made_up
from ..model.members import hooks_lost
from ..model.program import Call, WideProgram
from ..model.routes import split_feeds
from .formation import Formation, TowerPlan, TowerStep
from .order import in_order, others_can_see
from .programs import some_lanes
from .recipe import Recipe, parts_of, walk
from .tower_group import VMapTowerGroup


@dataclass
class TracedStep:
    """Some towers in a trace: run by a lane graph, or without one by themselves."""

    names: list[str]
    program: WideProgram | None = None
    template: list[Any] = field(default_factory=list)  # the lane graph's arguments that never change
    states: list[tuple[int, Any, str, bool, bool]] = field(default_factory=list)
    inputs: list[tuple[int, int]] = field(default_factory=list)

    @classmethod
    def together(cls, group: VMapTowerGroup, lanes: tuple[int, ...], program: WideProgram) -> "TracedStep":
        program = some_lanes(program, lanes, len(group))
        graph, states = program.graph, []
        template, found, inputs, _ = split_feeds(graph, len(lanes))
        for position, key in found:
            owner, _, name = key.rpartition(".")
            wide, written = key in graph.wide_states, key in graph.writes
            states.append((position, parts_of(owner), name, wide, wide and written))
        return cls([group.names[lane] for lane in lanes], program, template, states, inputs)

    def run(self, own: list[nn.Module], tensors: list[Tensor]) -> list[Any]:
        """Return the towers' outputs; `tensors` are the inputs of the lane graph."""
        arguments: list[Any] = [*self.template]
        written: list[tuple[Tensor, list[Tensor]]] = []
        for position, index in self.inputs:
            arguments[position] = tensors[index]
        for position, place, name, wide, is_written in self.states:
            each = [getattr(walk(tower, place), name) for tower in (own if wide else own[:1])]
            arguments[position] = _stacked(each, position) if wide else each[0]
            if is_written:
                written.append((arguments[position], each))
        assert self.program is not None
        result = self.program.rebuild(self.program.graph.module(*arguments))
        with torch.no_grad():
            for stacked, each in written:
                for lane, buffer in enumerate(each):
                    buffer.copy_(stacked[lane])
        return hand_out(result, len(own))


@torch.library.custom_op("wide_compiler::own_gradient", mutates_args=())
def _own_gradient(t: Tensor, key: int) -> Tensor:
    """Copy a tensor, and in the backward pass its gradient.

    torch.compile removes views, as those of `lanes.own_gradient`, and merges equal calls: `key` tells them
    apart.
    """
    return t.clone()


@_own_gradient.register_fake
def _(t: Tensor, key: int) -> Tensor:
    return torch.empty_like(t)


def _keep_key(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
    ctx.key = inputs[1]


def _copied(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    return _own_gradient(gradient, ctx.key), None


_own_gradient.register_autograd(_copied, setup_context=_keep_key)


def _stacked(tensors: list[Tensor], key: int) -> Tensor:
    """Stack the towers' tensors; their gradients share memory with those of no other stack."""
    stack = torch.stack(tensors)
    return _own_gradient(stack, key) if stack.requires_grad and torch.is_grad_enabled() else stack


@contextlib.contextmanager
def outside_the_trace(grad: bool | None = None) -> Iterator[None]:
    """Suspend tracing and dispatch modes; gradients are recorded if `grad` (None: unchanged)."""
    with (
        torch._guards.tracing(None),
        torch.utils._python_dispatch._disable_current_modes(),
        torch.set_grad_enabled(torch.is_grad_enabled() if grad is None else grad),
    ):
        yield


def step_for(
    group: VMapTowerGroup, lanes: tuple[int, ...], look: Any, wide: Any, watchable: bool
) -> TracedStep:
    """Return how some towers of a group run a traced call; `watchable`: can a trace guard all?"""
    signature, kinds, shapes, any_batch, modes, grad = look
    step, program = TracedStep([group.names[lane] for lane in lanes]), None
    with torch.set_grad_enabled(grad):
        if watchable:
            program = programs_for(group, (signature, kinds, modes), shapes, wide, any_batch)
    if isinstance(program, WideProgram) and not group.fills_caches:
        step = TracedStep.together(group, lanes, program)
    group.note(lanes, step.program, "torch.compile is tracing")
    return step


def traced_plan(
    formation: Formation, names: tuple[str, ...], look: Any, recipes: dict[str, Recipe]
) -> list[TracedStep]:
    """Return how the named towers of a router run a traced call, in order."""
    signature, kinds, shapes, any_batch, modes, grad = look
    shared = (False,) * len(kinds)
    steps: dict[tuple[str, ...], TracedStep] = {}
    plan = TowerPlan([], [])

    def add(group: VMapTowerGroup, lanes: tuple[int, ...]) -> tuple[str, ...]:
        watchable = all(recipes[group.names[lane]].watchable for lane in lanes)
        step = step_for(group, lanes, look, shared, watchable)
        if step.program is not None:
            steps[tuple(step.names)] = step
            plan.steps.append(TowerStep(tuple(step.names), group.latest))
        return tuple(step.names)

    @functools.cache
    def seen(name: str) -> bool:
        call = made_up_call((signature, kinds, modes), shapes, shared, any_batch)
        with torch.set_grad_enabled(grad):
            return others_can_see(formation.towers[name], *_tree.unflatten(call.leaves, call.spec))

    for group, lanes in formation.split(names):
        if group is None:
            plan.groups.append((None, tuple(lanes)))
        else:
            own = add(group, lanes)
            plan.groups.append((group.latest, own))
    parts = in_order(names, list(steps), seen)
    for part in parts:
        if len(part) > 1 and part not in steps:
            add(formation.place[part[0]][0], tuple(formation.place[name][1] for name in part))
    formation.latest = TowerPlan(plan.groups, [step for step in plan.steps if step.names in parts])
    return [steps.get(part) or TracedStep(list(part)) for part in parts]


def programs_for(group: VMapTowerGroup, mode: Any, shapes: Any, wide: Any, any_batch: bool) -> Any:
    """Return the program for a traced call: cached, or built on made-up values."""
    found = group.programs.find_traced(mode, shapes, wide, any_batch)
    if found is not None or hooks_lost(group.towers):
        return found
    call = made_up_call(mode, shapes, wide, any_batch, len(group))
    group.build((mode, tuple(call.member_shapes), wide), call)
    return group.programs.find_traced(mode, shapes, wide, any_batch)


def made_up_call(mode: Any, shapes: Any, wide: tuple[bool, ...], any_batch: bool, lanes: int = 1) -> Call:
    """Return a call with the look of the traced one; `shapes` exclude the batch dim if its size may vary."""
    full = [(2, *shape) if any_batch else tuple(shape) for shape in shapes]
    full = [(lanes, *shape) if w else shape for shape, w in zip(full, wide, strict=True)]
    tensors = iter([made_up(shape, *kind) for shape, kind in zip(full, mode[1], strict=True)])
    leaves, spec = _tree.flatten(_tree.rebuild(mode[0], tensors))
    return Call(leaves, spec, wide, mode[0])


def look_of(arguments: Any, tensors: list[Tensor]) -> tuple[Any, ...]:
    """Cache key of a traced call: signature, (dtype, device, requires_grad), shapes without the batch dim if
    its size may vary, whether it may, and the ambient modes."""
    kinds = tuple([(t.dtype, t.device, t.requires_grad) for t in tensors])
    any_batch = all(t.dim() > 0 and t.shape[0] >= 2 for t in tensors)
    shapes = tuple([tuple(map(operator.index, t.shape[int(any_batch) :])) for t in tensors])
    modes = ambient_modes(), torch.is_grad_enabled()
    return (_tree.signature(arguments), kinds, shapes, any_batch, *modes)
