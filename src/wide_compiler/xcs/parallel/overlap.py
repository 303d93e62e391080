"""Threads at a loop whose items may wait: whether at all, and what they give."""

from typing import Any

from ...measure.clock import cpu_time, now
from ..independent import marked_in
from ..work import Failed, Miss, Work
from .level import Level
from .threads import CHEAP, Overlap, crowded, waited

PART = 128  # items of a long loop that run in threads before it is asked whether they wait
PROBED = 8  # items that run one by one, to see whether one of them waits


def overlapped(work: Work) -> list[Any] | Miss:
    """Run items in threads. At a site not seen yet, the first items show whether they wait at all."""
    memory, config, began = work.plan.memory, work.site.config, now()
    n = work.items.n
    run = Overlap(work.one, n, config.max_workers)
    level = memory.setdefault("level", Level(config.max_workers))
    threads = level.of(n) - 1
    if config.measure and not _known_to_wait(work):
        waits = started = run.first_waits()  # in another thread, which goes on
        if not waits:
            run.finish()  # it computes: an item that shared the CPU with it would seem to wait
        while not (waits or run.errors) and run.next < min(n, PROBED):
            waits = _waits(run, run.next)
        if not waits:
            work.wasted += sum(run.seconds)  # the items' own time, not that of looking at the site
            if run.errors:
                raise _failed(work, run)
            return _rest_as_written(work, run, began)
        memory["waits"] = True
        threads -= started
    if config.measure and n > 2 * PART:
        run.limit = PART
        run.start(threads)
        run.finish()
        if not run.errors and _cheap(run):  # unlike the items of other calls
            memory["waits"] = False
            return _rest_as_written(work, run, began)
    run.limit = n
    run.start(threads)
    run.finish()
    work.plan.last = "threads"
    work.site.took("threads")
    if run.errors:
        if not may_repeat(run.errors[min(run.errors)], work.plan):
            raise _failed(work, run)
        level.too_many(n)
        return _one_by_one(work, run)
    if config.measure:
        level.learn(run.seconds, n)
        if _cheap(run):
            memory["waits"] = False
    return [v for i in range(n) for v in run.results[i]]


def may_repeat(error: BaseException, plan: Any) -> bool:
    """Did an item fail only because of the others at the same time? A read is then repeated alone; what the
    user has marked as independent may write, and is never repeated."""
    return crowded(error) and not marked_in(plan)


def _cheap(run: Overlap) -> bool:
    return sum(run.seconds) < len(run.seconds) * CHEAP / 4


def _rest_as_written(work: Work, run: Overlap, began: float) -> list[Any] | Miss:
    """The plain loop goes on after the items that have run; items run one by one where it cannot."""
    done, site, ledger = run.next, work.site, work.plan.ledger
    if site.text.may_go_on:
        return Miss(done, [v for i in range(done) for v in run.results[i]])
    looked = now() - began - sum(run.seconds)
    watch = ledger.watch()
    values = _one_by_one(work, run)
    seconds = sum(run.seconds) + ledger.measured(watch, work.items.n - done)
    site.went_plain()
    site.pace.rest(looked, seconds)
    return values


def _known_to_wait(work: Work) -> bool:
    """By an earlier call, in threads or as written: there all items count, whichever of them wait."""
    memory, ledger = work.plan.memory, work.plan.ledger
    if ledger.idle_item > CHEAP / 4 and ledger.idle_item > 0.5 * (ledger.plain_item or 0.0):
        memory["waits"] = True
        ledger.idle_item = 0.0
    return memory.get("waits", False)


def _waits(run: Overlap, i: int) -> bool:
    """Run item i in this thread: did it wait?"""
    began, spent = now(), cpu_time()
    run.limit = i + 1
    run.finish()
    return waited(now() - began, cpu_time() - spent)


def _one_by_one(work: Work, run: Overlap) -> list[Any]:
    """Run the items that have no result yet, one after another."""
    values: list[Any] = []
    for i in range(work.items.n):
        if i in run.errors and not may_repeat(run.errors[i], work.plan):
            raise _failed(work, run, i)
        try:
            run.results[i] = run.results[i] if i in run.results else work.one(i)
        except Exception as error:
            run.errors[i] = error
            raise _failed(work, run, i) from None
        values += run.results[i]
    return values


def _failed(work: Work, run: Overlap, lowest: int | None = None) -> Failed:
    """The lowest item that raised, with the values of the items before it and what it had noted itself."""
    lowest = min(run.errors) if lowest is None else lowest
    values = [v for i in range(lowest) for v in run.results[i]]
    return Failed([*values, *work.partial.get(lowest, ())], run.errors[lowest])
