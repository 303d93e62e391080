"""Strategies: how a site runs. One is selected per plan; among its rungs, measured cost decides."""

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
    """Runs the items of a site. Returns the values in order, or a `Miss`; then the original code runs."""

    name = "strategy"
    rungs: Sequence[Rung] = ()  # the candidates; the fastest is used

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
    """Several items at a time in threads."""

    name = "parallel"
    rungs = PARALLEL


class AdaptiveStrategy(ParallelStrategy):
    """Vectorised and parallel rungs are both possible; the fastest measured one is used."""

    name = "adaptive"
    rungs = (*VECTORIZED, *PARALLEL)


STRATEGIES = (SequentialStrategy, VectorizedStrategy, ParallelStrategy, AdaptiveStrategy)


class StrategySelector:
    """Selects the strategy of a site from its `ParallelismInfo`."""

    def select_strategy(
        self, parallelism_map: "Mapping[str, ParallelismInfo]", ir_graph: IRGraph
    ) -> ExecutionStrategy:
        """Return the strategy for the graph of one site, from what is possible.

        Measured cost selects the rung later.

        Raises:
            ArgumentError: `parallelism_map` names a node that the graph does not have.
        """
        missing = [name for name in parallelism_map if name not in ir_graph.nodes]
        if missing:
            nodes = list(ir_graph.nodes)
            raise ArgumentError(f"parallelism_map has {missing[0]!r}, which is no node of the graph: {nodes}")
        infos = parallelism_map.values()
        vectorized = any(info.can_vmap for info in infos)
        if vectorized and any(info.can_pmap for info in infos):
            return AdaptiveStrategy()
        if vectorized:
            return VectorizedStrategy()
        parallel = any(info.can_pmap or info.can_parallelize for info in infos)
        return ParallelStrategy() if parallel else SequentialStrategy()
