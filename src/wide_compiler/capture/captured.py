"""Captured: the result of capture and input of widening, one graph for all lanes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, fx

from .. import _tree
from ..guards import Snapshot
from .number_outputs import OUTPUT_TENSOR, OutputNumber, is_output
from .opaque import OpaqueCall
from .shape_guards import ShapeGuards


@dataclass
class Captured:
    """One member's forward as an fx graph of ATen ops.

    `states` maps a placeholder to the canonical path of its parameter or buffer. `constants` are tensors made
    while tracing, by placeholder; `lane_constants` are those that differ by lane, stacked `[N, ...]`.
    `scalars` are Python numbers that differ by lane, one tuple of N per placeholder.
    """

    graph: fx.Graph
    inputs: list[str]
    states: dict[str, str]
    constants: dict[str, Tensor]
    guards: list[ShapeGuards]  # one per variant; all must hold
    out_spec: _tree.TreeSpec
    out_statics: list[Any]
    calls: list[OpaqueCall]
    lane_constants: dict[str, Tensor] = field(default_factory=dict)
    scalars: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    writes: set[str] = field(default_factory=set)  # canonical paths of the states that the graph writes
    reads_grad_mode: bool = False
    rests_on: Snapshot = field(default_factory=Snapshot)  # what the members' Python read outside of them
    own: Snapshot = field(default_factory=Snapshot)  # what it read in the skeletons
    checkpointed: frozenset[str] = frozenset()  # paths of submodules under `torch.utils.checkpoint`
    reads_layout: bool = False  # whether the forward reads strides of its inputs
    asks_values: bool = False  # whether it reads values of tensors held by Python
    traced: bool = True  # whether its code was told that it is traced
    shapes: list[tuple[int, ...]] = field(default_factory=list)  # of the inputs at capture

    def __post_init__(self) -> None:
        self.gives_one_tensor = self.out_spec.is_leaf() and self.out_statics[0] is OUTPUT_TENSOR

    def source(self, name: str) -> tuple[str, Any]:
        """Return what a placeholder stands for: the kind, and its path, value, or position in `inputs`."""
        if name in self.states:
            return "state", self.states[name]
        tables: dict[str, dict[str, Any]] = {"scalar": self.scalars, "constant": self.constants}
        tables["lane_constant"] = self.lane_constants
        found = ((kind, table[name]) for kind, table in tables.items() if name in table)
        return next(found, None) or ("input", self.inputs.index(name))

    def rebuild(self, outputs: Sequence[Any]) -> Any:
        """Return the member's output structure, filled with a graph's outputs."""
        if self.gives_one_tensor:
            return outputs[0]
        given = iter(outputs)
        leaves = [next(given) if is_output(leaf) else _tree.own_copy(leaf) for leaf in self.out_statics]
        pairs = zip(self.out_statics, leaves, strict=True)
        leaves = [static.of(leaf) if isinstance(static, OutputNumber) else leaf for static, leaf in pairs]
        return _tree.unflatten(leaves, self.out_spec)

    def gives_numbers(self) -> list[bool]:
        """For each output of the graph, whether the member returns it as a Python number."""
        return [isinstance(leaf, OutputNumber) for leaf in self.out_statics if is_output(leaf)]

    def admits(self, shapes: list[tuple[int, ...]]) -> bool:
        """Return whether the graph is valid for inputs of these shapes."""
        return all(guards.admit(shapes) for guards in self.guards)
