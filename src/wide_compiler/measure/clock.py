"""Timing in turns. On a shared machine only timings taken side by side can be compared."""

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

# Bound once, so that user code that patches `time` does not change what is measured.
now, cpu_time = time.perf_counter, time.thread_time

# A sample shorter than this drowns in the clock's own noise, so short calls are repeated within one sample.
SAMPLE_SECONDS = 3e-4
# On a GPU the clock waits for the last call of a sample. A longer row of calls is what a user's loop looks
# like: the launches of small models overlap with the work of the calls before.
GPU_SAMPLE_SECONDS = 2e-3
MAX_REPEATS = 200

# Signs of other work on the machine. Quiet machines show a spread of a few percent, and a load average of no
# more than the threads of this process.
BUSY_SPREAD = 0.3
BUSY_LOAD = 1.2  # runnable threads per core
# Memory that neither PyTorch's allocator nor the CUDA context and libraries of this process hold.
BUSY_GPU_BYTES = 4 * 2**30

Calls = Mapping[str, Callable[[], Any]]


@dataclass
class Times:
    """Median seconds of each candidate, and signs of load while they were taken ('' if there were none)."""

    seconds: dict[str, float]
    busy: str = ""


class Clock:
    """The machine's clock. Tests of decisions hold one of their own, see `use_clock`."""

    def once(self, call: Callable[[], Any], cuda: bool) -> float:
        """Seconds of one call."""
        return _sample(call, 1, cuda)

    def turns(self, candidates: Calls, seconds: float, cuda: bool = False, **options: Any) -> Times:
        """The candidates timed in turns; `options` are those of `interleaved`."""
        samples = _samples(candidates, seconds, cuda, **options)
        return Times(_medians(samples), busy(samples, cuda))


_current: ContextVar[Clock] = ContextVar("wide_compiler_clock", default=Clock())  # noqa: B039 - it has no state
current_clock = _current.get


@contextlib.contextmanager
def use_clock(clock: Clock) -> Iterator[Clock]:
    """Decisions in this context are taken by `clock`."""
    token = _current.set(clock)
    try:
        yield clock
    finally:
        _current.reset(token)


def interleaved(candidates: Calls, seconds: float, cuda: bool = False, **options: Any) -> dict[str, float]:
    """The median seconds per call of each candidate.

    Every round times each candidate once, so that whatever slows the machine slows all of them. There are at
    least `rounds_at_least` rounds, and no more once `seconds` are spent.

    Args:
        candidates: by name; each has been called at least once already (it is warm).
        seconds: the time to spend, all in all.
        cuda: wait for the GPU before and after each sample.
        hopeless: after two rounds leave out candidates slower than this multiple of the best.
        on_round: called with the number of each round that is done.
        rounds_at_least: 3 unless given.
        sample_seconds: how long calls follow each other before the clock is read.

    >>> times = interleaved({"short": lambda: sum(range(10)), "long": lambda: sum(range(9000))}, 0.01)
    >>> times["short"] < times["long"]
    True
    """
    return _medians(_samples(candidates, seconds, cuda, **options))


def _samples(
    candidates: Calls,
    seconds: float,
    cuda: bool,
    hopeless: float | None = None,
    on_round: Callable[[int], None] | None = None,
    rounds_at_least: int = 3,
    sample_seconds: float | None = None,
) -> dict[str, list[float]]:
    sample_seconds = sample_seconds or (GPU_SAMPLE_SECONDS if cuda else SAMPLE_SECONDS)
    started = now()
    repeats: dict[str, int] = {}
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    running = list(candidates)
    rounds = 0
    while rounds < rounds_at_least or now() - started < seconds:
        # Each round in the other direction: a drift of the clock speed meets all alike.
        for name in running if rounds % 2 == 0 else reversed(running):
            sample = _sample(candidates[name], repeats.get(name, 1), cuda)
            samples[name].append(sample)
            wanted = sample_seconds / max(sample, 1e-9)
            repeats[name] = max(1, min(MAX_REPEATS, int(wanted)))
        rounds += 1
        if on_round is not None:
            on_round(rounds)
        if hopeless is not None and rounds >= 2:
            best = min(min(taken) for taken in samples.values())
            running = [name for name in running if min(samples[name]) <= hopeless * best]
    # The first sample of each found its repeat count, and is as noisy as a single call.
    return {name: taken[1:] for name, taken in samples.items()}


def _medians(samples: dict[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(taken) for name, taken in samples.items()}


def _sample(call: Callable[[], Any], repeats: int, cuda: bool) -> float:
    if cuda:
        torch.cuda.synchronize()
    start = now()
    for _ in range(repeats):
        call()
    if cuda:
        torch.cuda.synchronize()
    return (now() - start) / repeats


def busy(samples: dict[str, list[float]], cuda: bool) -> str:
    """Why these samples may be those of a machine under load; '' if nothing speaks for that."""
    spreads = [spread(taken) for taken in samples.values() if len(taken) >= 4]
    if spreads and statistics.median(spreads) > BUSY_SPREAD:
        return f"samples spread by {statistics.median(spreads):.0%}"
    cores, load = os.cpu_count() or 1, os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > BUSY_LOAD * cores:
        return f"load average {load:.1f} on {cores} cores"
    if cuda:
        free, total = torch.cuda.mem_get_info()
        others = total - free - torch.cuda.memory_reserved()
        if others > BUSY_GPU_BYTES:
            return f"other processes hold {others / 2**30:.0f} GiB of the GPU"
    return ""


def spread(samples: list[float]) -> float:
    """From the first to the third quartile, as a share of the median."""
    first, median, third = statistics.quantiles(samples, n=4)
    return (third - first) / max(median, 1e-12)


def best_medians(
    clock: Callable[[], dict[str, float]],
    settled: Callable[[dict[str, float]], bool],
    least: int = 3,
    most: int = 8,
) -> tuple[dict[str, float], int]:
    """Minimum of repeated medians of each candidate, which discards load from other processes; and how many
    medians were taken.

    Args:
        clock: takes one median of all candidates.
        settled: whether the times found so far say what they are asked for; if not, `most` are taken.
    """
    times = clock()
    for tries in range(2, most + 1):
        again = clock()
        times = {name: min(taken, again[name]) for name, taken in times.items()}
        if tries >= least and settled(times):
            break
    return times, tries
