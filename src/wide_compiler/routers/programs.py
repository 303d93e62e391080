"""Programs for modules that keep their tensors: a lane graph, or the reason for the loop."""

from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from ..capture import CaptureFailed
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

    def _widened(self, captured: Any, call: Call, model: Any) -> WideProgram:
        program = super()._widened(captured, call, model)
        problem = _cannot_be_shared(program, model)
        if problem:
            raise CaptureFailed(problem)
        return program

    def _loop(self, failure: Exception, call: Call, model: Any) -> Any:
        return InSequence(str(failure), by_variant=isinstance(failure, AlignmentError))


def _cannot_be_shared(program: WideProgram, model: Any) -> str:
    """Return why the towers' order matters, such as a write that another tower reads; '' if it does not."""
    inputs = written_placeholders(program.captured.graph) & set(program.captured.inputs)
    if inputs:
        return "its forward writes into its input, which the next module reads"
    for path in program.graph.writes:
        places = [tensor.data_ptr() for tensor in model.by_path[path].tensors if tensor.numel()]
        if len(set(places)) < len(places):
            return f"{path} is one buffer shared by several modules, and each of them writes it"
    if any(call.path for call in program.captured.calls):
        return "a part of it can only run as Python"
    return ""


def some_lanes(program: WideProgram, lanes: tuple[int, ...], n: int) -> WideProgram:
    """Return the program restricted to some of its lanes: per-lane constants are selected."""
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
