"""Programs for modules that keep their tensors: a lane graph, or the reason for the loop."""

from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from ..capture.cleanup import written_placeholders
from ..errors import AlignmentError
from ..lane_values import LaneValues
from ..model.program import Call, WideProgram
from ..model.program_cache import ProgramCache
from ..widen import NodeRow


@dataclass
class InSequence:
    """No lane graph: the modules run one after another."""

    why: str
    # Whether only lanes with different Python prevent a lane graph, so that smaller groups may have one.
    by_variant: bool = False
    rows: list[NodeRow] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rows = [NodeRow("", "the whole module", "loop", why=self.why)]

    def holds(self) -> bool:
        """Always valid: the modules' Python reads its current state."""
        return True


class ModulePrograms(ProgramCache):
    """Builds programs as for a wide model, but with `InSequence` instead of a fallback loop."""

    parted = False  # whether the last capture failed because lanes compute different things

    def build(self, key: Any, call: Call, model: Any) -> Any:
        why = unfusable(model.living)
        if why:
            return self.keep(key, InSequence(why))  # type: ignore[arg-type]
        program: Any = super().build(key, call, model)
        if isinstance(program, WideProgram):
            problem = _cannot_be_shared(program, model)
            if problem:
                program = self.by_key[key][0] = InSequence(problem)  # type: ignore[call-overload]
        return program

    def _captured(self, mode: Any, call: Call, model: Any) -> Any:
        self.parted = False
        try:
            return super()._captured(mode, call, model)
        except AlignmentError:
            self.parted = True
            raise

    def _loop(self, why: str, call: Call, model: Any) -> Any:
        return InSequence(why, by_variant=self.parted)


def unfusable(modules: list[nn.Module]) -> str:
    """Why modules cannot run by a graph at all, such as hooks; '' if they can."""
    for path, module in ((p, m) for root in modules for p, m in root.named_modules()):
        where = path or type(module).__name__
        if module._backward_hooks or module._backward_pre_hooks:
            return f"{where} has a backward hook, which a graph would lose"
        for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values()):
            # Hooks of torch's own parametrisations only compute weights.
            if getattr(hook, "__module__", type(hook).__module__).split(".")[0] != "torch":
                return f"{where} has a forward hook, which a graph would lose"
    return ""


def _cannot_be_shared(program: WideProgram, model: Any) -> str:
    """Why the order of the towers matters, such as a write that another tower reads; '' if it does not."""
    inputs = written_placeholders(program.captured.graph) & set(program.captured.inputs)
    if inputs:
        return "its forward writes into its input, which the next one would see"
    for path in program.graph.writes:
        places = [tensor.data_ptr() for tensor in model.by_path[path].tensors if tensor.numel()]
        if len(set(places)) < len(places):
            return f"{path} is one buffer for several of them and each writes it, in turn"
    if any(call.path for call in program.captured.calls):
        return "a part of it can only run as Python, which its own forward does best"
    return ""


def some_lanes(program: WideProgram, lanes: tuple[int, ...], n: int) -> WideProgram:
    """The program restricted to some of its lanes: per-lane constants are selected."""
    captured, graph = program.captured, program.graph
    per_lane = graph.lane_data or any(isinstance(leaf, LaneValues) for leaf in captured.out_statics)
    if lanes == tuple(range(n)) or not per_lane:
        return program
    scalars = {name: tuple(v[i] for i in lanes) for name, v in captured.scalars.items()}
    constants = {name: tensor[list(lanes)] for name, tensor in captured.lane_constants.items()}
    data = {
        key: v[list(lanes)] if isinstance(v, Tensor) else LaneValues(v[i] for i in lanes)
        for key, v in graph.lane_data.items()
    }
    statics = [
        LaneValues(leaf[i] for i in lanes) if isinstance(leaf, LaneValues) else leaf
        for leaf in captured.out_statics
    ]
    captured = replace(captured, scalars=scalars, lane_constants=constants, out_statics=statics)
    return WideProgram(captured, replace(graph, lane_data=data))
