"""From a call of some towers straight to their outputs: tensors gathered, stacked, run, handed out."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..lanes import unstack
from ..model.choice import Tuned
from ..model.plans import Plan
from ..model.program import WideProgram
from ..model.ways import Whole
from .living import LivingLanes


class Fused:
    """Several lanes through one lane graph.

    In training the stack is part of the graph, so that gradients arrive at the towers' own parameters.

    Args:
        lanes: which of the living lanes run.
    """

    def __init__(self, program: WideProgram, living: LivingLanes, lanes: Sequence[int]):
        self.program, self.n = program, len(lanes)
        graph = program.graph
        self.run: Any = Whole(graph.module.forward)
        self.rows, self.plan = graph.rows, Plan()
        self.template: list[Any] = [None] * len(graph.feeds)
        self.stacked: list[tuple[int, list[tuple[dict[str, Any], str]]]] = []
        self.single: list[tuple[int, dict[str, Any], str]] = []
        self.inputs: list[tuple[int, int]] = []
        self.written: list[int] = []  # positions in the template
        for position, (kind, key) in enumerate(graph.feeds):
            if kind == "state":
                homes = [living.by_path[key].homes[lane] for lane in lanes]
                if key in graph.wide_states:
                    self.stacked.append((position, homes))
                else:
                    self.single.append((position, *homes[0]))
                if key in graph.writes:
                    self.written.append(position)
            elif kind == "input":
                self.inputs.append((position, int(key)))
            elif kind == "n":
                self.template[position] = self.n
            elif kind != "rng":
                self.template[position] = graph.lane_data[f"{kind}:{key}"]

    def take(self, tuned: Tuned) -> None:
        """Run by this way from now on."""
        self.run, self.rows, self.plan = tuned.run, tuned.graph.rows, tuned.plan

    def arguments(self, tensors: Sequence[Tensor]) -> list[Any]:
        arguments = self.template.copy()
        for position, homes in self.stacked:
            arguments[position] = torch.stack([home[name] for home, name in homes])
        for position, home, name in self.single:
            arguments[position] = home[name]
        for position, index in self.inputs:
            arguments[position] = tensors[index]
        return arguments

    def states(self) -> list[Tensor]:
        """The towers' own tensors that are read."""
        wide = [home[name] for _, homes in self.stacked for home, name in homes]
        return wide + [home[name] for _, home, name in self.single]

    def buffers(self) -> list[Tensor]:
        """The towers' own tensors that are written."""
        return [
            home[name] for position, homes in self.stacked if position in self.written for home, name in homes
        ]

    def __call__(self, tensors: Sequence[Tensor]) -> list[Any]:
        arguments = self.arguments(tensors)
        result = self.program.run_way(self.run, arguments)
        if self.written:
            self._give_back(arguments)
        if self.program.captured.gives_one_tensor:
            return list(result.unbind(0))
        return unstack(result, self.n)

    def _give_back(self, arguments: list[Any]) -> None:
        """Buffers that the lane graph has written, back to the towers."""
        lanes = [lane for p in self.written for lane in arguments[p].detach().unbind(0)]
        with torch.no_grad():
            torch._foreach_copy_(self.buffers(), lanes)
