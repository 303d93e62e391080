"""Threads for items that only compute. They gain where code releases the GIL (hashlib and zlib on large data,
NumPy on large arrays), or on a Python without a GIL; elsewhere a short trial shows that they do not."""

import types
from typing import Any

import torch

from ...measure.clock import cpu_time, now
from ...measure.policy import beats
from ..config import cores
from ..numpy_errors import recorded_errors, watched_errors
from ..work import Bail, Work
from .threads import Overlap, usable

SHORTEST = 5e-4  # seconds: an item that takes less is not worth handing to another thread
TRIAL = 5e-3  # seconds of items that run in threads before they are compared with the plain loop's time
SEVERAL = 1.1  # CPU seconds a second: more than one core was at work
NAME = "threads"


def workers(work: Work) -> int:
    return min(cores(), work.site.config.max_workers, work.items.n)


def able(work: Work) -> bool:
    """May other threads compute these items, and come to the same results?"""
    config, memory = work.site.config, work.plan.memory
    # How deep calls may still go is not the same in another thread.
    if not config.measure or cores() < 2 or not usable(config.max_workers):
        return False
    if "uses torch" not in memory:
        memory["uses torch"] = uses_torch(work)
    return not memory["uses torch"] or _torch_computes_alike()


def pays(work: Work) -> bool:
    """Are the items long enough, and has the plain loop taken so long that a trial is small beside it?"""
    costs = work.plan.costs
    item = costs.plain_item or 0.0
    if item < SHORTEST:
        return False
    # The items of a trial run once: it costs what threads that hinder each other lose, a tenth of it or so.
    return bool(costs.of(NAME).recent) or costs.spent > _trial_items(work) * item


def computed(work: Work) -> list[Any]:
    """The values of all items. If the first ones gain nothing, this thread alone goes on. Raises `Bail` if an
    item fails: then the plain loop decides."""
    n, threads, item = work.items.n, workers(work), work.plan.costs.plain_item or 0.0
    of_torch, errors = work.plan.memory["uses torch"], watched_errors()
    noticed: list[Any] = []
    cpu: list[float] = []  # seconds of each item

    def one(i: int) -> list[Any]:
        if of_torch and torch.get_num_threads() != 1:  # this thread was started under another setting
            raise Bail("PyTorch would split its operators otherwise in another thread")
        began = cpu_time()
        with recorded_errors(noticed, errors):
            value = work.one(i)
        cpu.append(cpu_time() - began)
        return value

    run, began = Overlap(one, n, threads), now()
    run.up_to(min(n, _trial_items(work)), threads)
    seconds = now() - began
    # The clock alone may mislead on a busy machine: threads that share one GIL use one core together.
    gained = sum(cpu) > SEVERAL * seconds and beats(seconds, item * run.limit)
    run.up_to(n, threads if gained else 1)
    if run.errors:
        error = run.errors[min(run.errors)]
        raise Bail(str(error) if type(error) is Bail else f"an item raises {type(error).__name__}")
    if noticed:
        raise Bail("NumPy has something to warn of")
    return [v for i in range(n) for v in run.results[i]]


def _trial_items(work: Work) -> int:
    return max(2 * workers(work), int(TRIAL / (work.plan.costs.plain_item or TRIAL)))


def _torch_computes_alike() -> bool:
    """Not where each operator uses all cores itself, where results have graphs (which remember the order in
    which one thread made them), or on a GPU, whose current device and stream belong to a thread."""
    cuda = torch.cuda.is_initialized()
    return torch.get_num_threads() == 1 and not torch.is_grad_enabled() and not cuda


def uses_torch(work: Work) -> bool:
    """Does the body come to anything of PyTorch? Whatever it reads from outside is asked by a guard."""
    return any(_of_torch(how, expected) for how, expected in work.plan.guards.checks.values())


def _of_torch(how: str, expected: Any) -> bool:
    asked = expected[1] if how == "holds" else [expected]  # types, or a function, class or module itself
    homes = [home for one in asked for home in (one, *getattr(one, "__mro__", ()))]
    names = [getattr(h, "__name__" if isinstance(h, types.ModuleType) else "__module__", "") for h in homes]
    return any(str(name).partition(".")[0] == "torch" for name in names)
