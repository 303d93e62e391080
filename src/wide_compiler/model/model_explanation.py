"""explain() and summary(): how each node of the members' graph runs."""

import copy
import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from ..explain import Explanation
from ..widen import NodeRow
from .chooser import Tuned
from .program import Program, WideProgram


@dataclass
class ModelExplanation(Explanation):
    """How each node of the members' graph runs, one row per node.

    `way`: all lanes at once ('wide'), some at a time ('chunks of 8') or one by one ('loop'). `ms`: the times
    measured for that decision.
    """

    n: int = 0
    tuned: Tuned | None = None  # the last call's plan, with the times of all candidates

    @classmethod
    def of(cls, model: Any, program: Program, measure: bool) -> "ModelExplanation":
        rows = [replace(row) for row in program.rows]
        if measure and isinstance(program, WideProgram):
            _measure(model, program, rows)
        tuned = program.latest if isinstance(program, WideProgram) else None
        note = "" if tuned is None else f"runs as: {tuned}"
        name, recaptures = f"{model.n} lanes", model.programs.recaptures
        return cls(rows, program.why, name, note, recaptures, n=model.n, tuned=tuned)

    @property
    def way(self) -> str:
        if self.why:
            return "loop"
        return self.tuned.plan.way if self.tuned else "wide"

    @property
    def ms(self) -> dict[str, float]:
        return self.tuned.ms if self.tuned else {}

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of nodes per kind of execution."""
        return dict.fromkeys(("rule", "shared", "vmap", "loop"), 0) | super().counts


class _Clock(fx.Interpreter):
    """Runs the lane graph node by node and records the time of each."""

    def __init__(self, module: fx.GraphModule, synchronize: bool):
        super().__init__(module)
        self.seconds: dict[str, float] = {}
        self.synchronize = synchronize

    def run_node(self, node: fx.Node) -> Any:
        start = time.perf_counter()
        result = super().run_node(node)
        if self.synchronize:
            torch.cuda.synchronize()
        self.seconds[node.name] = time.perf_counter() - start
        return result


def _measure(model: Any, program: WideProgram, rows: list[NodeRow], repeats: int = 3) -> None:
    graph = program.graph if program.latest is None else program.latest.graph
    call = model.sample_call(graph.wide_inputs)
    states = {k: v.clone() if k in graph.writes else v for k, v in model.states().items()}
    states |= {path: copy.deepcopy(states[path]) for path in model.registered.builders}  # has buffers
    arguments = graph.arguments(states, call.tensors, model.n, None, model.seeds.seeds)
    on_gpu = any(t.is_cuda for t in call.tensors)
    best: dict[str, float] = {}
    with torch.no_grad(), torch.random.fork_rng(devices=[] if not on_gpu else None):
        for _ in range(repeats):
            clock = _Clock(graph.module, on_gpu)
            clock.run(*arguments)
            for name, seconds in clock.seconds.items():
                best[name] = min(seconds, best.get(name, seconds))
    for row in rows:
        row.ms = sum(best.get(name, 0.0) for name in row.nodes) * 1e3


def summarize(model: Any) -> str:
    member = model.skeletons.lane(0)
    per_lane = sum(p.numel() for p in member.parameters())
    held = sum(p.numel() for p in model.parameters())
    program = model.programs.latest
    lines = [f"WideModel: {model.n} lanes of {type(member).__name__}"]
    lines.append(f"  parameters: {per_lane:,} a lane, {held:,} held")
    shared = [p for p in model.places if p.path not in model.wide_states]
    if shared:
        numbers = sum(p.tensor.numel() for p in shared)
        lines.append(f"  shared by all lanes: {len(shared)} tensors, {numbers:,} numbers")
    if program is None:
        lines.append("  runs: not built yet in this mode")
    elif isinstance(program, WideProgram):
        rows = program.rows
        own = sum(row.wide for row in rows)
        how = f", {program.latest.plan.way} ({program.latest.why})" if program.latest else ""
        lines.append(f"  runs: one lane graph, {own} of {len(rows)} nodes by own rules{how}")
    else:
        lines.append(f"  runs: a loop over lanes, because {program.why}")
    lines.append("  tensors:")
    for place in model.places:
        note = "" if place.path in model.wide_states else "  (shared)"
        lines.append(f"    {place.path:<32} {tuple(place.tensor.shape)}{note}")
    return "\n".join(lines)
