"""Threads at a map site: whether at all, and what they give."""

from typing import Any

from ...measure.clock import cpu_time, now
from ..work import Failed, Miss, Work
from .level import Level
from .threads import CHEAP, Overlap, crowded, waited

PART = 128  # items of a long loop that are run in threads before it is asked whether they wait, too
PROBED = 8  # items that are run one by one, to see whether one of them waits


def overlapped(work: Work) -> list[Any] | Miss:
    """Run waiting items in threads. The first items of a site not seen yet show whether they wait at all."""
    memory, config, began = work.plan.memory, work.site.config, now()
    n = work.items.n
    run = Overlap(work.one, n, config.max_workers)
    level = memory.setdefault("level", Level(config.max_workers))
    threads = level.of(n) - 1
    if config.measure and not _known_to_wait(work):
        waits = run.first_waits()
        begun = waits  # in another thread, which goes on
        if not waits:
            run.finish()  # it computes: whoever waits for it now would seem to wait himself
        while not (waits or run.errors) and run.next < min(n, PROBED):
            waits = _waits(run, run.next)
        if not waits:
            work.wasted += sum(run.seconds)  # which is the items' own
            if run.errors:
                raise _failed(work, run)
            return _rest_as_written(work, run, began)
        memory["waits"] = True
        threads -= begun
    if config.measure and n > 2 * PART:
        run.limit = PART
        run.start(threads)
        run.finish()
        if not run.errors and _cheap(run):  # as others of other calls were not
            memory["waits"] = False
            return _rest_as_written(work, run, began)
    run.limit = n
    run.start(threads)
    run.finish()
    work.plan.last = "threads"
    work.site.took("threads")
    if run.errors and crowded(run.errors[min(run.errors)]):
        level.too_many(n)
        return _one_by_one(work, run)
    if run.errors:
        raise _failed(work, run)
    if config.measure:
        level.learn(run.seconds, n)
        if _cheap(run):
            memory["waits"] = False
    return [v for i in range(n) for v in run.results[i]]


def _cheap(run: Overlap) -> bool:
    return sum(run.seconds) < len(run.seconds) * CHEAP / 4


def _rest_as_written(work: Work, run: Overlap, began: float) -> list[Any] | Miss:
    """After the items that have run. Where the text cannot begin in the middle it is as if it had."""
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
    """By a call before, in threads or as written: there all items count, whichever of them wait."""
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
    """What is not there yet, one after another: where the text cannot begin in the middle, and where too many
    items at a time were too many for the system."""
    values: list[Any] = []
    for i in range(work.items.n):
        if i in run.errors and not crowded(run.errors[i]):
            raise _failed(work, run, i)
        try:
            run.results[i] = run.results[i] if i in run.results else work.one(i)
        except Exception as error:
            run.errors[i] = error
            raise _failed(work, run, i) from None
        values += run.results[i]
    return values


def _failed(work: Work, run: Overlap, lowest: int | None = None) -> Failed:
    """The lowest item that raised; what came before it is kept, and what it had noted itself."""
    lowest = min(run.errors) if lowest is None else lowest
    values = [v for i in range(lowest) for v in run.results[i]]
    return Failed([*values, *work.partial.get(lowest, ())], run.errors[lowest])
