"""ProgrammedLanes: the state of N members, and a program for every kind of call."""

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .. import _tree
from .._dynamo_marks import constant_result
from ..capture import CAPTURE
from ..config import WideConfig
from ..errors import ArgumentError, InputError
from ..guards.modes import autocast_state
from ..widen import MEMBERS
from .inputs import accepted_sample, check_accepted, grown_sample, normalize_sample, sample_leaves
from .lane_store import LaneStore
from .neutral import kept_function_modes, neutral_world, plain_call, plain_states
from .program import Call, Program, WideProgram
from .programs import Programs, training_flags


class ProgrammedLanes(LaneStore):
    """Finds the program for a call by all that a capture bakes in, or builds it; also inside torch.compile.

    The sample stands for a call where none is at hand: a trace has no tensors with numbers.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        sample: Any,
        sample_kwargs: Mapping[str, Any] | None,
        config: WideConfig | None,
        graph_passes: Sequence[Any],
    ):
        super().__init__(models)
        self.config = config or WideConfig()
        if self.registered.builders and self.config.chunk_lanes:
            path = next(iter(self.registered.builders))
            raise ArgumentError(f"chunk_lanes cannot split the registered wide module {path!r}")
        kept = dict.fromkeys(self.registered.builders, "registered")
        self.programs = Programs(self.config, kept, tuple(graph_passes))
        self.stand_ins: set[str] = set()  # paths of tensors that have no numbers while a program is built
        self._sample = accepted_sample(models[0], *normalize_sample(sample, sample_kwargs))

    def _program(self, call: Call) -> Program:
        if torch.compiler.is_dynamo_compiling() or _has_symbolic_sizes(call):
            return self._traced_program(call)
        key = (self._mode(call), tuple(call.member_shapes), call.wide)
        program = self.programs.find(key)
        if program is None:
            # Another thread may be building the same one, or run the members whose copies are taken here.
            with self.skeletons.lock, CAPTURE:
                program = self.programs.find(key) or self._build(key, call)
        if isinstance(program, WideProgram) and program.seen != self.skeletons.moved:
            program = self._after_a_move(key, call, program)
        self.programs.latest = program
        return program

    def _mode(self, call: Call) -> tuple[Any, ...]:
        """What a capture bakes in besides shapes: structure and plain arguments, dtypes, flags, modes."""
        tensors = tuple((t.dtype, t.device, t.requires_grad) for t in call.tensors)
        return (
            call.signature,
            tensors,
            training_flags(self.scopes),
            autocast_state(),
            kept_function_modes(),  # among them the default device
            torch.get_default_dtype(),
            self.programs.grad_mode(),
            call.layouts if self.programs.layout_matters else None,
        )

    def _after_a_move(self, key: Any, call: Call, program: WideProgram) -> Program:
        """Members have run as Python, or their own `train` was called: does the program still hold?"""
        change = program.captured.own.first_change()
        if change is not None:
            with self.skeletons.lock, CAPTURE:
                self.programs.follow([])
                if self.skeletons.separated:
                    self.programs.note_change(key, call, self, f"{change.path} has changed")
                program = self.programs.find(key) or self._build(key, call)  # type: ignore[assignment]
        if isinstance(program, WideProgram):
            program.seen = self.skeletons.moved
        return program

    def _build(self, key: tuple[Any, ...], call: Call) -> Program:
        with neutral_world(), plain_states(self.places, self.stand_ins):
            call = plain_call(call)
            if not call.is_sample:
                check_accepted(call, self.example_member(), self._sample)
            self.skeletons.set_training(self.own_training())
            program = self.programs.build(key, call, self)
        if isinstance(program, WideProgram):
            program.seen = self.skeletons.moved
        return program

    def _traced_program(self, call: Call) -> Program:
        """The same inside torch.compile or torch.export, for any batch if possible: a new one then compiles
        nothing."""
        found = -1
        shapes = [t.shape[int(w) :] for t, w in zip(call.tensors, call.wide, strict=True)]
        if all(len(shape) > 0 and shape[0] >= 2 for shape in shapes):
            rest = tuple(tuple(map(operator.index, shape[1:])) for shape in shapes)
            found = self._find_while_tracing(self._mode(call), rest, call.wide, True)
        if found < 0:
            found = self._find_while_tracing(self._mode(call), tuple(call.member_shapes), call.wide, False)
        return self.programs.traced.get(found)

    @constant_result
    def _find_while_tracing(self, mode: Any, shapes: Any, wide: Any, any_batch: bool) -> int:
        """The number in `programs.traced` (a tracer can only take a plain number from here), or -1.

        torch.compile may be the first to show a wide model this input; then it is built from the sample.
        """
        program = self.programs.find_traced(mode, shapes, wide, any_batch)
        if program is None:
            with self.skeletons.lock, CAPTURE, neutral_world():
                self._build_from_sample(mode, shapes, wide, any_batch)
            program = self.programs.find_traced(mode, shapes, wide, any_batch)
        if program is None:
            return -1
        return self.programs.traced.keep(program)

    def _build_from_sample(self, mode: Any, shapes: Any, wide: Any, any_batch: bool) -> None:
        sample = [leaf for leaf in _tree.flatten(self._sample)[0] if isinstance(leaf, Tensor)]
        ranks = [len(shape) + any_batch for shape in shapes]
        if ranks != [t.dim() for t in sample]:
            raise InputError("call the wide model once with such an input before torch.compile traces it")
        if any_batch:
            shapes = tuple((max(t.shape[0], 2), *rest) for t, rest in zip(sample, shapes, strict=True))
        tensors = grown_sample(sample, shapes, mode[1], wide, self.n)
        tree = _tree.rebuild(mode[0], iter(tensors))
        self._build((mode, shapes, wide), Call(*_tree.flatten(tree), wide, mode[0]))

    def states(self, members: bool = True) -> dict[str, Any]:
        """All that a lane graph may ask for: stacked tensors, registered wide modules, members' skeletons."""
        states: dict[str, Any] = dict(self.tensors())
        if members:
            states[MEMBERS] = self.skeletons.each()
        for path in self.registered.builders:
            states[path] = self.get_submodule(path)
        return states

    def sample_call(self, wide: tuple[bool, ...] | None = None) -> Call:
        """The sample as a call of all lanes, each tensor spread over lanes or shared."""
        tensors = [leaf for leaf in _tree.flatten(self._sample)[0] if isinstance(leaf, Tensor)]
        wide = (True,) * len(tensors) if wide is None else wide
        leaves, spec = sample_leaves(self._sample, wide, self.n)
        return Call(leaves, spec, wide, _tree.signature(self._sample), is_sample=True)

    def promote(self, path: str) -> None:
        self._check_plain({path} & self.stand_ins)
        super().promote(path)
        self._forget()

    def _separate_python(self) -> list[dict[int, Any]]:
        stands_for = super()._separate_python()
        if stands_for:
            self.programs.follow(stands_for)
        return stands_for

    def separate_members(self) -> None:
        if not self.skeletons.separated:
            self._check_plain(self.stand_ins)
        super().separate_members()

    @staticmethod
    def _check_plain(stand_ins: set[str]) -> None:
        if stand_ins:
            raise InputError(
                f"{min(stand_ins)} is a fake or wrapped tensor here, and its numbers are needed to run this "
                f"call; call the wide model once as usual before it is traced or transformed like this"
            )

    def _forget(self) -> None:
        """What was built is no longer true."""
        self.programs.clear()

    def _device(self) -> torch.device:
        tensors = [*self.tensors().values(), *_tree.flatten(self._sample)[0]]
        return next((t.device for t in tensors if isinstance(t, Tensor)), torch.device("cpu"))


def _has_symbolic_sizes(call: Call) -> bool:
    return any(isinstance(size, torch.SymInt) for tensor in call.tensors for size in tensor.shape)
