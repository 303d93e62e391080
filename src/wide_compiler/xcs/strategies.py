"""Rungs: ways to run all items of a site, from one vectorised call to threads. Strategies: sets of rungs.

One strategy is selected per plan; among its rungs, measured cost decides.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn

from ..errors import ArgumentError
from .choice import choose
from .ir import IRGraph
from .lanes import run as numpy_lanes
from .modules import group, torch_vmap
from .parallel import overlap, threads
from .proof.effects import Effect
from .proof.kinds import CONSTANTS
from .work import Miss, Work, closure_values

if TYPE_CHECKING:
    from .parallelism import ParallelismInfo

ANALYSIS = 5e-4  # approximate seconds of an analysis
# Seconds per item in the plain loop, below which conversion to NumPy costs more than it saves.
SHORT, SHORT_NUMBERS = 4e-7, 4e-6


@dataclass
class Rung:
    """One way to run all items of a site."""

    name: str
    applies: Callable[[Work], bool]  # whether it is proven to be possible
    run: Callable[[Work], list[Any]]  # the values of all items in order; raises `Bail` if it cannot
    price: float  # approximate seconds of a first trial
    least: float = 0.0  # seconds of a plain loop, below which it is not tried
    least_item: Callable[[Work], float] = lambda work: 0.0  # the same for one item
    fewest: int = 8  # minimum number of items
    replayable: bool = True  # whether items may run twice, so that results can be compared
    splits: bool = True  # whether it can run a part of the items


def shortest(columns: Any, functions: dict[str, Any]) -> float:
    """Return the seconds per item, below which lanes do not pay; higher for plain Python numbers."""
    seen = [column[0] for column in columns if len(column)]
    if not all(type(first) in CONSTANTS for first in seen):
        return SHORT
    for function in functions.values():
        named = (function.__globals__.get(name) for name in function.__code__.co_names)
        if any(value is np or type(value) is np.ndarray for value in (*named, *closure_values(function))):
            return SHORT
    return SHORT_NUMBERS


def least_price(columns: Any) -> float:
    """Return the seconds of an analysis; of modules, which one rung takes, those of its first trial."""
    of_modules = any(isinstance(column[0], nn.Module) for column in columns if len(column))
    return group.PRICE if of_modules else ANALYSIS


def _vectorized(able: Callable[[Work], bool]) -> Callable[[Work], bool]:
    """Return `able`, restricted to bodies that can be vectorised and have no `try` to catch `Bail`."""
    return lambda work: work.plan.info.can_vmap and not work.plan.tries and able(work)


def _no_torch(work: Work) -> bool:
    return not any(isinstance(column[0], (Tensor, nn.Module)) for column in work.items.columns)


def _wait(work: Work) -> bool:
    waits = work.plan.effect is Effect.IO and work.plan.info.can_parallelize
    return waits and threads.usable(work.site.config.max_workers)


# In this order: distinct modules of one architecture; one PyTorch function or module over tensors; NumPy over
# arrays or numbers of one shape.
WIDE_MODELS = Rung(
    group.NAME, _vectorized(group.able), group.widened, group.PRICE, 1e-4, fewest=2, splits=False
)
TORCH_VMAP = Rung("torch vmap", _vectorized(torch_vmap.able), torch_vmap.mapped, 1e-3, 2e-4)
NUMPY_LANES = Rung(
    "numpy lanes", _vectorized(_no_torch), lambda work: numpy_lanes.vectorized(work),
    5e-4, 3e-5, lambda work: shortest(work.items.columns, work.functions),
)  # fmt: skip
# Items that wait run unchanged in threads.
THREADS = Rung(
    "threads", _wait, overlap.overlapped, 0.0, least_item=lambda work: threads.CHEAP / 4,
    fewest=2, replayable=False,
)  # fmt: skip

VECTORIZED: tuple[Rung, ...] = (WIDE_MODELS, TORCH_VMAP, NUMPY_LANES)
PARALLEL: tuple[Rung, ...] = (THREADS,)


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
