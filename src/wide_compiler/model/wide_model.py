"""WideModel: N members as one module."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .. import _tree, lanes, oracle
from ..capture import check_models, materialize
from ..config import WideConfig
from ..errors import AlignmentError, InputError
from ..registry import REGISTRY
from ..widen import MEMBERS
from . import saving
from .explain import Explanation, summarize
from .inputs import (
    accepted_sample,
    check_accepted,
    check_lanes,
    grown_sample,
    normalize_sample,
    sample_leaves,
)
from .members import Place, Skeletons, build_tree
from .program import Call, Program
from .programs import Programs, training_flags
from .views import Views


class WideModel(nn.Module):
    """N models of one architecture as one.

    Parameters and buffers stand under the members' own names, stacked `[N, ...]`; tensors that are one
    object in all lanes (a shared trunk) and constant buffers that are equal in all lanes have no lane axis.

    Four doors, for any pytree of arguments:
        wide(packed)        `[B, N*C, ...]` in and out, lane i in channel block i (see `pack`, `unpack`)
        wide.each(xs, ys)   every argument a list of N, one per lane; a list of N outputs
        wide.stacked(x)     `[N, B, ...]` in and out
        wide.shared(x)      one input for all lanes; outputs `[N, B, ...]`
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
        super().__init__()
        models = list(models)
        if not models:
            raise AlignmentError("no models: compile needs at least one model, or one model and n=")
        check_models(models)
        self.n = len(models)
        self.config = config or WideConfig()
        self.training = models[0].training
        self.custom = self._build_registered(models)
        self.places, self.wide_states = build_tree(self, models, set(self.custom))
        for path, module in self.custom.items():
            _hang_module(self, path, module)
        self.skeletons = Skeletons.of(models)
        self.programs = Programs(self.config, dict.fromkeys(self.custom, "registered"), tuple(graph_passes))
        self.views = Views(models if views else (), self.places, self.wide_states)
        self.lane_seeds: Tensor | None = None
        self.draws = 0
        self._sample = accepted_sample(models[0], *normalize_sample(sample, sample_kwargs))
        self._sample_program()

    @classmethod
    def from_models(cls, models: Sequence[nn.Module], sample: Any, **options: Any) -> "WideModel":
        """The same as the constructor, under the name of the first WideCompiler."""
        return cls(models, sample, **options)

    def _build_registered(self, models: Sequence[nn.Module]) -> dict[str, nn.Module]:
        self._builders = REGISTRY.custom_builders(models[0])
        if self._builders and self.config.chunk_lanes:
            raise ValueError(
                f"chunk_lanes cannot split the registered wide module {next(iter(self._builders))!r}"
            )
        # Two members of each are kept: capture and the probe need some, and a wide module of the user's need
        # not be able to give its members back.
        self._examples = {
            path: [copy.deepcopy(m.get_submodule(path)) for m in models[:2]] for path in self._builders
        }
        built = {}
        for path, builder in self._builders.items():
            built[path] = builder.from_modules([m.get_submodule(path) for m in models])
            if not isinstance(built[path], nn.Module):
                raise TypeError(
                    f"{builder.__name__}.from_modules gave {type(built[path]).__name__}, expected an nn.Module"
                )
        return built

    # The doors.

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Packed: every tensor `[B, N*C, ...]`, lane i in channel block i."""
        args, kwargs = lanes.packed_to_stacked((args, kwargs), self.n)
        return lanes.stacked_to_packed(self._run(args, kwargs, wide=True))

    def each(self, *args: Sequence[Any], **kwargs: Sequence[Any]) -> list[Any]:
        """Like `map`: every argument is a list of N, one per lane; gives a list of N outputs."""
        for name, value in [*enumerate(args), *kwargs.items()]:
            if not isinstance(value, (list, tuple)) or len(value) != self.n:
                got = f"{len(value)} entries" if isinstance(value, (list, tuple)) else type(value).__name__
                raise InputError(
                    f"each: argument {name!r} must be a list of {self.n}, one per lane, got {got}"
                )
        stacked_args = tuple(lanes.stack(a) for a in args)
        stacked_kwargs = {k: lanes.stack(v) for k, v in kwargs.items()}
        return lanes.unstack(self._run(stacked_args, stacked_kwargs, wide=True), self.n)

    def stacked(self, *args: Any, **kwargs: Any) -> Any:
        """Every tensor `[N, B, ...]`, lanes first."""
        return self._run(args, kwargs, wide=True)

    def shared(self, *args: Any, **kwargs: Any) -> Any:
        """One input for all lanes; every output tensor `[N, ...]`."""
        return self._run(args, kwargs, wide=False)

    # What runs.

    def _run(self, args: tuple, kwargs: dict, wide: bool) -> Any:
        leaves, spec = _tree.flatten((args, kwargs))
        flags = (wide,) * sum(isinstance(leaf, Tensor) for leaf in leaves)
        call = Call(leaves, spec, flags, _tree.signature((args, kwargs)))
        check_lanes(call, self.n)
        program = self._program(call)
        return program.run(self._states(program), call, self.n, self.config.chunk_lanes, self._rng())

    def _program(self, call: Call) -> Program:
        mode = self._mode(call)
        key = (mode, tuple(call.member_shapes), call.wide)
        if torch.compiler.is_compiling():
            return self.programs.traced[self._find_while_tracing(key)]
        program = self.programs.find(key)
        if program is None:
            program = self._build(key, mode, call)
        self.programs.latest = program
        return program

    @torch._dynamo.assume_constant_result
    def _find_while_tracing(self, key: Any) -> int:
        """`torch.compile` of a wide model may be the first to show it a shape: build from the sample, grown.

        Gives the position in `programs.traced`: a tracer can only take a plain number from here.
        """
        program = self.programs.find(key)
        if program is not None:
            self.programs.traced.append(program)
            return len(self.programs.traced) - 1
        (signature, kinds, *_), shapes, wide = key
        if signature != _tree.signature(self._sample):
            raise InputError("call the wide model once with such an input before torch.compile traces it")
        call = self._sample_call(wide)
        tensors = iter(grown_sample(self._sample, shapes, kinds, wide, self.n))
        call.leaves = [next(tensors) if isinstance(leaf, Tensor) else leaf for leaf in call.leaves]
        with torch._guards.tracing(None), torch.utils._python_dispatch._disable_current_modes():
            self.programs.traced.append(self._build(key, key[0], call))
        return len(self.programs.traced) - 1

    def _build(self, key: Any, mode: Any, call: Call) -> Program:
        if self.programs.by_key:
            check_accepted(call, self._example_member(), self._sample)
        self.skeletons.set_training(
            (p, m.training) for p, m in self.named_modules() if not self._is_custom(p)
        )
        return self.programs.build(key, mode, call, self)

    def _mode(self, call: Call) -> Any:
        """What a capture bakes in besides shapes."""
        tensors = tuple((t.dtype, t.device) for t in call.tensors)
        return (call.signature, tensors, training_flags(self), _autocast_state())

    def _states(self, program: Program) -> dict[str, Any]:
        states: dict[str, Any] = self.tensors()
        states[MEMBERS] = self.skeletons.each()
        for path in self.custom:
            states[path] = self.get_submodule(path)
        return states

    def _rng(self) -> Tensor | None:
        if self.lane_seeds is None:
            return None
        self.draws += 1
        return self.lane_seeds + self.draws * 1_000_003

    def seed(self, seeds: int | Sequence[int] | None) -> "WideModel":
        """Seed the random draws of each lane; None gives them back to PyTorch's own generator.

        A lane with the same seed draws the same numbers whichever lanes run beside it. One number seeds
        lane i with `seeds + i`.
        """
        if seeds is None:
            self.lane_seeds = None
            return self
        values = [seeds + i for i in range(self.n)] if isinstance(seeds, int) else list(seeds)
        if len(values) != self.n:
            raise ValueError(f"seed takes one number or {self.n}, one per lane, got {len(values)}")
        device = next((place.tensor.device for place in self.places), torch.device("cpu"))
        self.lane_seeds, self.draws = torch.tensor(values, dtype=torch.int64, device=device), 0
        return self

    def _sample_call(self, wide: tuple[bool, ...] | None = None) -> Call:
        """The sample as a call of all lanes."""
        wide = wide or (True,) * len(self._sample_tensors())
        return Call(*sample_leaves(self._sample, wide, self.n), wide, _tree.signature(self._sample))

    def _sample_tensors(self) -> list[Tensor]:
        return [leaf for leaf in _tree.flatten(self._sample)[0] if isinstance(leaf, Tensor)]

    def _sample_program(self) -> Program:
        return self._program(self._sample_call())

    # The lanes.

    def tensors(self) -> dict[str, Tensor]:
        """Canonical member path -> tensor, `[N, ...]` where lanes differ."""
        return {place.path: place.tensor for place in self.places}

    def lane_state(self, lane: int, path: str) -> Tensor:
        """One lane's tensor, a view where there is a lane axis."""
        for outer, module in self.custom.items():
            if path.startswith(f"{outer}."):
                return saving.registered_state(module, outer, path.removeprefix(f"{outer}."), lane, self.n)
        tensor = self.tensors()[path].detach()
        return tensor[lane] if path in self.wide_states else tensor

    def lane(self, lane: int) -> nn.Module:
        """An ordinary model with a copy of one lane's weights."""
        self._check_lane(lane)
        member = materialize(self.skeletons.lane(lane), lambda path: self.lane_state(lane, path).clone())
        for path, module in self.named_modules():
            if not self._is_custom(path):
                member.get_submodule(path).training = module.training
        return member

    def _example_member(self) -> nn.Module:
        return materialize(self.skeletons.lane(0), lambda path: self.capture_state(0, path).clone())

    def lanes(self) -> Iterator[nn.Module]:
        """Every lane as an ordinary model, one at a time."""
        return (self.lane(i) for i in range(self.n))

    def load_lane(self, lane: int, state: Mapping[str, Tensor] | nn.Module) -> None:
        """Put a member's weights (a state_dict, or a model) into one lane."""
        self._check_lane(lane)
        saving.load_lane(self, lane, state.state_dict() if isinstance(state, nn.Module) else state)

    def promote(self, path: str) -> None:
        """Give a buffer that all lanes shared a lane axis, because lanes begin to differ."""
        place = next(p for p in self.places if p.path == path)
        if place.kind == "parameter":
            raise InputError(
                f"{path} is one parameter for all lanes (a shared trunk) and cannot differ by lane"
            )
        old = place.tensor
        wide = old.unsqueeze(0).repeat(self.n, *([1] * old.dim()))
        for module in self.modules():
            for name, buffer in module._buffers.items():
                if buffer is old:
                    module._buffers[name] = wide
        self.wide_states.add(path)
        self.programs.clear()

    def probe_module(self, path: str, count: int) -> nn.Module:
        """A registered wide module of the first few lanes, for widening to try."""
        module = self._builders[path].from_modules(self._examples[path][:count])
        return module.to(next(iter(self._sample_tensors()), torch.empty(0)).device).train(
            self.get_submodule(path).training
        )

    def capture_state(self, lane: int, path: str) -> Tensor:
        """A tensor to capture with; for registered modules an example's, since its numbers do not matter."""
        for outer, examples in self._examples.items():
            if path.startswith(f"{outer}."):
                return {**dict(examples[0].named_parameters()), **dict(examples[0].named_buffers())}[
                    path.removeprefix(f"{outer}.")
                ]
        return self.lane_state(lane, path)

    def _is_custom(self, path: str) -> bool:
        return any(path == p or path.startswith(f"{p}.") for p in self.custom)

    def _check_lane(self, lane: int) -> None:
        if not isinstance(lane, int) or not -self.n <= lane < self.n:
            raise IndexError(f"lane {lane} is out of range for {self.n} lanes")

    # What it tells.

    def summary(self) -> str:
        """Lanes, parameters and how the last program runs, in a few lines."""
        return summarize(self)

    def explain(self, measure: bool = True) -> Explanation:
        """What became of every node of the members' graph, and how long it takes on the sample."""
        return Explanation.of(self, measure)

    def validate(self, models: Sequence[nn.Module] | None = None) -> "oracle.Report":
        """Compare with the loop over `models` (by default: over this model's own lanes) on the sample."""
        call = self._sample_call()
        inputs = [call.for_lane(i) for i in range(self.n)]
        report = oracle.compare(models or list(self.lanes()), self, inputs)
        report.check(self.config.validate_rtol, self.config.validate_atol)
        return report

    # Saving and moving.

    def save(self, path: Any, lane: int | None = None) -> None:
        """Write all lanes, or one as an ordinary model's state, as safetensors."""
        saving.save(self, path, lane)

    def load(self, path: Any, lane: int | None = None) -> None:
        """Read what `save` wrote: all lanes, or an ordinary model's state into one."""
        saving.load(self, path, lane)

    def _apply(self, fn: Any, recurse: bool = True) -> "WideModel":
        shared_before = {p.path: p.tensor for p in self.places}
        super()._apply(fn, recurse)
        if self.lane_seeds is not None:
            self.lane_seeds = self.lane_seeds.to(next(iter(self.places)).tensor.device)
        if any(place.tensor is not shared_before[place.path] for place in self.places) or self._moved():
            self.programs.clear()
            self._sample = _tree.tree_map(_follow(self.places), self._sample)
        self.views.relink(self.places, self.wide_states)
        return self

    def _moved(self) -> bool:
        kinds = {(p.tensor.dtype, p.tensor.device) for p in self.places}
        changed = kinds != getattr(self, "_kinds", kinds)
        self._kinds = kinds
        return changed

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        saving.fit_lane_axes(self, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        state["programs"] = Programs(
            self.config, self.programs.kept, self.programs.passes
        )  # graphs are rebuilt where they are needed
        state["views"] = Views((), self.places, self.wide_states)
        return state

    def __deepcopy__(self, memo: dict[int, Any]) -> "WideModel":
        clone = type(self).__new__(type(self))
        memo[id(self)] = clone
        for name, value in self.__getstate__().items():
            clone.__dict__[name] = value if name == "config" else copy.deepcopy(value, memo)
        clone.programs.by_key = dict(self.programs.by_key)  # pure functions: safe to share
        clone.programs.captures = {mode: list(known) for mode, known in self.programs.captures.items()}
        return clone

    def __repr__(self) -> str:
        return self.summary()


def _follow(places: list[Place]) -> Any:
    """Samples follow the model to another device, and floating ones to another precision."""
    reference = next((p.tensor for p in places if p.tensor.is_floating_point()), None)

    def move(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or reference is None:
            return leaf
        return leaf.to(reference) if leaf.is_floating_point() else leaf.to(reference.device)

    return move


def _hang_module(root: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    root.get_submodule(parent)._modules[name] = module


def _autocast_state() -> tuple[Any, ...]:
    return tuple(
        (kind, torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)
    )
