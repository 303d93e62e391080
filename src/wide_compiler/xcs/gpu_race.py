"""On a GPU the time of a call is that of launching it, and tells little of when it is computed. So a rung
must win a race against the plain loop there, with the GPU waited for on both sides."""

import types
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..measure.clock import current_clock
from ..measure.policy import beats
from .items import Items
from .schedule import SHARE
from .work import Bail, Work

if TYPE_CHECKING:
    from .rungs import Rung

RUNNERS = 128  # items that run, where a rung can run some of them alone
WARM = 4  # calls before the clock is read: a wide call is recorded on the way
LOOPS = 4  # plain loops over the runners that a race takes
_EMPTY = types.CellType()


def race_is_paid_for(work: Work, rung: "Rung") -> bool:
    """Has the plain loop taken so long by now, this call included, that a race costs little beside it?"""
    if not rung.replayable or gpu_of(work) is None:
        return True
    costs = work.plan.costs
    return LOOPS * costs.plain(_runners(work, rung)) < SHARE * (costs.spent + costs.plain(work.items.n))


def race(work: Work, rung: "Rung") -> None:
    """Let the rung run against the plain loop, once for items of about this size. Raises `Bail` if it does
    not win."""
    gpu = gpu_of(work)
    won = work.plan.memory.setdefault("races won", set())
    if gpu is None or (rung.name, _size(work)) in won:
        return
    count = _runners(work, rung)
    items = Items([column[:count] for column in work.items.columns], count)
    runners = Work(work.site, work.plan, items, work.functions)
    with torch.cuda.device(gpu):
        for _ in range(WARM):
            rung.run(runners)
        plain = lambda: [runners.compared(i) for i in range(count)]  # noqa: E731
        ways = {"plain": plain, "rung": lambda: rung.run(runners)}
        seconds = current_clock().turns(ways, seconds=0.0, cuda=True).seconds
    if not beats(seconds["rung"], seconds["plain"]):
        raise Bail("the GPU takes no less time for all items at once")
    won.add((rung.name, _size(work)))


def gpu_of(work: Work) -> torch.device | None:
    """The GPU on which the items are computed: where their tensors lie, or one that all of them share."""
    if not torch.cuda.is_initialized():
        return None
    return next((tensor.device for tensor in _tensors(work) if tensor.is_cuda), None)


def _runners(work: Work, rung: "Rung") -> int:
    return min(work.items.n, RUNNERS) if rung.splits else work.items.n


def _tensors(work: Work) -> list[Tensor]:
    """Those of the first item, and those in the closure of the body."""
    first = [column if type(column) is Tensor else column[0] for column in work.items.columns]
    cells = [cell.cell_contents for cell in work.body.__closure__ or () if cell != _EMPTY]
    return [value for value in (*first, *cells) if isinstance(value, Tensor)]


def _size(work: Work) -> int:
    """How many numbers an item has, to a factor of four."""
    n = work.items.n
    counts = [t.numel() // (n if t.dim() and len(t) == n else 1) for t in _tensors(work)]
    return sum(counts).bit_length() // 2
