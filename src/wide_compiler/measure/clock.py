"""Interleaved timing: on a shared machine only timings taken in turns are comparable."""

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

# Bound at import, so that user code that patches `time` does not affect measurements.
now, cpu_time = time.perf_counter, time.thread_time

# A sample shorter than this is dominated by clock noise, so short calls are repeated within one sample.
SAMPLE_SECONDS = 3e-4
# On a GPU a sample ends with a synchronisation. A longer run of calls is closer to a user's loop, in which
# launches of small models overlap with the work of earlier calls.
GPU_SAMPLE_SECONDS = 2e-3
MAX_REPEATS = 200

# Signs of load from other processes. On an idle machine samples spread by a few percent, and the load average
# is at most the number of threads of this process.
BUSY_SPREAD = 0.3
BUSY_LOAD = 1.2  # runnable threads per core
# GPU memory held neither by PyTorch's allocator nor by this process's CUDA context and libraries.
BUSY_GPU_BYTES = 4 * 2**30

Calls = Mapping[str, Callable[[], Any]]


@dataclass
class Times:
    """Median seconds of each candidate, and signs of load while they were measured ('' if none)."""

    seconds: dict[str, float]
    busy: str = ""


class Clock:
    """The system clock. Tests replace it with `use_clock`."""

    def once(self, call: Callable[[], Any], cuda: bool) -> float:
        """Return the seconds of one call."""
        return _sample(call, 1, cuda)

    def turns(self, candidates: Calls, seconds: float, cuda: bool = False, **options: Any) -> Times:
        """Time the candidates in turns; `options` are those of `interleaved`."""
        samples = _samples(candidates, seconds, cuda, **options)
        return Times(_medians(samples), busy(samples, cuda))


_current: ContextVar[Clock] = ContextVar("wide_compiler_clock", default=Clock())  # noqa: B039 - it has no state
current_clock = _current.get


@contextlib.contextmanager
def use_clock(clock: Clock) -> Iterator[Clock]:
    """Context manager that makes contests use `clock`."""
    token = _current.set(clock)
    try:
        yield clock
    finally:
        _current.reset(token)


def interleaved(candidates: Calls, seconds: float, cuda: bool = False, **options: Any) -> dict[str, float]:
    """Return the median seconds per call of each candidate; each must be warmed up.

    Every round times each candidate once, so that load affects all of them. There are at least
    `rounds_at_least` rounds (3), and none starts after `seconds`. After two rounds, candidates slower than
    `hopeless` times the best are dropped. `sample_seconds` is the minimum length of a sample of repeated
    calls. With `timer=cpu_time`, the time of this thread on a core counts instead of the time that passes.

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
    timer: Callable[[], float] | None = None,
) -> dict[str, list[float]]:
    sample_seconds = sample_seconds or (GPU_SAMPLE_SECONDS if cuda else SAMPLE_SECONDS)
    started = now()
    repeats: dict[str, int] = {}
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    running = list(candidates)
    rounds = 0
    while rounds < rounds_at_least or now() - started < seconds:
        # Alternate the direction, so that a drift in clock speed affects all candidates alike.
        for name in running if rounds % 2 == 0 else reversed(running):
            sample = _sample(candidates[name], repeats.get(name, 1), cuda, timer)
            samples[name].append(sample)
            wanted = sample_seconds / max(sample, 1e-9)
            repeats[name] = max(1, min(MAX_REPEATS, int(wanted)))
        rounds += 1
        if on_round is not None:
            on_round(rounds)
        if hopeless is not None and rounds >= 2:
            best = min(min(taken) for taken in samples.values())
            running = [name for name in running if min(samples[name]) <= hopeless * best]
    # Drop the first sample: it only determined the repeat count, and is as noisy as a single call.
    return {name: taken[1:] for name, taken in samples.items()}


def _medians(samples: dict[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(taken) for name, taken in samples.items()}


def _sample(
    call: Callable[[], Any], repeats: int, cuda: bool, timer: Callable[[], float] | None = None
) -> float:
    timer = timer or now
    if cuda:
        torch.cuda.synchronize()
    start = timer()
    for _ in range(repeats):
        call()
    if cuda:
        torch.cuda.synchronize()
    return (timer() - start) / repeats


def busy(samples: dict[str, list[float]], cuda: bool) -> str:
    """Return a sign that the samples were taken under load; '' if there is none."""
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
    """Return the interquartile range as a share of the median."""
    first, median, third = statistics.quantiles(samples, n=4)
    return (third - first) / max(median, 1e-12)


def best_medians(
    clock: Callable[[], dict[str, float]],
    settled: Callable[[dict[str, float]], bool],
    least: int = 3,
    most: int = 8,
) -> tuple[dict[str, float], int]:
    """Return the minimum of repeated medians per candidate, and the number of repetitions.

    The minimum discards load from other processes. `settled` tells whether the times so far are conclusive;
    if never, `most` repetitions are made.
    """
    times = clock()
    for tries in range(2, most + 1):
        again = clock()
        times = {name: min(taken, again[name]) for name, taken in times.items()}
        if tries >= least and settled(times):
            break
    return times, tries
