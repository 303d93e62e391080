"""Choose how to run a site: the fastest measured rung, or the plain loop. `costs` describes the policy."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..measure.clock import current_clock
from ..measure.policy import beats, margin
from . import timing
from .comparison import same
from .exceptions import raise_interrupt
from .items import Items
from .rungs import Rung
from .signature import MOST_SIGNATURES, signature_of
from .work import Bail, Failed, Miss, Work, closure_values

FEWEST = 8  # items needed to try a rung, unless the rung sets its own minimum
PART = 4  # a trial runs 1/PART of the items
RUNNERS = 128  # maximum number of items in a trial on a GPU


def choose(work: Work, rungs: Sequence[Rung]) -> list[Any] | Miss:
    """Run the items with the rung expected to be fastest, if it beats the plain loop.

    Returns:
        The list of values, or a `Miss` if the plain loop should run.
    """
    able = [rung for rung in rungs if rung.applies(work)]
    if not work.site.config.measure:
        found = (_attempt(work, rung) for rung in able)
        return next((values for values in found if not isinstance(values, Miss)), Miss())
    costs, n = work.plan.costs, work.items.n
    plain = costs.plain_item * n
    if not plain or costs.is_due(n):
        return Miss()  # the plain loop is timed first
    best, least = None, margin(costs.plain_item) * plain
    for rung in able:
        if plain < rung.least or costs.plain_item < rung.least_item(work) or n < rung.fewest:
            continue
        record = costs.of(rung.name)
        expected = record.predicted(n)
        if expected is None and record.signatures and not record.why_not:
            expected = 0.0  # compiled by now, so this call is the measurement
        if (expected is None or expected >= least) and _affords(work, rung):
            expected = _tried(work, rung)
        if expected is not None and expected < least:
            best, least = rung, expected
    return Miss() if best is None else _attempt(work, best)


def _affords(work: Work, rung: Rung) -> bool:
    record = work.plan.costs.of(rung.name)
    if not rung.replayable and not record.losses:
        return True  # each item runs once, so a trial repeats no work
    price = max(record.price, rung.price(work))
    if gpu_of(work) is not None:
        price += 2 * PART * work.plan.costs.plain_item * min(work.items.n, RUNNERS)
    return work.site.budget.affords(price * 2.0**record.losses)


def _tried(work: Work, rung: Rung) -> float | None:
    """Return the estimated seconds of a rung for all items; None if it fails.

    The rung runs once to build what it needs (compilation, caches), then is timed with 1/8 and 1/4 of the
    items.
    """
    costs, n, gpu = work.plan.costs, work.items.n, gpu_of(work)
    record, plain = costs.of(rung.name), costs.plain_item * n
    if not rung.replayable or not rung.splits:
        return 0.0  # the call itself is the trial
    quarter = n // PART if n >= 4 * PART else n
    expected, why, began = None, "", timing.now()
    try:
        part = _part(work, min(quarter, RUNNERS))
        part.new = True
        rung.run(part)
        part.new = False
        if gpu is not None:
            expected = 0.0 if _wins(part, rung, gpu) else plain
        else:
            few = _seconds(_part(work, max(quarter // 2, 1)), rung)
            # Limit the cost of a trial to about twice one plain run.
            many = _seconds(_part(work, quarter), rung) if few < plain else few
            expected = many + max(many - few, 0.0) / (quarter - quarter // 2) * (n - quarter)
    except (Bail, Exception) as error:
        raise_interrupt(error)
        why = _reason(error)
    seconds = timing.now() - began
    work.pay(seconds)
    if expected is None or not beats(expected, plain):
        record.lost(seconds, why)
    if expected and gpu is None:
        record.recent, record.estimate = [], (expected, n)
    return expected


def _part(work: Work, count: int) -> Work:
    items = Items([column[:count] for column in work.items.columns], count)
    return Work(work.site, work.plan, items, work.functions)


def _seconds(work: Work, rung: Rung) -> float:
    began = timing.now()
    rung.run(work)
    return timing.now() - began


def _wins(part: Work, rung: Rung, gpu: torch.device) -> bool:
    """Return whether the rung is faster than the plain loop on a GPU.

    Calls on a GPU return before the kernels finish, so both are timed in turns with synchronisation.
    """
    with torch.cuda.device(gpu):
        plain = lambda: [part.compared(i) for i in range(part.items.n)]  # noqa: E731
        ways = {"plain": plain, "rung": lambda: rung.run(part)}
        seconds = current_clock().turns(ways, seconds=0.0, cuda=True).seconds
    return beats(seconds["rung"], seconds["plain"])


def gpu_of(work: Work) -> torch.device | None:
    """Return the GPU that the items are computed on, from tensors in items or closure cells, or None."""
    if not torch.cuda.is_initialized():
        return None
    first = [column if type(column) is Tensor else column[0] for column in work.items.columns]
    tensors = [value for value in (*first, *closure_values(work.body)) if isinstance(value, Tensor)]
    return next((tensor.device for tensor in tensors if tensor.is_cuda), None)


def _attempt(work: Work, rung: Rung) -> list[Any] | Miss:
    """Run a rung on all items and return the values, or a `Miss` if it fails.

    For items with a new signature, some results are compared with the plain loop.
    """
    record, signature, why = work.plan.costs.of(rung.name), None, ""
    work.new = False
    began, first = timing.now(), not record.signatures
    try:
        signature = signature_of(work) if rung.replayable else None
        work.new = signature not in record.signatures
        values = rung.run(work)
        if isinstance(values, Miss):
            return values
        if work.new:
            if rung.replayable:
                _verify(work, values)
            if len(record.signatures) >= MOST_SIGNATURES:
                record.signatures.clear()
            record.signatures.add(signature)
    except Bail as bail:
        why = _reason(bail)
    except Failed:  # an item raised
        _took(work, rung)
        raise
    except Exception as error:
        raise_interrupt(error)
        if not rung.replayable:
            raise
        why = _reason(error)  # a kind of item that the rung does not support
    if why or (first and not rung.splits):
        work.pay(timing.now() - began)  # it failed, or included one-time preparation
    if why:
        record.lost(timing.now() - began, why)
        return Miss()
    record.why_not = ""
    work.record = None if first and not rung.splits else record
    _took(work, rung)
    return values


def _reason(error: BaseException) -> str:
    return str(error) or "no reason given" if isinstance(error, Bail) else f"{type(error).__name__}: {error}"


def _took(work: Work, rung: Rung) -> None:
    work.plan.last = rung.name
    work.site.took(rung.name)


def _verify(work: Work, values: list[Any]) -> None:
    """Compare the first, middle and last item with plain Python: type, dtype, shape, value and aliasing.

    If items may add no value or several values, all values are compared; of more than 64 items, the values of
    the first and last three.

    Raises:
        Bail: a result differs.
    """
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
        raise Bail("results differ from the loop")
