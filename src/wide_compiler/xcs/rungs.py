"""The rungs of the ladder: ways to run all items of a site, from one wide call down to threads."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .costs import SHORT
from .lanes import run as numpy_lanes
from .modules import group, torch_vmap
from .parallel import computing, overlap, threads
from .proof.effects import Effect
from .work import Miss, Work

AT_ONCE = 2e-2  # a loop that takes longer is tried on its first call, at a price that is small beside that


@dataclass
class Rung:
    """One way.

    Attributes:
        applies: is it proven to be possible?
        worth_a_try: may something be gained, where the plain loop takes so many seconds?
        run: the values of all items in order. Raises `Bail`.
        replayable: items may run twice, so they are compared with the plain loop.
        few_items: may pay for two items already.
        splits: can run some of the items alone.
    """

    name: str
    applies: Callable[[Work], bool]
    worth_a_try: Callable[[Work, float], bool]
    run: Callable[[Work], list[Any] | Miss]
    replayable: bool = True
    few_items: bool = False
    splits: bool = True


def _vectorized(able: Callable[[Work], bool]) -> Callable[[Work], bool]:
    """All items in one call. What cannot go on that way raises `Bail`, which the body must not swallow."""
    return lambda work: work.plan.info.can_vmap and not work.plan.texts.tries and able(work)


def _lanes_pay(work: Work, plain_seconds: float) -> bool:
    costs = work.plan.costs
    if costs.plain_item < SHORT:
        return False
    if costs.of("numpy lanes").signatures:
        return plain_seconds > 3e-5
    gained = plain_seconds > AT_ONCE or (plain_seconds > 5e-5 and costs.spent > 5e-3)
    return gained and costs.plain_item < 3e-4


def _vmap_pays(work: Work, plain_seconds: float) -> bool:
    costs = work.plan.costs
    if costs.of("torch vmap").signatures:
        return plain_seconds > 2e-4
    return plain_seconds > AT_ONCE or (plain_seconds > 4e-4 and costs.spent > 1e-2)


def _threads_apply(work: Work) -> bool:
    plan = work.plan
    if plan.effect is Effect.PURE:
        return plan.info.can_pmap and computing.able(work)
    return plan.info.can_parallelize and threads.usable(work.site.config.max_workers)


def _threads_pay(work: Work, plain_seconds: float) -> bool:
    if work.plan.effect is Effect.PURE:
        return computing.pays(work)
    costs = work.plan.costs
    return costs.idle_item > max(threads.CHEAP / 4, 0.5 * costs.plain_item)


def _in_threads(work: Work) -> list[Any]:
    return computing.computed(work) if work.plan.effect is Effect.PURE else overlap.overlapped(work)


# Distinct modules of one architecture; one function or module of PyTorch over tensors; NumPy over arrays or
# numbers of one shape, known by `can_vmap`.
WIDE_MODELS = Rung(
    group.NAME, _vectorized(group.able), group.paid_for, group.widened, few_items=True, splits=False
)
TORCH_VMAP = Rung("torch vmap", _vectorized(torch_vmap.able), _vmap_pays, torch_vmap.mapped)
NUMPY_LANES = Rung(
    "numpy lanes", _vectorized(lambda work: True), _lanes_pay, lambda work: numpy_lanes.vectorized(work)
)
# Items that wait, and those that compute where another core is of use. They are the items as written.
THREADS = Rung("threads", _threads_apply, _threads_pay, _in_threads, replayable=False, few_items=True)

VECTORIZED: tuple[Rung, ...] = (WIDE_MODELS, TORCH_VMAP, NUMPY_LANES)
PARALLEL: tuple[Rung, ...] = (THREADS,)
