"""What runs a call: the lane graph, or, where none could be made, a loop over the members."""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .. import _tree
from ..capture import OUTPUT_TENSOR, Captured, canonical_names
from ..widen import MEMBERS, LaneGraph, Row, lent
from ..widen.classify import is_random
from ..widen.fallbacks import stack_results


@dataclass
class Call:
    """One call of a wide model: the leaves of (args, kwargs) and which tensor leaves carry lanes."""

    leaves: list[Any]
    spec: _tree.TreeSpec
    wide: tuple[bool, ...]  # for each tensor leaf
    signature: Any  # structure and plain leaves, hashable

    @property
    def tensors(self) -> list[Tensor]:
        return [leaf for leaf in self.leaves if isinstance(leaf, Tensor)]

    @property
    def member_shapes(self) -> list[tuple[int, ...]]:
        # operator.index: torch.compile may hand out symbolic sizes, and a program is chosen by numbers.
        return [
            tuple(map(operator.index, t.shape[int(w) :]))
            for t, w in zip(self.tensors, self.wide, strict=True)
        ]

    def for_lane(self, lane: int) -> tuple[tuple, dict]:
        """The member's own (args, kwargs) for one lane."""
        flags = iter(self.wide)
        leaves = [(x[lane] if next(flags) else x) if isinstance(x, Tensor) else x for x in self.leaves]
        return _tree.unflatten(leaves, self.spec)


@dataclass
class WideProgram:
    """The fast path: all lanes at once through the lane graph."""

    captured: Captured
    graph: LaneGraph
    runner: Any = None  # the lane graph's module, or torch.compile of it

    why = ""

    @property
    def draws(self) -> bool:
        """Does the members' forward draw random numbers in this mode?"""
        return any(is_random(node.target) for node in self.captured.graph.nodes)

    @property
    def rows(self) -> list[Row]:
        return self.graph.rows

    def run(
        self,
        states: Mapping[str, Any],
        call: Call,
        n: int,
        chunk: int | None = None,
        rng: Tensor | None = None,
    ) -> Any:
        tensors = call.tensors
        if chunk is None or chunk >= n:
            outputs = self._run(states, tensors, n, None, rng)
        else:
            outputs = self._run_chunks(states, call, n, chunk, rng)
        return self.rebuild(outputs)

    def _run(self, states: Mapping[str, Any], tensors: Sequence[Tensor], n: int, lanes: Any, rng: Any) -> Any:
        runner = self.graph.module if self.runner is None else self.runner
        return runner(*self.graph.arguments(states, tensors, n, lanes, rng))

    def _run_chunks(
        self, states: Mapping[str, Any], call: Call, n: int, chunk: int, rng: Any
    ) -> list[Tensor]:
        parts = []
        for start in range(0, n, chunk):
            lanes = slice(start, min(start + chunk, n))
            some = {
                p: s[lanes] if p in self.graph.wide_states or p == MEMBERS else s for p, s in states.items()
            }
            inputs = [t[lanes] if w else t for t, w in zip(call.tensors, call.wide, strict=True)]
            own_rng = None if rng is None else rng[lanes]
            parts.append(self._run(some, inputs, lanes.stop - lanes.start, lanes, own_rng))
        return [torch.cat(column) for column in zip(*parts, strict=True)]

    def rebuild(self, outputs: Sequence[Tensor]) -> Any:
        tensors = iter(outputs)
        leaves = [next(tensors) if leaf is OUTPUT_TENSOR else leaf for leaf in self.captured.out_statics]
        return _tree.unflatten(leaves, self.captured.out_spec)


@dataclass
class LoopProgram:
    """The honest path: the members' own Python, one lane after another, on their slices of the state."""

    why: str
    wide_states: frozenset[str]
    rows: list[Row] = field(default_factory=list)
    draws = True  # nobody knows what the members' Python does
    names: dict[str, str] | None = None  # the members' tensor paths, the same in every lane

    def __post_init__(self) -> None:
        self.rows = [Row("", "the whole model", "loop", why=self.why)]

    def run(
        self,
        states: Mapping[str, Any],
        call: Call,
        n: int,
        chunk: int | None = None,
        rng: Tensor | None = None,
    ) -> Any:
        results = []
        for lane, member in enumerate(states[MEMBERS]):
            args, kwargs = call.for_lane(lane)
            with self._lane_state(member, states, lane), _lane_generator(rng, lane):
                results.append(member(*args, **kwargs))
        return stack_results(results)

    def _lane_state(self, member: nn.Module, states: Mapping[str, Any], lane: int) -> Any:
        if self.names is None:
            self.names = canonical_names(member)
        names = self.names

        def tensor_of(path: str) -> Tensor:
            canonical = names[path]
            return states[canonical][lane] if canonical in self.wide_states else states[canonical]

        return lent(member, tensor_of)


class _lane_generator:
    """Draw from the lane's own seed, if seeds are given, and leave the global generator as it was."""

    def __init__(self, rng: Tensor | None, lane: int):
        self.seed = None if rng is None else int(rng[lane]) & 0x7FFFFFFFFFFFFFFF

    def __enter__(self) -> None:
        if self.seed is not None:
            self.fork = torch.random.fork_rng()
            self.fork.__enter__()
            torch.manual_seed(self.seed)

    def __exit__(self, *error: Any) -> None:
        if self.seed is not None:
            self.fork.__exit__(*error)


Program = WideProgram | LoopProgram
