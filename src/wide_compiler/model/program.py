"""What runs a call: the lane graph, or, where none could be made, a loop over the members."""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .. import _tree
from ..capture import Captured, canonical_names
from ..errors import InputError
from ..guards.modes import plain_world
from ..lane_values import LaneValues
from ..widen import MEMBERS, LaneGraph, NodeRow, lent
from ..widen.classify import draws
from ..widen.helpers import autocast_restored
from ..widen.per_lane import LaneParameter, give_back, lane_generator
from .choice import Tuned
from .doors import LaneArguments
from .overlap import own_copies, written_inputs
from .registered import registered_tensor
from .ways import Chunks, Way, Whole


@dataclass
class Call:
    """One call of a wide model: the leaves of (args, kwargs) and which tensor leaves carry lanes."""

    leaves: list[Any]
    spec: _tree.TreeSpec
    wide: tuple[bool, ...]  # for each tensor leaf
    signature: Any  # structure and plain leaves, hashable
    is_sample: bool = False  # the members have taken it already
    packed: bool = False  # through the packed door: lanes are blocks of channels
    by_lane: LaneArguments | None = None  # each lane's own arguments, if they were given so

    @property
    def tensors(self) -> list[Tensor]:
        return [leaf for leaf in self.leaves if isinstance(leaf, Tensor)]

    @property
    def all_tensors(self) -> list[Tensor]:
        """As they were given: those of every lane where lanes have given their own."""
        return self.tensors if self.by_lane is None else self.by_lane.tensors()

    @property
    def member_shapes(self) -> list[tuple[int, ...]]:
        # operator.index: torch.compile may hand out symbolic sizes, and a program is chosen by numbers.
        return [
            tuple(map(operator.index, t.shape[int(w) :]))
            for t, w in zip(self.tensors, self.wide, strict=True)
        ]

    @property
    def layouts(self) -> tuple[Any, ...]:
        """The strides of a member's tensors: of every lane where lanes have given their own, else of one."""
        if self.packed:
            return ("contiguous",)
        lanes = range(self.by_lane.n) if self.by_lane is not None else (0,)
        return tuple(dict.fromkeys(tuple(t.stride() for t in self.member_tensors(lane)) for lane in lanes))

    def for_lane(self, lane: int) -> tuple[tuple, dict]:
        """The member's own (args, kwargs) for one lane."""
        leaves = self._leaves(lane)
        if self.packed:  # what was packed counts, not the block of channels that it has become
            leaves = [x.contiguous() if isinstance(x, Tensor) else x for x in leaves]
        return _tree.unflatten(leaves, self.spec)

    def own_for_lane(self, lane: int, lent: Sequence[tuple[Tensor, Tensor]] = ()) -> tuple[tuple, dict]:
        """The same with tensors that the member may write; `lent` as for `own_copies`."""
        leaves = self._leaves(lane)
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if plain_world():
            copies = iter(own_copies(tensors, lent, self.packed))
        else:  # nobody can say where tensors lie, but one tensor stays one
            once = {id(tensor): tensor.clone() for tensor in tensors}
            copies = iter([once[id(tensor)] for tensor in tensors])
        return _tree.unflatten([next(copies) if isinstance(x, Tensor) else x for x in leaves], self.spec)

    def member_tensors(self, lane: int) -> list[Tensor]:
        """The tensors that one lane's member gets."""
        return [leaf for leaf in self._leaves(lane) if isinstance(leaf, Tensor)]

    def _leaves(self, lane: int) -> list[Any]:
        if self.by_lane is not None:
            return _tree.flatten(self.by_lane.lane(lane))[0]
        flags = iter(self.wide)
        return [(x[lane] if next(flags) else x) if isinstance(x, Tensor) else x for x in self.leaves]


@dataclass
class WideProgram:
    """The fast path: all lanes at once through the lane graph."""

    captured: Captured
    graph: LaneGraph
    tuned: dict[tuple[bool, bool], Tuned] = field(default_factory=dict)  # with gradients? with seeds?
    latest: Tuned | None = None  # what ran last
    seen: int = -1  # `Skeletons.moved` when what it has read of the members was last compared

    why = ""

    def __post_init__(self) -> None:
        # Does what the members' Python read still hold? Asked at every call.
        self.holds, self.rebuild = self.captured.rests_on.holds, self.captured.rebuild
        self.written_inputs = written_inputs(self.captured)  # their positions

    def check_packable(self) -> None:
        """Refuse the packed door before anything runs and buffers move, if an output has no channels."""
        for rank in self.graph.output_ranks:
            if rank is not None and rank < 2:
                raise InputError(
                    f"an output has {rank} dims per lane, but packing joins lanes on dim 1 and needs "
                    f"at least 2; "
                    f"use wide.each(...) or wide.stacked(...)"
                )

    @property
    def runs_members(self) -> bool:
        """Does it call the members' own Python, whose train flags must then follow?"""
        return bool(self.captured.calls)

    @property
    def draws(self) -> bool:
        """Does the members' forward draw random numbers in this mode?"""
        return any(draws(node) for node in self.captured.graph.nodes)

    @property
    def rows(self) -> list[NodeRow]:
        return self.graph.rows if self.latest is None else self.latest.graph.rows

    def run(
        self, states: Mapping[str, Any], call: Call, n: int, chunk: int | None = None, rng: Any = None
    ) -> Any:
        """Run without a choice: where nothing can be measured, and while torch.compile is tracing."""
        way: Way = Whole(self.graph.module)
        if chunk is not None and chunk < n:
            way = Chunks(self.graph, self.graph.module, n, chunk)
        return self.run_way(way, self.graph.arguments(states, call.tensors, n, None, rng))

    def run_way(self, way: Callable[[list[Any]], Sequence[Any]], arguments: list[Any]) -> Any:
        if not self.graph.enters_autocast:
            return self.rebuild(way(arguments))
        with autocast_restored():
            return self.rebuild(way(arguments))


@dataclass
class LoopProgram:
    """The honest path: the members' own Python, one lane after another, on their slices of the state."""

    why: str
    wide_states: frozenset[str]
    one_object: bool  # is a buffer one tensor in all lanes?
    reads_layout: bool = False  # does a member read strides and offsets of its tensors?
    rows: list[NodeRow] = field(default_factory=list)
    runs_members = True
    draws = True  # nobody knows what the members' Python does
    names: dict[str, str] | None = None  # the members' tensor paths, the same in every lane
    calls_left: float = math.inf  # after so many calls a graph is tried again
    # Of the last call: buffers and plain tensors that have got another shape or dtype, by path and lane.
    reshaped: dict[str, dict[int, Tensor]] = field(default_factory=dict)

    def holds(self) -> bool:
        """The members' own Python reads everything anew."""
        return self.calls_left > 0

    def check_packable(self) -> None:
        """Nobody knows the outputs before the members have run."""

    def __post_init__(self) -> None:
        self.rows = [NodeRow("", "the whole model", "loop", why=self.why)]

    def run(
        self,
        states: Mapping[str, Any],
        call: Call,
        n: int,
        chunk: int | None = None,
        rng: Tensor | None = None,
    ) -> Any:
        """The lanes' results, stacked; a list of them if each lane has given its own arguments."""
        self.calls_left -= 1
        self.reshaped = {}
        results = []
        returns: list[tuple[Tensor, Tensor]] = []
        members = states[MEMBERS]
        if self.names is None:
            self.names = canonical_names(members[0])
        parameters = self._parameters(states)
        for lane, member in enumerate(members):
            with (
                self._lane_state(member, states, parameters, lane, n, returns) as lent_state,
                lane_generator(rng, lane),
            ):
                args, kwargs = call.own_for_lane(lane, lent_state)
                results.append(member(*args, **kwargs))
            if self.one_object:
                give_back(returns)  # the next lane goes on where this one has left a shared buffer
                returns.clear()
        together = stack_members(results) if call.by_lane is None else PerLane(results)
        give_back(returns)  # not before: results that cannot be stacked leave the buffers as they were
        for parameter in parameters.values():
            parameter.settle()
        return together

    def _parameters(self, states: Mapping[str, Any]) -> dict[str, LaneParameter]:
        """The stacked parameters, to be lent; none inside a transform or a trace, which get slices."""
        if torch.compiler.is_dynamo_compiling() or not plain_world() or self.reads_layout:
            return {}
        stacked = {path: t for path, t in states.items() if path in self.wide_states}
        return {path: LaneParameter(path, t) for path, t in stacked.items() if isinstance(t, nn.Parameter)}

    def _lane_state(
        self,
        member: nn.Module,
        states: Mapping[str, Any],
        parameters: dict[str, LaneParameter],
        lane: int,
        n: int,
        returns: list[tuple[Tensor, Tensor]],
    ) -> Any:
        assert self.names is not None
        names = self.names

        def tensor_of(path: str) -> Tensor:
            canonical = names[path]
            if canonical not in states:
                return registered_tensor(states, canonical, n)[lane]
            if canonical in parameters:
                return parameters[canonical].lanes[lane]
            return states[canonical][lane] if canonical in self.wide_states else states[canonical]

        def note(path: str, value: Any) -> None:
            canonical = names.get(path, path)
            if canonical in parameters:
                parameters[canonical].last[lane] = value
            elif canonical not in self.wide_states or isinstance(states[canonical], nn.Parameter):
                return
            elif not _write_constant(states[canonical][lane], value):
                self.reshaped.setdefault(canonical, {})[lane] = value

        return lent(member, tensor_of, returns, note, self.reads_layout)


def _write_constant(place: Tensor, value: Tensor) -> bool:
    """A plain tensor attribute is the member's own; the stacked copy of it is what lane graphs read.

    False if it does not fit there.
    """
    fits = (value.shape, value.dtype) == (place.shape, place.dtype)
    if fits:
        place.data.copy_(value.detach())
    return fits


class PerLane(list):
    """One result per lane, which need not be alike."""


def stack_members(results: list[Any]) -> Any:
    """N outputs of one structure -> one; Python values that differ become one per lane."""
    flat = [_tree.flatten_output(result) for result in results]
    for lane, (leaves, spec) in enumerate(flat):
        if spec != flat[0][1]:
            raise InputError(
                f"lane {lane} returns {spec}, lane 0 returns {flat[0][1]}; lanes cannot be stacked: "
                f"return one structure in all lanes, or run them one by one with wide.lane(i)"
            )
        for path, mine, first in zip(_tree.output_paths(results[0]), leaves, flat[0][0], strict=True):
            if isinstance(first, Tensor) and (not isinstance(mine, Tensor) or mine.shape != first.shape):
                got = tuple(mine.shape) if isinstance(mine, Tensor) else mine
                raise InputError(
                    f"lane {lane}: output{path} is {got}, lane 0 gives {tuple(first.shape)}; "
                    f"lanes cannot be stacked: return one shape in all lanes (padded, say), or run them one "
                    f"by one with wide.lane(i)"
                )
    columns = zip(*(leaves for leaves, _ in flat), strict=True)
    return _tree.unflatten([_stack(column) for column in columns], flat[0][1])


def _stack(column: tuple[Any, ...]) -> Any:
    if isinstance(column[0], Tensor):
        return torch.stack(column)
    return column[0] if all(leaf == column[0] for leaf in column) else LaneValues(column)


Program = WideProgram | LoopProgram
