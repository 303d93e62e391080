"""One program per thing that gets baked into a capture: modes, structures, dtypes, devices, shapes."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .. import _tree
from ..capture import Captured, CaptureFailed, export_member, materialize, zip_variants
from ..config import WideConfig
from ..errors import AlignmentError, UnsupportedError
from ..widen import MEMBERS, Probe, WidenFailed, widen
from .members import Skeletons
from .numbered import Numbered
from .program import Call, LoopProgram, Program, WideProgram

# Shapes that each need a capture of their own; beyond that the loop is the better answer.
MAX_CAPTURES = 24


class Programs:
    """Finds, or builds, the program for a call. Holds no weights: states come in with every build."""

    def __init__(self, config: WideConfig, kept: dict[str, str], passes: tuple[Any, ...] = ()):
        self.config = config
        self.passes = passes  # the user's transformations of the captured graph
        self.kept = kept  # registered submodules, kept whole in the graph: path -> why
        self.by_key: dict[Any, Program] = {}
        self.captures: dict[Any, list[Captured]] = {}
        self.latest: Program | None = None
        self.grad_matters = False
        self.layout_matters = False  # does a forward ask how its inputs lie in memory?
        self.traced = Numbered()  # programs found while torch.compile was tracing

    def clear(self) -> None:
        self.by_key.clear()
        self.captures.clear()

    def find(self, key: Any) -> Program | None:
        return self.by_key.get(key)

    def find_traced(self, mode: Any, shapes: Any, wide: Any, any_batch: bool) -> Program | None:
        return self.any_batch(mode, shapes, wide) if any_batch else self.find((mode, shapes, wide))

    def any_batch(self, mode: Any, rest: Any, wide: Any) -> Program | None:
        """A program that is true for every batch size, its other dims being `rest`."""
        for (known, shapes, lanes), program in self.by_key.items():
            same = (known, tuple(shape[1:] for shape in shapes), lanes) == (mode, rest, wide)
            if (
                same
                and isinstance(program, WideProgram)
                and all(g.any_batch() for g in program.captured.guards)
            ):
                return program
        return None

    def grad_mode(self) -> bool:
        """Captures are made with gradients on, unless the members' own code asks whether they are."""
        return torch.is_grad_enabled() if self.grad_matters else True

    def adopt(self, other: "Programs") -> None:
        """Take over what another cache has built."""
        self.by_key = dict(other.by_key)
        self.captures = {mode: list(known) for mode, known in other.captures.items()}
        self.grad_matters, self.latest = other.grad_matters, other.latest
        self.layout_matters = other.layout_matters

    def measure_anew(self) -> None:
        """The same graphs for another number of lanes; copies of the model may share the old programs."""
        self.by_key = {
            key: WideProgram(program.captured, program.graph) if isinstance(program, WideProgram) else program
            for key, program in self.by_key.items()
        }
        self.latest = None
        self.traced = Numbered()

    def build(self, key: Any, call: Call, model: Any) -> Program:
        """Build the program for `call` on the wide model `model`, and keep it under `key`."""
        try:
            frozen = _tree.unkeyed_leaf(call.leaves)
            if frozen is not None:
                raise CaptureFailed(
                    f"an argument is a {type(frozen).__name__}, whose content a graph would freeze"
                )
            if model.gradient_hooks:
                raise CaptureFailed(f"{model.gradient_hooks} has a backward hook, which a graph would lose")
            captured = self._captured(key[0], call, model)
            program: Program = self._widened(captured, call, model)
        except (CaptureFailed, WidenFailed) as failure:
            program = self._loop(str(failure), call, model)
        except AlignmentError as difference:
            if call.is_sample:
                raise
            program = self._loop(str(difference), call, model)  # lanes that part at this input only
        self.refuse_loops(program)
        self.by_key[key] = program
        return program

    def _loop(self, why: str, call: Call, model: Any) -> LoopProgram:
        if call.is_sample:
            _check_outputs_alike(model, call)
        model.separate_members()
        one_object = any(p.kind == "buffer" and p.path in model.one_object for p in model.places)
        return LoopProgram(why, frozenset(model.wide_states), one_object)

    def _captured(self, mode: Any, call: Call, model: Any) -> Captured:
        known = self.captures.setdefault(mode, [])
        for captured in known:
            if captured.admits(call.member_shapes):
                return captured
        if len(known) >= MAX_CAPTURES:
            raise CaptureFailed(
                f"{len(known)} input shapes already needed a capture each; this one runs as a loop"
            )
        shapes = call.member_shapes
        captured = capture_members(
            *(model.skeletons, model.capture_state, call, self.kept),
            *(free_dims(shapes, known), self.grad_mode()),
        )
        captured.shapes = shapes
        if captured.reads_grad_mode and not self.grad_matters:
            self.grad_matters = True
            if not torch.is_grad_enabled():
                return self._captured(mode, call, model)
        if captured.reads_layout:
            self.layout_matters = True
            if len(call.layouts) > 1:
                raise CaptureFailed(
                    "its forward asks how inputs lie in memory, and those of lanes lie differently"
                )
        for path in sorted(captured.writes - model.wide_states):
            if path in model.one_object:
                raise CaptureFailed(f"{path} is one tensor in all lanes and every lane writes it, in turn")
            model.promote(path)
        if any(c.path and c.path not in self.kept for c in captured.calls):
            model.separate_members()
        for graph_pass in self.passes:
            captured.graph = graph_pass(captured.graph) or captured.graph
            captured.graph.lint()
        known.append(captured)
        return captured

    def _widened(self, captured: Captured, call: Call, model: Any) -> WideProgram:
        probe_lanes = min(2, model.n)
        states: dict[str, Any] = {
            path: tensor.detach()[:probe_lanes] if path in model.wide_states else tensor.detach()
            for path, tensor in model.tensors().items()
        }
        states[MEMBERS] = copy.deepcopy(
            model.skeletons.each()[:probe_lanes]
        )  # trying must not move their state
        for path in self.kept:
            module = model.get_submodule(path)
            states[path] = model.registered.probe(path, probe_lanes, model._device(), module.training)
        inputs = [
            t.detach()[:probe_lanes] if w else t.detach()
            for t, w in zip(call.tensors, call.wide, strict=True)
        ]
        probe = Probe(probe_lanes, states, inputs)
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
) -> Captured:
    """Capture each variant of the members on its own inputs; zip the graphs into one."""
    variants = []
    for variant in range(len(skeletons.variants)):
        lane = skeletons.variant_of_lane.index(variant)
        member = materialize(skeletons.variants[variant], lambda path, i=lane: lane_state(i, path).clone())  # type: ignore[misc]
        leaves, spec = _tree.flatten(call.for_lane(0))
        variants.append(export_member(member, leaves, spec, kept, dynamic, grad))
    return zip_variants(variants, skeletons.variant_of_lane)


def _check_outputs_alike(model: Any, call: Call) -> None:
    """Lanes whose Python differs may give outputs that cannot be stacked: say so when compiling."""
    variants = model.skeletons.variant_of_lane
    leaders = sorted({variants.index(v) for v in set(variants)})
    shapes = []
    with torch.enable_grad(), torch.random.fork_rng():
        for lane in leaders:
            args, kwargs = call.own_for_lane(0)
            leaves = _tree.flatten(model.example_member(lane)(*args, **kwargs))[0]
            shapes.append([tuple(leaf.shape) for leaf in leaves if isinstance(leaf, Tensor)])
    for lane, found in zip(leaders, shapes, strict=True):
        if found != shapes[0]:
            raise AlignmentError(
                f"lane {lane} gives outputs of shape {found}, lane 0 gives {shapes[0]}; "
                f"they cannot be stacked"
            )


def free_dims(shapes: list[tuple[int, ...]], known: list[Captured]) -> list[set[int]]:
    """The dims to leave free: the first of each tensor, and whichever have been seen to vary.

    Free dims make captures slow and full of conditions, so a dim is freed when a second size of it comes.
    """
    free = [{0} if shape else set() for shape in shapes]
    for captured in known:
        for dims, now, before in zip(free, shapes, captured.shapes, strict=True):
            dims |= {d for d, (a, b) in enumerate(zip(now, before, strict=False)) if a != b}
    return free


def training_flags(scopes: list[nn.Module]) -> tuple[bool, ...]:
    return tuple([scope.training for scope in scopes])
