"""Threads at a map site: how many at a time, and whether at all."""

from typing import Any

from ..ledger import clock
from ..work import Failed, Miss, Work
from .threads import CHEAP, Overlap, crowded


def overlapped(work: Work) -> list[Any] | Miss:
    """Run waiting items in threads. The first item of a site not seen yet shows whether it waits at all."""
    memory, config = work.plan.memory, work.site.config
    n = work.items.n
    run = Overlap(work.one, n, config.max_workers)
    level = min(n, memory.get("level", config.max_workers), config.max_workers)
    if config.measure and not memory.get("waits"):
        if not run.first_waits():
            run.finish()
            if 0 in run.errors:
                raise _failed(work, run)
            return Miss(1, run.results[0]) if work.site.text.may_go_on else _one_by_one(work, run)
        memory["waits"] = True
        run.limit = n
        level -= 1
    began = clock()
    run.start(level - 1)
    run.finish()
    work.plan.last = "threads"
    work.site.took("threads")
    if run.errors and crowded(run.errors[min(run.errors)]):
        memory["level"] = max(2, level // 2)
        return _one_by_one(work, run)
    if run.errors:
        raise _failed(work, run)
    if config.measure:
        _learn(memory, run, n, clock() - began, config.max_workers)
    return [v for i in range(n) for v in run.results[i]]


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


def _learn(memory: dict[str, Any], run: Overlap, n: int, seconds: float, most: int) -> None:
    """Fewer at a time where each then takes much longer: the other side does not bear it. More again
    later."""
    mean = sum(run.seconds) / len(run.seconds)
    best = memory["best"] = min(mean, memory.get("best", mean) * 1.02)
    level = memory.get("level", most)
    if mean > 3 * best and n > 2:
        memory["level"] = max(2, level // 2)
    elif level < most:
        memory["level"] = min(most, level + max(1, level // 8))
    if mean < CHEAP / 4:
        memory["waits"] = False
