"""The choice at a site: the cheapest rung by what was measured, or the plain loop."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..measure.clock import now
from ..measure.policy import margin
from .interrupts import raise_interrupt
from .items import Items
from .look import MOST_LOOKS, look_of
from .noticing import noticing
from .oracle import same
from .proof.effects import Effect
from .race import race, race_is_paid_for
from .rungs import Rung
from .work import Bail, Failed, Miss, Work

SAMPLES = 3
FAR = 0.7  # of the plain loop's time: whoever takes less need not be weighed at each call
FEWEST = 8
TRUTHS = (bool, int, float, np.bool_)


def choose(work: Work, rungs: Sequence[Rung]) -> list[Any] | Miss:
    """Run the items by the best rung that applies."""
    plan, config = work.plan, work.site.config
    if plan.taken in rungs and _clearly_ahead(work, plan.taken):
        again = plan.taken.again(work)
        if again or plan.taken.applies(work):
            plan.ledger.fast_calls += 1
            values = _attempt(work, plan.taken, {}, again)
            if not isinstance(values, Miss) or values.done:
                return values
    able = [r for r in rungs if r.applies(work)]
    if plan.effect is Effect.IO:
        return able[0].run(work) if able else Miss()
    if not config.measure:
        return _first_able(work, able)
    return _measured(work, able)


def _clearly_ahead(work: Work, rung: Rung) -> bool:
    """The rung of the last call, far ahead of the plain loop: only now and then all is weighed anew."""
    ledger = work.plan.ledger
    if not work.site.config.measure or ledger.fast_calls + 1 >= ledger.next_look:
        return False
    return _far_ahead(work, rung) and rung.worth_a_try(work, ledger.plain(work.items.n))


def _far_ahead(work: Work, rung: Rung | None) -> bool:
    ledger, n = work.plan.ledger, work.items.n
    expected = None if rung is None else ledger.of(rung.name).predicted(n)
    return expected is not None and expected <= FAR * ledger.plain(n)


def _first_able(work: Work, rungs: Sequence[Rung]) -> list[Any] | Miss:
    for rung in rungs:
        values = _attempt(work, rung, {})
        if not isinstance(values, Miss):
            return values
    return Miss()


def _measured(work: Work, rungs: Sequence[Rung]) -> list[Any] | Miss:
    ledger, n = work.plan.ledger, work.items.n
    samples: dict[int, list[Any]] = {}
    goes_on = work.site.text.may_go_on
    if ledger.plain_item is None:
        failed = _sample(work, samples) if goes_on else _unwarned(work, samples)
        if failed:
            return Miss(raised=True)
        if _decided(work, samples):
            ledger.stops_at(len(samples) / n)
    done = Miss(len(samples), [v for i in sorted(samples) for v in samples[i]]) if goes_on else Miss()
    rung = _cheapest(work, rungs, n)
    if not samples and ledger.due(rung is not None):
        if _look_again(work):
            rung = _cheapest(work, rungs, n)  # the machine may have been busier when one of both was timed
        ledger.looked(_far_ahead(work, rung))
    if rung is None:
        ledger.went_plain(n)
        return done
    values = _attempt(work, rung, samples)
    if isinstance(values, Miss):
        ledger.went_plain(n)
        return values if values.done else done
    return values


def _sample(work: Work, samples: dict[int, list[Any]]) -> bool:
    """Time the first items; what they give is kept. An item that raises is the plain loop's to raise."""
    seconds = []
    for i in range(min(SAMPLES, work.items.n - 1)):
        began = now()
        try:
            samples[i] = work.one(i)
        except Exception as error:
            raise_interrupt(error)
            return True
        seconds.append(now() - began)
    work.plan.ledger.sample(seconds, own_seconds())
    return False


def _unwarned(work: Work, samples: dict[int, list[Any]]) -> bool:
    """Items that the plain loop runs again: NumPy must not warn of them twice."""
    noticed: list[str] = []
    with noticing(noticed):
        failed = _sample(work, samples)
    if noticed:
        samples.clear()
    return failed


def _decided(work: Work, samples: dict[int, list[Any]]) -> bool:
    """Would the plain loop have stopped by now? Asked of numbers only: others run code when asked."""
    if not work.site.short_circuits:
        return False
    wanted = work.site.text.eater == "any"
    return any(type(v) in TRUTHS and bool(v) is wanted for values in samples.values() for v in values)


def own_seconds() -> float:
    """What timing an item costs by itself, at this moment: the row, the call."""
    seconds = []
    for _ in range(3):
        began = now()
        for _ in range(12):
            _NOTHING.one(0)
        seconds.append((now() - began) / 12)
    return min(seconds)


_NOTHING = Work(None, None, Items([[0]], 1, iter), lambda x: x, None, False)  # type: ignore[arg-type]


def _look_again(work: Work) -> bool:
    """Time a few items anew, many where they are short; False if one raises."""
    ledger, n = work.plan.ledger, work.items.n
    count = min(n, 1 if (ledger.plain_item or 0.0) > 2e-6 else 12)
    seconds = []
    for k in range(3):  # best of three: a busy moment must not make the plain loop look slow
        # Other items each time, as the loop would come to them: an item just used is faster than that.
        first = (ledger.looks * 7 + k * (n // 3)) % (n - count + 1)
        began = now()
        try:
            with noticing([]):  # NumPy must not warn of them twice
                for i in range(first, first + count):
                    work.one(i)
        except Exception as error:
            raise_interrupt(error)
            return False
        seconds.append((now() - began) / count)
    ledger.sample(seconds, own_seconds())
    return True


def _cheapest(work: Work, rungs: Sequence[Rung], n: int) -> Rung | None:
    ledger = work.plan.ledger
    plain = ledger.plain(n)
    best, limit = None, margin(ledger.plain_item or 0.0) * plain
    least = limit
    for rung in rungs:
        record = ledger.of(rung.name)
        if record.resting or not rung.worth_a_try(work, plain):
            continue
        expected = record.predicted(n)
        if expected is None:
            enough = n >= FEWEST or rung.few_items
            if enough and rung.at_best(plain) < least and race_is_paid_for(work, rung):
                return rung  # not tried yet, and there is enough to gain
            continue
        if expected < least:
            best, least = rung, expected
        elif expected >= limit and record.may_try_again(limit):
            return rung
    return best


def _attempt(work: Work, rung: Rung, samples: dict[int, list[Any]], again: bool = False) -> list[Any] | Miss:
    """Run a rung on all items. With items that look like none before, some are compared with what the plain
    loop gives. again: is it known that this call is an earlier one with other numbers?"""
    record, look, why = work.plan.ledger.of(rung.name), None, ""
    work.new, work.samples = False, samples
    began = now()
    try:
        if not (record.looks and (again or rung.again(work))):
            look = look_of(work)
            work.new = look not in record.looks
        values = rung.run(work)
        if isinstance(values, Miss):
            return values
        first = not record.looks
        if work.new:
            _verify(work, rung, values, samples)
            if work.site.config.measure:
                race(work, rung)
            if len(record.looks) >= MOST_LOOKS:
                record.looks.clear()
            record.looks.add(look)
        if not first:
            work.record = record  # the first call built things: the next ones tell
    except Bail as bail:
        why = str(bail) or "it gave up"
    except Failed:
        raise  # an item did
    except Exception as error:
        raise_interrupt(error)
        if not rung.replayable:
            raise
        why = f"{type(error).__name__}: {error}"  # of a kind of item that nobody has thought of
    if why:
        seconds = now() - began
        if work.new:
            rung.forget(work)
        record.failed(seconds, why)
        work.wasted += seconds
        return Miss()
    work.plan.last = rung.name
    work.plan.taken = rung
    work.site.took(rung.name)
    return values


def _verify(work: Work, rung: Rung, values: list[Any], samples: dict[int, list[Any]]) -> None:
    """Items first, middle and last, by type, dtype, shape, value and aliasing with the item itself."""
    if not rung.replayable:
        return
    n = work.items.n
    if work.cond is not None or work.events:
        return _verify_all(work, values) if n <= 64 else _verify_some(work, values)
    for i in (0, n // 2, n - 1):
        plain = samples[i] if i in samples else work.compared(i)
        row = work.items.row(i)
        if not same((plain, row), ([values[i]], row), rtol=work.plan.rtol):
            raise Bail(f"item {i} came out different")


def _verify_all(work: Work, values: list[Any]) -> None:
    plain = [v for i in range(work.items.n) for v in work.compared(i)]
    if not same(plain, values, rtol=work.plan.rtol):
        raise Bail("items came out different")


def _verify_some(work: Work, values: list[Any]) -> None:
    """Where items add none or several values: the first ones from the front, the last from the back."""
    n = work.items.n
    front = [v for i in range(3) for v in work.compared(i)]
    back = [v for i in range(n - 3, n) for v in work.compared(i)]
    tail = values[len(values) - len(back) :]
    if not (same(front, values[: len(front)], work.plan.rtol) and same(back, tail, work.plan.rtol)):
        raise Bail("items came out different")
