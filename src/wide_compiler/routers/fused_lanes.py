"""From a call of some towers straight to their outputs: tensors gathered, stacked, run, handed out."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .. import _tree
from ..guards import ModuleGuard
from ..lanes import hand_out
from ..model.chooser import Tuned
from ..model.plan_builder import CallPlan
from ..model.program import WideProgram
from ..model.ways import Whole
from .cache_output import leave_in_caches
from .module_lanes import ModuleLanes
from .stacked_gradients import StackedLeaf
from .stacked_memory import Lent, Memory, is_large


class Source:
    """The lanes' own tensors of one state, read anew at every call."""

    def __init__(self, position: int, homes: list[tuple[dict[str, Any], str]], written: bool):
        self.position, self.homes, self.written = position, homes, written
        self.memory: Tensor | None = None  # the stack in which they lie, if they do
        self.leaf: StackedLeaf | None = None  # the same as what gradients go to, if they do
        self.is_large = False

    def tensors(self) -> list[Tensor]:
        return [home[name] for home, name in self.homes]

    def look_in(self, memory: Memory) -> None:
        """Find out whether they lie stacked already."""
        tensors = self.tensors()
        self.memory, self.leaf = memory.find(tensors), memory.leaf_of(tensors)
        self.is_large = self.memory is not None and is_large(self.memory)

    def stacked(self, lent: Lent | None) -> Tensor:
        """`[n, ...]`. With gradients recorded, what lies in memory may only be lent."""
        if self.memory is not None:
            if self.written or not torch.is_grad_enabled():
                return self.memory
            if lent is not None and lent.leaves and self.leaf is not None and self.leaf.holds():
                return lent.lend_leaf(self.leaf, self.tensors())
            if lent is not None and self.is_large:
                return lent.lend(self.memory, self.tensors())
        return torch.stack(self.tensors())


class Fused:
    """Several lanes through one lane graph.

    In training the stack is part of the graph, so that gradients arrive at the towers' own parameters.

    Args:
        lanes: which of the living lanes run.
        guard: tells when tensors have been put elsewhere.
        memory: where they may lie stacked already.
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
        self.template: list[Any] = [None] * len(graph.feeds)
        self.sources: list[Source] = []
        self.single: list[tuple[int, dict[str, Any], str]] = []
        self.inputs: list[tuple[int, int]] = []
        for position, (kind, key) in enumerate(graph.feeds):
            if kind == "state":
                homes = [living.by_path[key].homes[lane] for lane in lanes]
                if key in graph.wide_states:
                    self.sources.append(Source(position, homes, key in graph.writes))
                else:
                    self.single.append((position, *homes[0]))
            elif kind == "input":
                self.inputs.append((position, int(key)))
            elif kind == "n":
                self.template[position] = self.n
            elif kind != "rng":
                self.template[position] = graph.lane_data[f"{kind}:{key}"]
        self.writes = any(source.written for source in self.sources)
        self.lends_leaves = True  # False while gradients are asked for of the towers' own parameters
        self.fills: Sequence[nn.Module] | None = None  # the towers, if their graph gives what they leave, too

    def take(self, tuned: Tuned) -> None:
        """Run by this way from now on."""
        self.run, self.rows, self.plan = tuned.run, tuned.graph.rows, tuned.plan

    def arguments(self, tensors: Sequence[Tensor], lent: Lent | None = None) -> list[Any]:
        """The lane graph's arguments."""
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
        """The towers' own tensors that are read."""
        wide = [tensor for source in self.sources for tensor in source.tensors()]
        return wide + [home[name] for _, home, name in self.single]

    def buffers(self) -> list[Tensor]:
        """The towers' own tensors that are written."""
        return [tensor for source in self.sources if source.written for tensor in source.tensors()]

    def __call__(self, tensors: Sequence[Tensor]) -> list[Any]:
        results = hand_out(self.stacked(tensors), self.n)
        return results if self.fills is None else leave_in_caches(self.fills, results)

    def stacked(self, tensors: Sequence[Tensor]) -> Any:
        """The lanes' outputs in one, tensors `[n, ...]`."""
        lent = Lent(self.lends_leaves) if torch.is_grad_enabled() else None
        arguments = self.arguments(tensors, lent)
        result = self.program.run_way(self.run, arguments)
        if self.writes:
            self._give_back(arguments)
        if lent is not None and lent.stacks:
            lent.watch([result] if isinstance(result, Tensor) else _tree.flatten(result)[0])
        return result

    def watched(self, tensors: Sequence[Tensor]) -> list[Any]:
        """The same with the price of watching the towers, which running in sequence need not pay."""
        if self.guard is not None:
            self.guard.holds()
        return self(tensors)

    def _give_back(self, arguments: list[Any]) -> None:
        """Buffers that the lane graph has written, back to the towers (unless they lie where it wrote)."""
        own: list[Tensor] = []
        lanes: list[Tensor] = []
        for source in self.sources:
            if source.written and arguments[source.position] is not source.memory:
                own += source.tensors()
                lanes += arguments[source.position].detach().unbind(0)
        if own:
            with torch.no_grad():
                torch._foreach_copy_(own, lanes)
