"""The choice at a site: the cheapest rung by what was measured, or the plain loop."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..measure.clock import current_clock
from ..measure.policy import beats, margin
from . import timing
from .exceptions import raise_interrupt
from .items import Items
from .oracle import same
from .rungs import Rung
from .schedule import SHARE
from .signature import MOST_SIGNATURES, signature_of
from .work import Bail, Failed, Miss, Work, held_by

FEWEST = 8  # items that a rung is tried with, unless it says otherwise
TIMINGS = 2  # of the plain loop before anything is tried
PART = 4  # a rung is tried with one item of so many
LONG = 5e-3  # seconds of a plain loop that one timing tells, whatever else the machine does


def choose(work: Work, rungs: Sequence[Rung]) -> list[Any] | Miss:
    """Run the items by the rung that is expected to be fastest, if it beats the plain loop."""
    if not work.site.config.measure:
        return _first_able(work, rungs)
    rung = _fastest(work, rungs)
    return Miss() if rung is None else _attempt(work, rung)


def _first_able(work: Work, rungs: Sequence[Rung]) -> list[Any] | Miss:
    for rung in rungs:
        if rung.applies(work):
            values = _attempt(work, rung)
            if not isinstance(values, Miss):
                return values
    return Miss()


def _fastest(work: Work, rungs: Sequence[Rung]) -> Rung | None:
    """By what was measured; one that was never tried comes first, if a trial is paid for."""
    costs, n = work.plan.costs, work.items.n
    plain = costs.plain(n)
    if len(costs.recent) < (1 if plain > LONG else TIMINGS) or costs.is_due(n):
        return None  # the plain loop is timed before anything else
    best, limit = None, margin(plain / n) * plain
    least = limit
    for rung in rungs:
        record = costs.of(rung.name)
        if record.resting or not rung.worth_a_try(work, plain) or not rung.applies(work):
            continue
        expected = record.predicted(n)
        if expected is None:
            enough = n >= FEWEST or rung.few_items
            if not enough or not race_is_paid_for(work, rung):
                continue
            if not rung.splits or not rung.replayable or n < 4 * PART or gpu_of(work) is not None:
                return rung
            expected = _rehearsed(work, rung)
        if expected is None:
            continue
        if expected < least:
            best, least = rung, expected
        elif expected >= limit and record.may_try_again(expected, limit):
            return rung
    return best


def _rehearsed(work: Work, rung: Rung) -> float | None:
    """Seconds that a rung takes for all items, told from some of them: it runs once to build what it needs,
    then with an eighth and with a quarter of the items. None if it cannot run them."""
    record, n = work.plan.costs.of(rung.name), work.items.n
    took: list[float] = []
    began, why = timing.now(), ""
    try:
        for count in (n // PART, n // (2 * PART), n // PART):
            items = Items([column[:count] for column in work.items.columns], count)
            some = Work(work.site, work.plan, items, work.functions)
            some.new = not took
            start = timing.now()
            if isinstance(rung.run(some), Miss):
                return None
            took.append(timing.now() - start)
    except (Bail, Exception) as error:
        raise_interrupt(error)
        why = _reason(error)
    seconds = timing.now() - began
    work.wasted += seconds
    if why:
        record.failed(seconds, why)
        return None
    _, eighth, quarter = took
    expected = quarter + max(quarter - eighth, 0.0) * 2 * (PART - 1)
    record.succeeded(expected, n)
    record.wasted = seconds
    return expected


def _attempt(work: Work, rung: Rung) -> list[Any] | Miss:
    """Run a rung on all items. With items of a new signature, some are compared with what the plain
    loop gives."""
    record, signature, why = work.plan.costs.of(rung.name), None, ""
    work.new = False
    began = timing.now()
    try:
        signature = signature_of(work) if rung.replayable else None
        work.new = signature not in record.signatures
        values = rung.run(work)
        if isinstance(values, Miss):
            return values
        first = not record.signatures
        if work.new:
            if rung.replayable:
                _verify(work, values)
                if work.site.config.measure:
                    race(work, rung)
            if len(record.signatures) >= MOST_SIGNATURES:
                record.signatures.clear()
            record.signatures.add(signature)
        if not first:
            work.record = record  # the first call built things: the next ones tell
    except Bail as bail:
        why = _reason(bail)
    except Failed:  # an item did
        _took(work, rung)
        raise
    except Exception as error:
        raise_interrupt(error)
        if not rung.replayable:
            raise
        why = _reason(error)  # of a kind of item that nobody has thought of
    if why:
        seconds = timing.now() - began
        record.failed(seconds, why)
        work.wasted += seconds
        return Miss()
    _took(work, rung)
    return values


def _reason(error: BaseException) -> str:
    return str(error) or "it gave up" if isinstance(error, Bail) else f"{type(error).__name__}: {error}"


def _took(work: Work, rung: Rung) -> None:
    work.plan.last = rung.name
    work.site.took(rung.name)


def _verify(work: Work, values: list[Any]) -> None:
    """Items first, middle and last, by type, dtype, shape, value and aliasing with the item itself. Where
    items add none or several values: all of them, or of many the first and the last."""
    n, rtol = work.items.n, work.plan.rtol
    if work.cond is None and not work.events:
        rows = {i: work.items.row(i) for i in (0, n // 2, n - 1)}
        right = all(same((work.compared(i), row), ([values[i]], row), rtol) for i, row in rows.items())
    elif n <= 64:
        right = same([v for i in range(n) for v in work.compared(i)], values, rtol)
    else:
        front = [v for i in range(3) for v in work.compared(i)]
        back = [v for i in range(n - 3, n) for v in work.compared(i)]
        tail = values[len(values) - len(back) :]
        right = same(front, values[: len(front)], rtol) and same(back, tail, rtol)
    if not right:
        raise Bail("items came out different")


# On a GPU the time of a call is that of launching it, and tells little of when it is computed. So a rung must
# win a race against the plain loop there, with the GPU waited for on both sides.

RUNNERS = 128  # items that run, where a rung can run some of them alone
WARM = 4  # calls before the clock is read: a wide call is recorded on the way
LOOPS = 4  # plain loops over the runners that a race takes


def race_is_paid_for(work: Work, rung: Rung) -> bool:
    """Has the plain loop taken so long by now, this call included, that a race costs little beside it?"""
    if not rung.replayable or gpu_of(work) is None:
        return True
    costs = work.plan.costs
    return LOOPS * costs.plain(_runners(work, rung)) < SHARE * (costs.spent + costs.plain(work.items.n))


def race(work: Work, rung: Rung) -> None:
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


def _runners(work: Work, rung: Rung) -> int:
    return min(work.items.n, RUNNERS) if rung.splits else work.items.n


def _tensors(work: Work) -> list[Tensor]:
    """Those of the first item, and those in the closure of the body."""
    first = [column if type(column) is Tensor else column[0] for column in work.items.columns]
    return [value for value in (*first, *held_by(work.body)) if isinstance(value, Tensor)]


def _size(work: Work) -> int:
    """How many numbers an item has, to a factor of four."""
    n = work.items.n
    counts = [t.numel() // (n if t.dim() and len(t) == n else 1) for t in _tensors(work)]
    return sum(counts).bit_length() // 2
