"""Run several towers through one lane graph: stack their tensors, run, unstack the outputs."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .. import _tree
from ..guards import ModuleGuard
from ..lanes import hand_out, own_gradient
from ..measure.contest import Written
from ..model.chooser import Tuned
from ..model.plan_builder import CallPlan
from ..model.program import WideProgram
from ..model.routes import split_feeds
from ..model.ways import Whole
from .cache_output import leave_in_caches
from .module_lanes import ModuleLanes
from .reached import Reached
from .stacked_gradients import StackedLeaf
from .stacked_memory import FromMemory, Lent, Memory, is_large


class Source:
    """The lanes' tensors of one state, read again at every call."""

    def __init__(self, position: int, homes: list[tuple[dict[str, Any], str]], written: bool):
        self.position, self.homes, self.written = position, homes, written
        self.memory: Tensor | None = None  # the stack that holds them, if there is one
        self.leaf: StackedLeaf | None = None  # that stack as an autograd leaf, if it is one
        self.is_large = False

    def tensors(self) -> list[Tensor]:
        return [home[name] for home, name in self.homes]

    def look_in(self, memory: Memory) -> None:
        """Find the stack in `memory` that holds the tensors, if there is one."""
        tensors = self.tensors()
        self.memory, self.leaf = memory.find(tensors), memory.leaf_of(tensors)
        self.is_large = self.memory is not None and is_large(self.memory)

    def stacked(self, lent: Lent | None) -> Tensor:
        """Return the stacked tensor `[n, ...]`; under gradients, stacked memory is lent via `lent`."""
        if self.memory is not None:
            if self.written or not torch.is_grad_enabled():
                return self.memory
            if lent is not None and lent.leaves and self.leaf is not None:
                return lent.lend(self.leaf.leaf, self.leaf.parameters)
            if lent is not None and self.is_large:
                own = self.tensors()
                if not own[0].requires_grad:
                    return lent.lend(self.memory.data, own)
                return lent.lend(lent.own_gradient(FromMemory.apply(self.memory, *own)), own)
        stack = torch.stack(self.tensors())
        return lent.own_gradient(stack) if lent is not None and is_large(stack) else own_gradient(stack)


class Fused:
    """Runs several lanes through one lane graph.

    In training, stacking is part of the autograd graph, so gradients arrive at the towers' parameters.

    Args:
        lanes: indices of the lanes that run.
        guard: its generation tells when tensors may have moved.
        memory: stacked memory in which the tensors may already be.
    """

    def __init__(
        self,
        program: WideProgram,
        living: ModuleLanes,
        lanes: Sequence[int],
        guard: ModuleGuard | None = None,
        memory: Memory | None = None,
    ):
        self.program, self.n = program, len(lanes)
        self.guard, self.memory, self.generation = guard, memory, 0
        graph = program.graph
        self.run: Any = Whole(graph.module.forward)
        self.rows, self.plan = graph.rows, CallPlan()
        self.template, states, self.inputs, _ = split_feeds(graph, self.n)
        self.sources: list[Source] = []
        self.single: list[tuple[int, dict[str, Any], str]] = []
        for position, key in states:
            homes = [living.by_path[key].homes[lane] for lane in lanes]
            if key in graph.wide_states:
                self.sources.append(Source(position, homes, key in graph.writes))
            else:
                self.single.append((position, *homes[0]))
        self.writes = any(source.written for source in self.sources)
        self.lends_leaves = True  # False while gradients of the towers' parameters are requested
        self.wide_inputs: Sequence[bool] = ()  # which inputs are stacks of the lanes' own
        self.fills: Sequence[nn.Module] | None = None  # the towers, if the graph also returns their caches

    def take(self, tuned: Tuned) -> None:
        """Run in the tuned way from now on."""
        self.run, self.rows, self.plan = tuned.run, tuned.graph.rows, tuned.plan

    def arguments(self, tensors: Sequence[Tensor], lent: Lent | None = None) -> list[Any]:
        """Return the arguments of the lane graph."""
        if self.memory is not None and self.guard is not None and self.guard.generation != self.generation:
            self.generation = self.guard.generation
            for source in self.sources:
                source.look_in(self.memory)
        arguments = self.template.copy()
        for source in self.sources:
            arguments[source.position] = source.stacked(lent)
        for position, home, name in self.single:
            arguments[position] = home[name]
        for position, index in self.inputs:
            arguments[position] = tensors[index]
        return arguments

    def states(self) -> list[Tensor]:
        """Return the towers' tensors that the graph reads."""
        wide = [tensor for source in self.sources for tensor in source.tensors()]
        return wide + [home[name] for _, home, name in self.single]

    def written(self) -> list[Written]:
        """Return the towers' tensors that the graph writes."""
        return [Written(*home) for source in self.sources if source.written for home in source.homes]

    def __call__(self, tensors: Sequence[Tensor]) -> list[Any]:
        reached = Reached(self, tensors) if torch.is_grad_enabled() else None
        results = hand_out(self.stacked(tensors), self.n, reached)
        return results if self.fills is None else leave_in_caches(self.fills, results)

    def stacked(self, tensors: Sequence[Tensor]) -> Any:
        """Return the output of all lanes, tensors `[n, ...]`."""
        lent = Lent(self.lends_leaves) if torch.is_grad_enabled() else None
        arguments = self.arguments(tensors, lent)
        result = self.program.run_way(self.run, arguments)
        if self.writes:
            self._give_back(arguments)
        if lent is not None and lent.stacks:
            lent.watch([result] if isinstance(result, Tensor) else _tree.flatten(result)[0])
        return result

    def watched(self, tensors: Sequence[Tensor]) -> list[Any]:
        """Check the guard and run; for timing, because running as a loop needs no guard."""
        if self.guard is not None:
            self.guard.holds()
        return self(tensors)

    def _give_back(self, arguments: list[Any]) -> None:
        """Copy written buffers back to the towers, unless the graph wrote into their memory."""
        own: list[Tensor] = []
        lanes: list[Tensor] = []
        for source in self.sources:
            if source.written and arguments[source.position] is not source.memory:
                own += source.tensors()
                lanes += arguments[source.position].detach().unbind(0)
        if own:
            with torch.no_grad():
                torch._foreach_copy_(own, lanes)
