"""Plans of how a call runs, and the builder that makes them runnable."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from ..capture import Captured
from ..config import WideConfig
from ..widen import LaneGraph
from ..widen.classify import draws
from ..widen.graph_regions import with_autocast_regions, with_checkpoints
from .strategy_sites import channels_last_weights, sites, with_strategies
from .ways import Chunks, MemberLoop, Way, Whole

CHUNKS = "chunks of "
# Strategies skipped, by whether gradients are needed: these differ only in their backward.
UNTRIED: dict[bool, tuple[str, ...]] = {False: ("implicit_forward",), True: ()}


@dataclass
class CallPlan:
    """How a call runs, as plain values that can be stored on disk.

    `taken` has only the strategies that differ from the lane graph's own.
    """

    way: str = "wide"  # 'wide', 'chunks of 8' or 'loop'
    taken: dict[str, str] = field(default_factory=dict)  # site -> strategy
    compiled: bool = False

    @classmethod
    def read(cls, answer: Any) -> "CallPlan":
        """Read what was stored of `dataclasses.asdict`. Raise if it is not valid."""
        plan = cls(str(answer["way"]), dict(answer["taken"]), bool(answer["compiled"]))
        if plan.way not in ("wide", "loop"):
            int(plan.way.removeprefix(CHUNKS))
        return plan

    def __str__(self) -> str:
        parts = [self.way, *(f"{site} as {strategy}" for site, strategy in sorted(self.taken.items()))]
        return ", ".join([*parts, "compiled"] if self.compiled else parts)


@dataclass
class BuiltPlan:
    """A plan that can be run."""

    way: Way
    graph: LaneGraph
    channels_last: list[int]  # positions of arguments that run faster with channels last


class PlanBuilder:
    """Builds plans for one lane graph and number of lanes, with or without gradients."""

    def __init__(
        self, captured: Captured, graph: LaneGraph, n: int, config: WideConfig, cuda: bool, gradients: bool
    ):
        self.captured, self.graph, self.n = captured, graph, n
        self.config, self.cuda, self.gradients = config, cuda, gradients
        self.sites = sites(graph, cuda)

    def build(self, plan: CallPlan) -> BuiltPlan:
        """Build a plan. Raise KeyError or ValueError if this graph cannot run it."""
        graph = self.graph
        if plan.taken or self.config.strategies:
            graph = with_strategies(self.graph, plan.taken, self.gradients)
        if plan.way == "loop":
            loop = MemberLoop(self.captured, graph, self.n)
            loop.runner = self._runner(loop.module, plan.compiled)
            return BuiltPlan(loop, graph, [])
        runner = self._runner(graph.module, plan.compiled)
        wanting = channels_last_weights(graph) if self.cuda else set()
        places = [i for i, (kind, key) in enumerate(graph.feeds) if kind == "state" and key in wanting]
        if plan.way == "wide":
            return BuiltPlan(Whole(runner), graph, places)
        return BuiltPlan(Chunks(graph, runner, self.n, int(plan.way.removeprefix(CHUNKS))), graph, places)

    def alternatives(self) -> tuple[list[CallPlan], list[CallPlan]]:
        """Return plans with each strategy wherever possible, and plans with each at a single site."""
        everywhere: dict[str, dict[str, str]] = {}
        alone = []
        for site, choice in self.sites.items():
            for strategy in choice.choices:
                if strategy != choice and strategy not in UNTRIED[self.gradients]:
                    everywhere.setdefault(strategy, {})[site] = strategy
                    alone.append(CallPlan(taken={site: strategy}))
        return [CallPlan(taken=taken) for taken in everywhere.values()], alone

    def chunkings(self) -> list[CallPlan]:
        sizes = {-(-self.n // parts) for parts in (2, 4, 8, 16) if self.n // parts >= 2}
        return [CallPlan(f"{CHUNKS}{size}") for size in sorted(sizes, reverse=True)]

    def _runner(self, module: fx.GraphModule, compiled: bool) -> Any:
        if self.gradients and self.captured.checkpointed:
            random = any(map(draws, self.captured.graph.nodes))
            module = with_checkpoints(module, self.captured.checkpointed, random)
        return self._compile(module) if compiled else module.forward

    def _compile(self, module: fx.GraphModule) -> Any:
        mode = self.config.compile_mode
        if self.cuda:  # `Replay` records CUDA graphs itself
            own = {"reduce-overhead": "default", "max-autotune": "max-autotune-no-cudagraphs"}
            mode = own.get(mode, mode)
        # Every shape has its own program, so no dimension needs to be dynamic.
        own_mode, backend = None if mode == "default" else mode, self.config.backend
        return torch.compile(with_autocast_regions(module), mode=own_mode, backend=backend, dynamic=False)


def channels_last(weight: Tensor) -> Tensor:
    """Return the weight with axis 2, the channels of `[N, O, C, *kernel]`, last in memory."""
    return weight.movedim(2, -1).contiguous().movedim(-1, 2)
