"""Strategies: how a site runs. One is selected for each plan; within it, measured cost decides."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError
from .choice import choose
from .ir import IRGraph
from .rungs import PARALLEL, VECTORIZED, Rung
from .work import Miss, Work

if TYPE_CHECKING:
    from .parallelism import ParallelismInfo


class ExecutionStrategy:
    """Runs the items of a site. Gives the values in order, or a `Miss`: then the text runs as written."""

    name = "strategy"
    rungs: Sequence[Rung] = ()  # that compete for the items

    def run(self, work: Work) -> list[Any] | Miss:
        if not self.rungs:
            raise NotImplementedError(f"{type(self).__name__} must define run(work)")
        return choose(work, self.rungs)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class SequentialStrategy(ExecutionStrategy):
    """The plain loop."""

    name = "sequential"

    def run(self, work: Work) -> list[Any] | Miss:
        return Miss()


class VectorizedStrategy(ExecutionStrategy):
    """One call for all items: the wide model, `torch.func.vmap`, or NumPy with a lane axis."""

    name = "vectorized"
    rungs = VECTORIZED


class ParallelStrategy(ExecutionStrategy):
    """Several items at a time, in threads: what waits, and what computes where that gains."""

    name = "parallel"
    rungs = PARALLEL


class AdaptiveStrategy(ParallelStrategy):
    """Both are possible: all rungs compete, and the cheapest so far is taken."""

    name = "adaptive"
    rungs = (*VECTORIZED, *PARALLEL)


STRATEGIES = (SequentialStrategy, VectorizedStrategy, ParallelStrategy, AdaptiveStrategy)


class StrategySelector:
    """Selects the strategy of a site from what its body allows."""

    def select_strategy(
        self, parallelism_map: "Mapping[str, ParallelismInfo]", ir_graph: IRGraph
    ) -> ExecutionStrategy:
        """One strategy for the graph of one site: what is possible decides, measured cost does the rest."""
        missing = [name for name in parallelism_map if name not in ir_graph.nodes]
        if missing:
            raise ArgumentError(f"the graph has no node {missing[0]!r}, of which parallelism_map speaks")
        infos = parallelism_map.values()
        vectorized = any(info.can_vmap for info in infos)
        if vectorized and any(info.can_pmap for info in infos):
            return AdaptiveStrategy()
        if vectorized:
            return VectorizedStrategy()
        parallel = any(info.can_pmap or info.can_parallelize for info in infos)
        return ParallelStrategy() if parallel else SequentialStrategy()
