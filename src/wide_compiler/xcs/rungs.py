"""The rungs: ways to run all items of a site, from one vectorised call to threads."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .lanes import run as numpy_lanes
from .modules import group, torch_vmap
from .parallel import overlap, threads
from .proof.effects import Effect
from .proof.kinds import CONSTANTS
from .work import Work, closure_values

# Seconds per item in the plain loop, below which conversion to NumPy costs more than it saves.
SHORT, SHORT_NUMBERS = 4e-7, 4e-6


@dataclass
class Rung:
    """One way to run all items of a site.

    Attributes:
        applies: returns whether it is proven to be possible.
        run: returns the values of all items in order. Raises `Bail` if it cannot.
        price: approximate seconds of a first trial.
        least: seconds of a plain loop, below which it is not tried.
        least_item: returns the seconds per item, below which it is not tried.
        fewest: minimum number of items.
        replayable: True if items may run twice, so that results can be compared with the plain loop.
        splits: True if it can run a part of the items.
    """

    name: str
    applies: Callable[[Work], bool]
    run: Callable[[Work], list[Any]]
    price: float
    least: float = 0.0
    least_item: Callable[[Work], float] = lambda work: 0.0
    fewest: int = 8
    replayable: bool = True
    splits: bool = True


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


def _vectorized(able: Callable[[Work], bool]) -> Callable[[Work], bool]:
    """Return `able`, restricted to bodies that can be vectorised and have no `try` to catch `Bail`."""
    return lambda work: work.plan.info.can_vmap and not work.plan.texts.tries and able(work)


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
    "numpy lanes", _vectorized(lambda work: True), lambda work: numpy_lanes.vectorized(work),
    5e-4, 3e-5, lambda work: shortest(work.items.columns, work.functions),
)  # fmt: skip
# Items that wait run unchanged in threads.
THREADS = Rung(
    "threads", _wait, overlap.overlapped, 0.0, least_item=lambda work: threads.CHEAP / 4,
    fewest=2, replayable=False,
)  # fmt: skip

VECTORIZED: tuple[Rung, ...] = (WIDE_MODELS, TORCH_VMAP, NUMPY_LANES)
PARALLEL: tuple[Rung, ...] = (THREADS,)
