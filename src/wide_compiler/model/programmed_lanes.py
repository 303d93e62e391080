"""ProgrammedLanes: the state of N members, with a program for every kind of call."""

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
from .isolation import isolated_from_transforms, kept_function_modes, plain_call, plain_states
from .lane_store import LaneStore
from .program import Call, Program, WideProgram
from .program_cache import ProgramCache, training_flags


class ProgrammedLanes(LaneStore):
    """Finds or builds the program for a call, keyed by everything a capture bakes in.

    The sample replaces the call where tensors have no data, as in a trace.
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
            raise ArgumentError(
                f"chunk_lanes cannot split the registered wide module {path!r}; leave chunk_lanes out"
            )
        kept = dict.fromkeys(self.registered.builders, "registered")
        self.programs = ProgramCache(self.config, kept, tuple(graph_passes))
        self.stand_ins: set[str] = set()  # paths of tensors without data while building
        self._sample = accepted_sample(models[0], *normalize_sample(sample, sample_kwargs))

    def _program(self, call: Call) -> Program:
        if torch.compiler.is_dynamo_compiling() or _has_symbolic_sizes(call):
            return self._traced_program(call)
        key = (self._mode(call), tuple(call.member_shapes), call.wide)
        program = self.programs.find(key)
        if program is None:
            # Another thread may be building the same program, or running the members copied here.
            with self.skeletons.lock, CAPTURE:
                program = self.programs.find(key) or self._build(key, call)
        if isinstance(program, WideProgram) and program.seen != self.skeletons.moved:
            program = self._after_a_move(key, call, program)
        self.programs.latest = program
        return program

    def _mode(self, call: Call) -> tuple[Any, ...]:
        """Return what a capture bakes in besides shapes: structure, plain arguments, dtypes, flags, modes."""
        tensors = tuple((t.dtype, t.device, t.requires_grad) for t in call.tensors)
        return (
            call.signature,
            tensors,
            training_flags(self.scopes),
            autocast_state(),
            kept_function_modes(),  # includes the default device
            torch.get_default_dtype(),
            call.layouts if self.programs.layout_matters else None,
        )

    def _after_a_move(self, key: Any, call: Call, program: WideProgram) -> Program:
        """Return `program`, or its replacement if the members' Python state has changed since the capture."""
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
        with isolated_from_transforms(), plain_states(self.places, self.stand_ins):
            call = plain_call(call)
            if not call.is_sample:
                check_accepted(call, self.example_member(), self._sample)
            self.skeletons.set_training(self.own_training())
            program = self.programs.build(key, call, self)
        if isinstance(program, WideProgram):
            program.seen = self.skeletons.moved
        return program

    def _traced_program(self, call: Call) -> Program:
        """Find the program inside torch.compile or torch.export.

        Prefers one for any batch size, so that a new batch size does not recompile.
        """
        found = -1
        shapes = [t.shape[int(w) :] for t, w in zip(call.tensors, call.wide, strict=True)]
        if all(len(shape) > 0 and shape[0] >= 2 for shape in shapes):
            rest = tuple(tuple(map(operator.index, shape[1:])) for shape in shapes)
            found = self._find_while_tracing(self._mode(call), rest, call.wide, True, torch.is_grad_enabled())
        if found < 0:
            mode, whole, grad = self._mode(call), tuple(call.member_shapes), torch.is_grad_enabled()
            found = self._find_while_tracing(mode, whole, call.wide, False, grad)
        return self.programs.traced.get(found)

    @constant_result
    def _find_while_tracing(self, mode: Any, shapes: Any, wide: Any, any_batch: bool, grad: bool) -> int:
        """Return the number of the program in `programs.traced`, or -1; dynamo can only use a plain number.

        If the input is new, the program is built from the sample.
        """
        with torch.set_grad_enabled(grad):
            program = self.programs.find_traced(mode, shapes, wide, any_batch)
            if program is None:
                with self.skeletons.lock, CAPTURE, isolated_from_transforms():
                    self._build_from_sample(mode, shapes, wide, any_batch)
                program = self.programs.find_traced(mode, shapes, wide, any_batch)
        return -1 if program is None else self.programs.traced.keep(program)

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
        """Return the non-input arguments of a lane graph: stacked tensors, registered modules, skeletons."""
        states: dict[str, Any] = dict(self.tensors())
        if members:
            states[MEMBERS] = self.skeletons.each()
        for path in self.registered.builders:
            states[path] = self.get_submodule(path)
        return states

    def sample_call(self, wide: tuple[bool, ...] | None = None) -> Call:
        """Return the sample as a call, each tensor repeated over lanes or shared."""
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
        """Drop all programs, because they are stale."""
        self.programs.clear()

    def _device(self) -> torch.device:
        tensors = [*self.tensors().values(), *_tree.flatten(self._sample)[0]]
        return next((t.device for t in tensors if isinstance(t, Tensor)), torch.device("cpu"))


def _has_symbolic_sizes(call: Call) -> bool:
    return any(isinstance(size, torch.SymInt) for tensor in call.tensors for size in tensor.shape)
