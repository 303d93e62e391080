"""WideModel: N members as one module."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .. import _tree, lanes, oracle
from .._dynamo_marks import outside_traces
from ..config import WideConfig
from ..errors import ArgumentError, InputError, UnsupportedError
from ..guards.modes import ambient_modes, in_backward, plain_world
from ..widen import MEMBERS
from .doors import LaneArguments, enter, entered_door
from .export import export
from .frozen_lanes import FrozenLanes
from .inputs import check_lanes, moved_sample
from .marks import mark_parameters
from .memory_overlap import one_base_written
from .model_explanation import ModelExplanation, summarize
from .program import Call, LaneResults, LoopProgram, Program, WideProgram
from .program_cache import ProgramCache, training_flags
from .programmed_lanes import ProgrammedLanes
from .replayed_call import CHANGED, ReplayedCall
from .routes import Route, Routes, looks
from .seeds import LaneSeeds
from .views import Views


class WideModel(ProgrammedLanes):
    """N models of one architecture as one module.

    Four ways to call it, for any pytree of arguments:

    - `wide(packed)`: `[B, N*C, ...]` in and out, lane i in channel block i (see `pack`, `unpack`).
    - `wide.each(xs, ys)`: every argument a list of N, one per lane; returns a list of N outputs.
    - `wide.stacked(x)`: `[N, B, ...]` in and out.
    - `wide.shared(x)`: one input for all lanes; outputs `[N, B, ...]`.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        sample: Any,
        sample_kwargs: Mapping[str, Any] | None = None,
        config: WideConfig | None = None,
        views: bool = False,
        graph_passes: Sequence[Any] = (),
    ):
        models = list(models)
        super().__init__(models, sample, sample_kwargs, config, graph_passes)
        self.routes = Routes()
        self.replayed: ReplayedCall | None = None
        self.seeds = LaneSeeds()
        self.frozen_lanes = FrozenLanes()
        self.traced_door = "packed"  # entry point of a call traced by torch.compile
        self._program(self.sample_call())
        self.registered.forget_instances()
        if views:
            self.views = Views(models, self.places, self.wide_states)
        self.ready = True  # from now on, unknown attribute names are a member's or a user's

    @classmethod
    def from_models(cls, models: Sequence[nn.Module], sample: Any, **options: Any) -> "WideModel":
        """Like the constructor, under the name of the first WideCompiler."""
        return cls(models, sample, **options)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run on packed tensors `[B, N*C, ...]`, lane i in channel block i."""
        return self._through(entered_door(self), args, kwargs)

    def each(self, *args: Sequence[Any], **kwargs: Sequence[Any]) -> list[Any]:
        """Run on lists of N, one entry per lane for every argument; return a list of N outputs.

        Each output is contiguous, writable and has its own storage, as from an ordinary model.
        """
        return enter(self, "each", args, kwargs)

    def stacked(self, *args: Any, **kwargs: Any) -> Any:
        """Run on stacked tensors `[N, B, ...]`."""
        return enter(self, "stacked", args, kwargs)

    def shared(self, *args: Any, **kwargs: Any) -> Any:
        """Run on one input for all lanes; every output tensor is `[N, ...]`."""
        return enter(self, "shared", args, kwargs)

    def _through(self, door: str, args: tuple, kwargs: dict) -> Any:
        """Run a call through an entry point, without hooks."""
        if door == "packed":
            args, kwargs = lanes.packed_arguments_to_stacked(args, kwargs, self.n)
            if not torch.compiler.is_dynamo_compiling() and self.replayed is not None and not kwargs:
                result = self.replayed.replay(args, door)
                if result is not CHANGED:
                    return lanes.stacked_to_packed(result)
            return lanes.stacked_to_packed(self._run(door, args, kwargs))
        if door == "each":
            by_lane = LaneArguments(args, kwargs, self.n)
            by_lane.check()
            args = tuple(lanes.stack(a, f"each: argument {i}") for i, a in enumerate(args))
            kwargs = {k: lanes.stack(v, f"each: argument {k!r}") for k, v in kwargs.items()}
            result = self._run(door, args, kwargs, by_lane)
            return result if isinstance(result, LaneResults) else lanes.hand_out(result, self.n)
        return self._run(door, args, kwargs)

    def _run(self, door: str, args: tuple, kwargs: dict, by_lane: LaneArguments | None = None) -> Any:
        if self.borrowed and torch.is_grad_enabled() and not torch.compiler.is_dynamo_compiling():
            for place in [place for place in self.borrowed if place.tensor.requires_grad]:
                self.give_own_memory(place)  # no longer frozen: an optimizer will write it
        kept = self.frozen_lanes.rows(self)
        try:  # a checkpoint leaves its second forward by an exception
            return self._run_all(door, args, kwargs, by_lane)
        finally:
            self.frozen_lanes.put_back(kept)

    def route_key(self, args: tuple, door: str) -> tuple[Any, ...]:
        """Return the cache key of a call in `routes`."""
        strides = tuple(x.stride() for x in args) if self.programs.layout_matters else ()
        return (door, self.circumstances(), strides, *looks(args))

    def _run_all(self, door: str, args: tuple, kwargs: dict, by_lane: LaneArguments | None) -> Any:
        if torch.compiler.is_dynamo_compiling() or not plain_world():
            call, program = self._found(door, args, kwargs, by_lane)
            self._check_bases(call, program)
            return self._run_plainly(call, program)
        plain = not kwargs and all(type(x) is Tensor for x in args)
        by_look = plain and not (by_lane and self.programs.layout_matters)  # strides may differ between lanes
        key = self.route_key(args, door) if by_look else None
        route = None if key is None else self.routes.get(key)
        if route is not None and route.program.seen == self.skeletons.moved and route.program.holds():
            if route.writes and (why := self._shared_write(route, self._call(door, args, kwargs, by_lane))):
                return self._run_members(self._call(door, args, kwargs, by_lane), why)
            result = route(args, self._next_seeds(route.program))
            self.replayed = ReplayedCall.of(self, route, args, door)
            return result
        self.replayed = None
        call, program = self._found(door, args, kwargs, by_lane)
        if isinstance(program, LoopProgram):
            return self._run_plainly(call, program)
        route = Route(self, program, call)
        if key is not None:
            self.routes[key] = route
        if route.writes and (why := self._shared_write(route, call)):
            return self._run_members(call, why)
        return route(call.tensors, self._next_seeds(program))

    def _next_seeds(self, program: Program) -> Tensor | None:
        seeds = self.seeds.next()
        if seeds is not None and in_backward() and program.draws:
            raise UnsupportedError(
                "lanes with seeds draw new numbers at every call, and this forward runs again in a backward "
                "pass (torch.utils.checkpoint), where it has to draw the same: remove the seeds by "
                "wide.seed(None), or use the checkpoint inside the members"
            )
        return seeds

    def circumstances(self) -> tuple[Any, ...]:
        """Return what determines the program besides the arguments."""
        seeded = self.seeds.seeds is not None
        modes = torch.is_grad_enabled(), ambient_modes()
        return training_flags(self.scopes), *modes, seeded

    def _found(
        self, door: str, args: tuple, kwargs: dict, by_lane: LaneArguments | None
    ) -> tuple[Call, Program]:
        call = self._call(door, args, kwargs, by_lane)
        check_lanes(call, self.n)
        program = self._program(call)
        if door == "packed":
            program.check_packable()
        return call, program

    def _call(self, door: str, args: tuple, kwargs: dict, by_lane: LaneArguments | None) -> Call:
        leaves, spec = _tree.flatten((args, kwargs))
        flags = (door != "shared",) * sum(isinstance(leaf, Tensor) for leaf in leaves)
        signature = _tree.signature((args, kwargs))
        return Call(leaves, spec, flags, signature, packed=door == "packed", by_lane=by_lane)

    @outside_traces
    def _shared_write(self, route: Route, call: Call) -> str:
        """Return why a call cannot run as a graph: inputs share memory and one is written; '' if it can."""
        if not route.writes.may_show_in(call.all_tensors):
            return ""
        lanes = range(self.n) if call.by_lane or any(call.wide) else [0]
        return next(filter(None, (route.writes.shown_in_others(call.member_tensors(i)) for i in lanes)), "")

    def _check_bases(self, call: Call, program: Program) -> None:
        """Raise `InputError` if a written input may share memory with another, in a trace or transform."""
        if isinstance(program, WideProgram):
            why = one_base_written(program.written_inputs, call.tensors)
            if why:
                raise InputError(f"{why}; give a copy (x.clone()) inside torch.compile or torch.func")

    @outside_traces
    def _run_members(self, call: Call, why: str) -> Any:
        """Run the members' Python, lane by lane."""
        one_object = any(p.kind == "buffer" and p.path in self.one_object for p in self.places)
        program = LoopProgram(why, frozenset(self.wide_states), one_object)
        self.programs.refuse_loops(program)
        members = {MEMBERS: [self.example_member(lane) for lane in range(self.n)]}
        self.programs.latest, self.replayed = program, None
        return program.run({**self.tensors(), **members}, call, self.n, rng=self._next_seeds(program))

    def _run_plainly(self, call: Call, program: Program) -> Any:
        if program.runs_members:
            self.skeletons.set_training(self.own_training())
        states, seeds = self.states(program.runs_members), self._next_seeds(program)
        if not isinstance(program, LoopProgram):
            return program.run(states, call, self.n, self.config.chunk_lanes, seeds)
        with self.skeletons.lock:
            result = program.run(states, call, self.n, rng=seeds)
        if program.reshaped:
            self.reshape_states(program.reshaped)
        if program.made:
            self.take_buffers(program.made)
        self.skeletons.note_move()
        self._forget_routes()
        if self.views.models:  # a forward may have replaced a parameter's memory
            self.views.relink(self.places, self.wide_states)
        return result

    def _forget(self) -> None:
        super()._forget()
        self._forget_routes()

    def _forget_programs(self) -> None:
        self.programs.clear()
        self._forget_routes()

    def _forget_routes(self) -> None:
        self.routes.clear()
        self.replayed = None

    def seed(self, seeds: int | Sequence[int] | None) -> "WideModel":
        """Set a seed per lane for random draws; None returns to PyTorch's generator.

        A lane with a given seed draws the same numbers regardless of the other lanes. A single number seeds
        lane i with `seeds + i`.
        """
        self.seeds.set(seeds, self.n, self._device())
        return self

    def hold_lanes(self, lanes: Any) -> "WideModel":
        """Freeze the buffers of these lanes in later forwards.

        `lanes` are indices; they replace those set before, and an empty list unfreezes all. Plain attributes
        of members that run as Python still change.
        """
        self.frozen_lanes.set([self._lane_number(lane) for lane in lanes], self._device())
        self.replayed = None
        self.frozen_lanes.rows(self)  # raises for a registered module that does not store lanes
        return self

    def select_lanes(self, indices: Sequence[int]) -> "WideModel":
        """Keep, reorder or repeat lanes in place: new lane i is old lane `indices[i]`.

        Parameters stay the same objects, and their gradients are selected too. If the number of lanes is
        unchanged, so are their addresses; otherwise plans are measured again. Graphs are reused unless they
        hold values per lane.
        """
        chosen = [self._lane_number(lane) for lane in indices]
        if not chosen:
            raise ArgumentError("select_lanes: a wide model has at least one lane, got no indices")
        before, kinds = self.n, len(self.skeletons.variants)
        self.select_tensors(chosen)
        self.seeds.select(chosen)
        self.frozen_lanes.set([], self._device())
        if kinds > 1 or before == 1:  # such graphs hold values per lane; one lane shows too little
            self._forget()
        elif len(chosen) != before:
            self.programs.measure_anew()
            self._forget_routes()
        return self

    def summary(self) -> str:
        """Return lanes, parameters and how the last program runs, in a few lines."""
        return summarize(self)

    def explain(self, measure: bool = True) -> ModelExplanation:
        """Return how every node of the members' graph runs, with its time on the sample if `measure`."""
        program = self.programs.latest or self._program(self.sample_call())
        return ModelExplanation.of(self, program, measure)

    export = export

    def validate(self, models: Sequence[nn.Module] | None = None) -> "oracle.Report":
        """Compare with the loop over `models` (by default the lanes of this model) on the sample.

        Returns the report. Raises `ValidationError` beyond the configured tolerances.
        """
        report = oracle.validate(models or list(self.lanes()), self)
        return report.check(self.config.validate_rtol, self.config.validate_atol)

    def _apply(self, fn: Any, recurse: bool = True) -> "WideModel":
        before = [(p.tensor.dtype, p.tensor.device) for p in self.places]
        plain = self.plain_tensors()
        super()._apply(fn, recurse)
        self.registered.apply(fn)
        for place, tensor in plain:  # `float()` of a member does not convert its plain tensors
            place.home[place.name] = tensor.to(place.tensor.device)
        if before != [(p.tensor.dtype, p.tensor.device) for p in self.places]:
            self._forget()
            self.seeds.to(self._device())
            self.frozen_lanes.to(self._device())
            self.skeletons.to(self._device())
            self._sample = moved_sample(self._sample, self.places)
        self.views.relink(self.places, self.wide_states)
        mark_parameters(self)
        return self

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        # Graphs are rebuilt when needed; a copy does not reference the original models.
        state["programs"] = ProgramCache(self.config, self.programs.kept, self.programs.passes)
        state["routes"] = Routes()
        state["replayed"] = None
        state["views"] = Views((), self.places, self.wide_states)
        return state

    def __deepcopy__(self, memo: dict[int, Any]) -> "WideModel":
        clone = type(self).__new__(type(self))
        memo[id(self)] = clone
        for name, value in self.__getstate__().items():
            clone.__dict__[name] = value if name in ("config", "programs") else copy.deepcopy(value, memo)
        # Graphs are pure functions and can be shared, unless they depend on these skeletons.
        clone.programs.adopt(self.programs, graphs=not self.skeletons.moves)
        mark_parameters(clone)
        return clone

    def __repr__(self) -> str:
        return self.summary()
