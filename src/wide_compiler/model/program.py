"""Programs that run a call: the lane graph, or a loop over the members where capture failed."""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .. import _tree
from ..capture import Captured, canonical_names
from ..capture.state import Slot
from ..errors import InputError
from ..guards.modes import plain_world
from ..lane_values import joined
from ..widen import MEMBERS, LaneGraph, NodeRow, lent
from ..widen.classify import draws
from ..widen.helpers import autocast_restored
from ..widen.per_lane import LaneParameter, give_back, lane_generator
from .chooser import Tuned
from .doors import LaneArguments
from .memory_overlap import own_copies, written_inputs
from .registered import registered_tensor
from .ways import Chunks, Way, Whole


@dataclass
class Call:
    """One call of a wide model: the leaves of (args, kwargs), and which tensor leaves have lanes."""

    leaves: list[Any]
    spec: _tree.TreeSpec
    wide: tuple[bool, ...]  # for each tensor leaf
    signature: Any  # structure and non-tensor leaves, hashable
    is_sample: bool = False  # the members have already accepted it
    packed: bool = False  # packed input: lanes are blocks of channels
    by_lane: LaneArguments | None = None  # arguments given per lane, if any

    @property
    def tensors(self) -> list[Tensor]:
        return [leaf for leaf in self.leaves if isinstance(leaf, Tensor)]

    @property
    def all_tensors(self) -> list[Tensor]:
        """The tensors as given: of every lane if arguments were given per lane."""
        return self.tensors if self.by_lane is None else self.by_lane.tensors()

    @property
    def member_shapes(self) -> list[tuple[int, ...]]:
        # operator.index: torch.compile may pass symbolic sizes, but programs are looked up by numbers.
        pairs = zip(self.tensors, self.wide, strict=True)
        return [tuple(map(operator.index, t.shape[int(w) :])) for t, w in pairs]

    @property
    def layouts(self) -> tuple[Any, ...]:
        """Distinct strides of a member's tensors: of all lanes if given per lane, else of lane 0."""
        if self.packed:
            return ("contiguous",)
        lanes = range(self.by_lane.n) if self.by_lane is not None else (0,)
        return tuple(dict.fromkeys(tuple(t.stride() for t in self.member_tensors(lane)) for lane in lanes))

    def for_lane(self, lane: int) -> tuple[tuple, dict]:
        """Return (args, kwargs) of one lane's member."""
        leaves = self._leaves(lane)
        if self.packed:  # members see contiguous tensors, not views of channel blocks
            leaves = [x.contiguous() if isinstance(x, Tensor) else x for x in leaves]
        return _tree.unflatten(leaves, self.spec)

    def own_for_lane(self, lane: int, lent: Sequence[tuple[Tensor, Tensor]] = ()) -> tuple[tuple, dict]:
        """Like `for_lane`, with copies that the member may write; `lent` as in `own_copies`."""
        leaves = self._leaves(lane)
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if plain_world():
            copies = iter(own_copies(tensors, lent, self.packed))
        else:  # no addresses here; only preserve object identity
            once = {id(tensor): tensor.clone() for tensor in tensors}
            copies = iter([once[id(tensor)] for tensor in tensors])
        return _tree.unflatten([next(copies) if isinstance(x, Tensor) else x for x in leaves], self.spec)

    def member_tensors(self, lane: int) -> list[Tensor]:
        """Return the tensors passed to one lane's member."""
        return [leaf for leaf in self._leaves(lane) if isinstance(leaf, Tensor)]

    def _leaves(self, lane: int) -> list[Any]:
        if self.by_lane is not None:
            return _tree.flatten(self.by_lane.lane(lane))[0]
        flags = iter(self.wide)
        return [(x[lane] if next(flags) else x) if isinstance(x, Tensor) else x for x in self.leaves]


@dataclass
class WideProgram:
    """Program that runs all lanes at once through the lane graph."""

    captured: Captured
    graph: LaneGraph
    tuned: dict[tuple[bool, bool], Tuned] = field(default_factory=dict)  # by (gradients, seeds)
    latest: Tuned | None = None  # the last one run
    seen: int = -1  # `Skeletons.moved` when what it has read of the members was last compared

    why = ""

    def __post_init__(self) -> None:
        # Checked at every call: whether values read by the members' Python are unchanged.
        self.holds, self.rebuild = self.captured.rests_on.holds, self.captured.rebuild
        self.written_inputs = written_inputs(self.captured)  # positions

    def check_packable(self) -> None:
        """Raise `InputError` if an output has no channel axis to pack, before buffers change."""
        for rank in self.graph.output_ranks:
            if rank is not None and rank < 2:
                raise InputError(
                    f"an output has {rank} dims per lane, but packing joins lanes on dim 1 and needs at "
                    f"least 2; use wide.each(...) or wide.stacked(...)"
                )

    @property
    def runs_members(self) -> bool:
        """Whether it runs members as Python, so their train flags must be set."""
        return bool(self.captured.calls)

    @property
    def draws(self) -> bool:
        """Whether the members' forward draws random numbers in this mode."""
        return any(draws(node) for node in self.captured.graph.nodes)

    @property
    def rows(self) -> list[NodeRow]:
        return self.graph.rows if self.latest is None else self.latest.graph.rows

    def run(self, states: Any, call: Call, n: int, chunk: int | None = None, rng: Any = None) -> Any:
        """Run without tuning: where nothing can be measured, and while torch.compile traces."""
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
    """Fallback loop: the members' Python, lane by lane, on their slices of the state."""

    why: str
    wide_states: frozenset[str]
    one_object: bool  # whether a buffer is one tensor in all lanes
    reads_layout: bool = False  # whether a member reads strides and offsets
    rows: list[NodeRow] = field(default_factory=list)
    runs_members = True
    draws = True  # unknown, so assumed
    names: dict[str, str] | None = None  # tensor paths of the members, equal in all lanes
    calls_left: float = math.inf  # calls before a capture is tried again
    # Buffers and plain tensors whose shape or dtype the last call has changed, by path and lane.
    reshaped: dict[str, dict[int, Tensor]] = field(default_factory=dict)
    # Buffers that the last call has made, by path and lane.
    made: dict[str, dict[int, Tensor]] = field(default_factory=dict)

    def holds(self) -> bool:
        """Return False once a capture shall be tried again; the members' Python itself is never stale."""
        return self.calls_left > 0

    def check_packable(self) -> None:
        """Do nothing: the outputs are unknown before the members have run."""

    def __post_init__(self) -> None:
        self.rows = [NodeRow("", "the whole model", "loop", why=self.why)]

    def run(self, states: Any, call: Call, n: int, chunk: int | None = None, rng: Any = None) -> Any:
        """Return the lanes' results, stacked; a list if arguments were given per lane."""
        self.calls_left -= 1
        self.reshaped, self.made = {}, {}
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
                give_back(returns)  # the next lane continues from a shared buffer's new value
                returns.clear()
        together = stack_members(results) if call.by_lane is None else LaneResults(results)
        give_back(returns)  # last: an error in stacking leaves buffers unchanged
        for parameter in parameters.values():
            parameter.settle()
        return together

    def _parameters(self, states: Mapping[str, Any]) -> dict[str, LaneParameter]:
        """Return the stacked parameters to lend to members; none in a transform or trace (slices instead)."""
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

        def made(slot: Slot) -> None:
            self.made.setdefault(slot.path, {})[lane] = slot.tensor

        return lent(member, tensor_of, returns, note, self.reads_layout, made)


def _write_constant(place: Tensor, value: Tensor) -> bool:
    """Copy a member's new plain tensor attribute into the stacked one, which lane graphs read.

    Returns False if its shape or dtype does not fit.
    """
    fits = (value.shape, value.dtype) == (place.shape, place.dtype)
    if fits:
        place.data.copy_(value.detach())
    return fits


class LaneResults(list):
    """One result per lane; structures may differ."""


def stack_members(results: list[Any]) -> Any:
    """Stack N outputs of one structure; non-tensor leaves that differ become `LaneValues`."""
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
    return joined(column)


Program = WideProgram | LoopProgram
