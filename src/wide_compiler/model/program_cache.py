"""Cache of programs, keyed by everything a capture bakes in: modes, structure, dtypes, devices, shapes."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from .. import _tree
from .._dynamo_marks import TracedStore
from ..capture import (
    Captured,
    CaptureFailed,
    HasEffects,
    Observation,
    derive_capture,
    export_member,
    materialize,
    observe_member,
    slots,
    zip_variants,
)
from ..capture.skeleton import keeps_history
from ..capture.strides import overlaps_itself
from ..config import WideConfig
from ..errors import AlignmentError, InputError, UnsupportedError, one_line
from ..guards import Observer, Snapshot
from ..remote_tensors import to_local
from ..widen import MEMBERS, Probe, ReadsLayout, WidenFailed, widen
from ..widen.classify import reads_layout
from .members import Skeletons
from .program import Call, LoopProgram, Program, WideProgram

# Maximum number of shapes with a separate capture; further shapes run as a loop.
MAX_CAPTURES = 24
# A forward that changed its Python state in this many runs, and was never captured, always runs as a loop.
ALWAYS_CHANGES = 3
MAX_LOOPED_CALLS = 64
# Maximum number of programs per key that differ only in values read by the members' Python.
MAX_CHANGES = 8


@dataclass
class Changes:
    """How often the members' Python changed its own state, for one combination of train flags.

    A cache filled by the first call is a change of one call: the next call may be captured. Each change about
    doubles the number of calls that run as Python before a capture is tried again.
    """

    count: int = 0
    why: str = ""
    captured: bool = False  # whether a capture has succeeded in spite of them

    def note(self, why: str) -> None:
        self.count, self.why = self.count + 1, why

    @property
    def looped_calls(self) -> int:
        return min(2 ** (self.count // 2), MAX_LOOPED_CALLS)

    @property
    def for_good(self) -> bool:
        return self.count >= ALWAYS_CHANGES and not self.captured


class ProgramCache:
    """Finds or builds the program for a call. Holds no weights: states are passed to every build."""

    def __init__(self, config: WideConfig, kept: dict[str, str], passes: tuple[Any, ...] = ()):
        self.config = config
        self.passes = passes  # user-defined graph passes
        self.kept = kept  # registered submodules, opaque in the graph: path -> why
        # By (key, grad_mode()): only a capture shows whether the members' code reads the gradient mode, so a
        # caller cannot put it into the key. Several per key if values read by their Python have changed.
        self.by_key: dict[Any, list[Program]] = {}
        self.effects: dict[Any, Changes] = {}  # by train flags
        self.recaptures = 0  # number of captures repeated because of such a change
        self.captures: dict[Any, list[Captured]] = {}
        self.latest: Program | None = None
        self.grad_matters = False
        self.reads_layout = False  # whether a member was seen to read strides and offsets
        self.layout_matters = False  # whether a forward reads the strides of its inputs
        self.traced = TracedStore()  # programs found while torch.compile traced

    def clear(self) -> None:
        self.by_key.clear()
        self.captures.clear()

    def find(self, key: Any) -> Program | None:
        """Return a program for a key whose snapshot still holds, or None."""
        return next((p for p in self.by_key.get((key, self.grad_mode()), ()) if p.holds()), None)

    def keep(self, key: Any, program: Program) -> Program:
        """Store a program, newest first; only the newest few per key are kept."""
        known = self.by_key.setdefault((key, self.grad_mode()), [])
        self.recaptures += bool(known)
        known.insert(0, program)
        del known[MAX_CHANGES:]
        return program

    def find_traced(self, mode: Any, shapes: Any, wide: Any, any_batch: bool) -> Program | None:
        return self.any_batch(mode, shapes, wide) if any_batch else self.find((mode, shapes, wide))

    def any_batch(self, mode: Any, rest: Any, wide: Any) -> Program | None:
        """Return a program valid for every batch size, with other dimensions `rest`; or None."""
        for key, grad in self.by_key:
            known, shapes, lanes = key
            if (known, tuple(s[1:] for s in shapes), lanes, grad) == (mode, rest, wide, self.grad_mode()):
                program = self.find(key)
                if isinstance(program, WideProgram) and all(g.any_batch() for g in program.captured.guards):
                    return program
        return None

    def follow(self, stands_for: list[dict[int, Any]]) -> None:
        """Update snapshots after lanes got their own Python state; drop captures with a stale snapshot."""
        for mode, known in self.captures.items():
            self.captures[mode] = [captured for captured in known if captured.own.holds()]
            for captured in self.captures[mode] if stands_for else ():
                captured.own = Snapshot().joined([captured.own.moved(lane) for lane in stands_for])
        alive = {id(captured) for known in self.captures.values() for captured in known}
        for key, programs in self.by_key.items():
            self.by_key[key] = [
                p for p in programs if not isinstance(p, WideProgram) or id(p.captured) in alive
            ]

    def grad_mode(self) -> bool:
        """Return whether to capture with gradients: yes, unless the members' code reads the gradient mode."""
        return torch.is_grad_enabled() if self.grad_matters else True

    def adopt(self, other: "ProgramCache", graphs: bool = True) -> None:
        """Copy the programs of another cache; without `graphs`, only loop programs."""
        for key, programs in other.by_key.items():
            kept = [p for p in programs if graphs or isinstance(p, LoopProgram)]
            if kept:
                self.by_key[key] = kept
        self.captures = {mode: list(known) for mode, known in other.captures.items()} if graphs else {}
        self.effects = {flags: replace(changes) for flags, changes in other.effects.items()}
        self.grad_matters, self.latest = other.grad_matters, other.latest
        self.reads_layout = other.reads_layout
        self.layout_matters = other.layout_matters

    def measure_anew(self) -> None:
        """Replace programs by untuned copies for another number of lanes; copied models share the old."""
        self.by_key = {
            key: [WideProgram(p.captured, p.graph) if isinstance(p, WideProgram) else p for p in programs]
            for key, programs in self.by_key.items()
        }
        self.latest = None
        self.traced = TracedStore()

    def build(self, key: Any, call: Call, model: Any) -> Program:
        """Build the program for `call` on the wide model `model`, and store it under `key`."""
        try:
            frozen = _tree.unkeyed_leaf(call.leaves)
            if frozen is not None:
                raise CaptureFailed(
                    f"an argument is a {type(frozen).__name__}, whose content would be a constant in a graph"
                )
            if model.uncapturable:
                raise CaptureFailed(model.uncapturable)
            captured = self._captured(key[0], call, model)
            program: Program = self._widened(captured, call, model)
        except (CaptureFailed, WidenFailed) as failure:
            self.reads_layout |= isinstance(failure, ReadsLayout)
            program = self._loop(failure, call, model)
            if isinstance(failure, HasEffects) and isinstance(program, LoopProgram):
                program.calls_left = self.effects[training_flags(model.scopes)].looped_calls
        except AlignmentError as difference:
            if call.is_sample:
                raise
            program = self._loop(difference, call, model)  # lanes that differ for this input only
        self.refuse_loops(program)
        return self.keep(key, program)

    def _loop(self, failure: Exception, call: Call, model: Any) -> LoopProgram:
        if call.is_sample:
            with _LayoutWatch() as watch:
                _check_outputs_alike(model, call)
            self.reads_layout |= watch.reads_layout
        if self.kept:
            _check_lanes_of_registered(model, failure)
        model.separate_members()
        one_object = any(p.kind == "buffer" and p.path in model.one_object for p in model.places)
        return LoopProgram(str(failure), frozenset(model.wide_states), one_object, self.reads_layout)

    def _captured(self, mode: Any, call: Call, model: Any) -> Captured:
        known = self.captures.setdefault((mode, self.grad_mode()), [])
        for captured in known:
            if captured.admits(call.member_shapes) and captured.rests_on.holds() and captured.own.holds():
                return captured
        if len(known) >= MAX_CAPTURES:
            raise CaptureFailed(
                f"{len(known)} captures were made already, for other input shapes or for values that its "
                f"Python reads, and that is the limit"
            )
        changes = Changes()
        if not model.living:
            changes = self.effects.setdefault(training_flags(model.scopes), changes)
        if changes.for_good:
            raise CaptureFailed(changes.why)
        shapes = call.member_shapes
        captured = self._exported(changes, shapes, known, call, model)
        captured.shapes = shapes
        if captured.reads_grad_mode and not self.grad_matters:
            self.grad_matters = True
            if not torch.is_grad_enabled():
                return self._captured(mode, call, model)
        stubs = {slot.path: slot.tensor for slot in slots(model.skeletons.lane(0))}
        for path in sorted(captured.writes):
            if path in stubs and overlaps_itself(stubs[path]):
                raise CaptureFailed(
                    f"its forward writes {path}, whose elements share memory (made by expand), which lanes "
                    f"would not; clone() it in the constructor"
                )
        if captured.reads_layout:
            self.layout_matters = True
            if len(call.layouts) > 1:
                raise CaptureFailed("its forward reads the strides of its inputs, which differ between lanes")
        for path in sorted(captured.writes - model.wide_states):
            if any(path.startswith(f"{outer}.") for outer in self.kept):
                continue  # the registered class holds it
            if path in model.one_object:
                raise CaptureFailed(f"{path} is one tensor shared by all lanes, and every lane writes it")
            model.promote(path)
        if any(c.path and c.path not in self.kept for c in captured.calls):
            model.separate_members()
        for graph_pass in self.passes:
            captured.graph = graph_pass(captured.graph) or captured.graph
            captured.graph.lint()
        known.append(captured)
        return captured

    def _exported(self, changes: Changes, shapes: Any, known: Any, call: Call, model: Any) -> Captured:
        try:
            if model.skeletons.separated and (path := keeps_history(model.skeletons.variants[0])):
                raise HasEffects(f"{path} keeps a tensor with a gradient history, which a graph would lose")
            how = (self.kept, free_dims(shapes, known), self.grad_mode(), model.living)
            captured = capture_members(model.skeletons, model.capture_state, call, *how)
        except HasEffects as effect:
            changes.note(str(effect))
            raise
        changes.captured = True
        return captured

    def note_change(self, key: Any, call: Call, model: Any, why: str) -> None:
        """What captures rest on has changed, and may again: the next calls run as Python."""
        changes = self.effects.setdefault(training_flags(model.scopes), Changes())
        changes.note(why)
        if changes.looped_calls > 1:
            program = self._loop(CaptureFailed(why), call, model)
            program.calls_left = changes.looped_calls
            self.refuse_loops(program)
            self.keep(key, program)

    def _widened(self, captured: Captured, call: Call, model: Any) -> WideProgram:
        probe_lanes = min(2, model.n)
        states: dict[str, Any] = {
            path: to_local(tensor.detach()[:probe_lanes] if path in model.wide_states else tensor.detach())
            for path, tensor in model.tensors().items()
        }
        # Copies, so that probing does not change their state.
        states[MEMBERS] = tuple(map(model.skeletons.copied, model.skeletons.each()[:probe_lanes]))
        for path in self.kept:
            module = model.get_submodule(path)
            states[path] = model.registered.probe(path, probe_lanes, module.training)
        pairs = zip(call.tensors, call.wide, strict=True)
        inputs = [to_local(t.detach()[:probe_lanes] if wide else t.detach()) for t, wide in pairs]
        layout = functools.partial(model.registered.layout, model) if self.kept else None
        probe = Probe(probe_lanes, states, inputs, layout)
        graph = widen(captured, frozenset(model.wide_states), call.wide, probe, self.config.strategies)
        return WideProgram(captured, graph)

    def refuse_loops(self, program: Program) -> None:
        if self.config.fallback_passthrough:
            return
        for row in program.rows:
            if row.how == "loop":
                raise UnsupportedError(
                    f"{row.path or 'the model'}: {row.op} would run per lane ({row.why}), and "
                    f"fallback_passthrough=False forbids it; register a wide module for it with "
                    f"wide_compiler.register, or allow it with fallback_passthrough=True"
                )


def capture_members(
    skeletons: Skeletons,
    lane_state: Callable[[int, str], Tensor],
    call: Call,
    kept: dict[str, str],
    dynamic: list[set[int]],
    grad: bool,
    living: Sequence[nn.Module] | None = None,
) -> Captured:
    """Capture each variant of the members on its inputs, and combine the graphs into one.

    `living` are the original modules if they stay in use; the capture then depends on their state too.
    """
    variants: list[Captured] = []
    first: tuple[Captured, nn.Module] | None = None
    for variant in range(len(skeletons.variants)):
        lane = skeletons.variant_of_lane.index(variant)
        member = materialize(
            skeletons.variants[variant],
            lambda path, i=lane: lane_state(i, path).clone(),  # type: ignore[misc]
            skeletons.shared,
        )
        leaves, spec = _tree.flatten(call.for_lane(0))
        lanes = [i for i, v in enumerate(skeletons.variant_of_lane) if v == variant] if living else [lane]
        # Original modules are observed one by one, since attributes may differ.
        seen = [
            observe(living[i] if living else skeletons.variants[variant], call, grad, skeletons.shared, state)
            for i, state in ((i, None if living else functools.partial(lane_state, i)) for i in lanes)
        ]
        captured = None if first is None else derive_capture(*first, member, leaves, seen[0])
        if captured is None:
            captured = export_member(
                member, leaves, spec, kept, dynamic, seen[0], grad, first[0] if first else None
            )
        first = first or (captured, member)
        captured.rests_on = Snapshot().joined([one.check().outside() for one in seen])
        inside = Snapshot().joined([one.inside() for one in seen])
        if living:
            captured.rests_on = captured.rests_on.joined([inside])
        else:
            # Train flags are excluded: they are part of the program's key.
            captured.own = inside.only(lambda read: read.name != "training")
        variants.append(captured)
    return zip_variants(variants, skeletons.variant_of_lane)


def observe(
    member: nn.Module, call: Call, grad: bool, shared: list[Any], tensor_of: Callable[[str], Tensor] | None
) -> Observation:
    """Call `observe_member`; any error becomes `CaptureFailed`, since the fallback loop raises it again."""
    try:
        return observe_member(member, *call.for_lane(0), grad, shared, tensor_of)
    except Exception as error:
        raise CaptureFailed(f"its forward raises {one_line(error)}") from error


def _check_lanes_of_registered(model: Any, why: Exception) -> None:
    """Raise `InputError` if registered modules cannot be split into lanes, as a loop requires."""
    try:
        model.stacked_tensors()
    except InputError as error:
        raise InputError(f"the model runs as a loop over its members ({why}), but {error}") from error


class _LayoutWatch(TorchDispatchMode):
    """Records whether ops that run under it read strides or offsets."""

    reads_layout = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.reads_layout |= reads_layout(func)
        return func(*args, **(kwargs or {}))


def _check_outputs_alike(model: Any, call: Call) -> None:
    """Raise `AlignmentError` at compile time if variants give outputs that cannot be stacked."""
    variants = model.skeletons.variant_of_lane
    leaders = sorted({variants.index(v) for v in set(variants)})
    shapes = []
    with torch.enable_grad(), torch.random.fork_rng():
        for lane in leaders:
            args, kwargs = call.own_for_lane(0)
            member = model.example_member(lane)
            output = Observer([member]).run(functools.partial(member, *args, **kwargs))
            leaves = _tree.flatten(output)[0]
            shapes.append([tuple(leaf.shape) for leaf in leaves if isinstance(leaf, Tensor)])
    for lane, found in zip(leaders, shapes, strict=True):
        if found != shapes[0]:
            raise AlignmentError(
                f"lane {lane} gives outputs of shape {found}, lane 0 gives {shapes[0]}; "
                f"they cannot be stacked: return one shape in all lanes (padded, say)"
            )


def free_dims(shapes: list[tuple[int, ...]], known: list[Captured]) -> list[set[int]]:
    """Return the dimensions to make dynamic: the first of each tensor, and those seen with two sizes.

    Dynamic dimensions make captures slow and add guards, so others stay static until a second size appears.
    """
    free = [{0} if shape else set() for shape in shapes]
    for captured in known:
        for dims, now, before in zip(free, shapes, captured.shapes, strict=True):
            dims |= {d for d, (a, b) in enumerate(zip(now, before, strict=False)) if a != b}
    return free


def training_flags(scopes: list[nn.Module]) -> tuple[bool, ...]:
    return tuple([scope.training for scope in scopes])
