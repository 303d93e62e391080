"""The choice at a site: the fastest way that was measured, or the plain loop. See `costs` for the policy."""

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
from .signature import MOST_SIGNATURES, signature_of
from .work import Bail, Failed, Miss, Work, held_by

FEWEST = 8  # items that a rung is tried with, unless it says otherwise
PART = 4  # a rung is tried with one item of so many
RUNNERS = 128  # items of a trial on a GPU


def choose(work: Work, rungs: Sequence[Rung]) -> list[Any] | Miss:
    """Run the items by the rung that is expected to be fastest, if it beats the plain loop."""
    able = [rung for rung in rungs if rung.applies(work)]
    if not work.site.config.measure:
        found = (_attempt(work, rung) for rung in able)
        return next((values for values in found if not isinstance(values, Miss)), Miss())
    costs, n = work.plan.costs, work.items.n
    plain = costs.plain_item * n
    if not plain or costs.is_due(n):
        return Miss()  # the plain loop is timed before anything else
    best, least = None, margin(costs.plain_item) * plain
    for rung in able:
        if plain < rung.least or costs.plain_item < rung.least_item(work) or n < rung.fewest:
            continue
        record = costs.of(rung.name)
        expected = record.predicted(n)
        if expected is None and record.signatures and not record.why_not:
            expected = 0.0  # what it needs is built by now: this call tells
        if (expected is None or expected >= least) and _affords(work, rung):
            expected = _tried(work, rung)
        if expected is not None and expected < least:
            best, least = rung, expected
    return Miss() if best is None else _attempt(work, best)


def _affords(work: Work, rung: Rung) -> bool:
    record = work.plan.costs.of(rung.name)
    if not rung.replayable and not record.losses:
        return True  # each item runs once: nothing is lost
    price = max(record.price, rung.price(work))
    if gpu_of(work) is not None:
        price += 2 * PART * work.plan.costs.plain_item * min(work.items.n, RUNNERS)
    return work.site.budget.affords_trial(price * 2.0**record.losses)


def _tried(work: Work, rung: Rung) -> float | None:
    """Seconds that a rung takes for all items, told from some of them; None if it cannot run them, or loses.
    It runs once to build what it needs, then with an eighth and with a quarter of the items."""
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
            # Not more than twice one plain run.
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
        record.recent, record.told = [], (expected, n)
    return expected


def _part(work: Work, count: int) -> Work:
    items = Items([column[:count] for column in work.items.columns], count)
    return Work(work.site, work.plan, items, work.functions)


def _seconds(work: Work, rung: Rung) -> float:
    began = timing.now()
    rung.run(work)
    return timing.now() - began


def _wins(part: Work, rung: Rung, gpu: torch.device) -> bool:
    """On a GPU the time of a call is that of launching it. So both ways run in turns there, waited for."""
    with torch.cuda.device(gpu):
        plain = lambda: [part.compared(i) for i in range(part.items.n)]  # noqa: E731
        ways = {"plain": plain, "rung": lambda: rung.run(part)}
        seconds = current_clock().turns(ways, seconds=0.0, cuda=True).seconds
    return beats(seconds["rung"], seconds["plain"])


def gpu_of(work: Work) -> torch.device | None:
    """The GPU on which the items are computed: where their tensors lie, or one that all of them share."""
    if not torch.cuda.is_initialized():
        return None
    first = [column if type(column) is Tensor else column[0] for column in work.items.columns]
    tensors = [value for value in (*first, *held_by(work.body)) if isinstance(value, Tensor)]
    return next((tensor.device for tensor in tensors if tensor.is_cuda), None)


def _attempt(work: Work, rung: Rung) -> list[Any] | Miss:
    """Run a rung on all items. With items of a new signature, some are compared with what the plain
    loop gives."""
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
    except Failed:  # an item did
        _took(work, rung)
        raise
    except Exception as error:
        raise_interrupt(error)
        if not rung.replayable:
            raise
        why = _reason(error)  # of a kind of item that nobody has thought of
    if why or (first and not rung.splits):
        work.pay(timing.now() - began)  # it failed, or built what it needs
    if why:
        record.lost(timing.now() - began, why)
        return Miss()
    record.why_not = ""
    work.record = None if first and not rung.splits else record
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
