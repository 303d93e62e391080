"""Timing in turns. On a shared machine only timings taken side by side can be compared."""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

# A sample shorter than this drowns in the clock's own noise, so short calls are repeated within one sample.
SAMPLE_SECONDS = 3e-4
MAX_REPEATS = 200


def interleaved(
    candidates: Mapping[str, Callable[[], Any]],
    seconds: float,
    cuda: bool = False,
    hopeless: float | None = None,
    on_round: Callable[[int], None] | None = None,
    rounds_at_least: int = 3,
    sample_seconds: float = SAMPLE_SECONDS,
) -> dict[str, float]:
    """The median seconds per call of each candidate.

    Every round times each candidate once, so that whatever slows the machine slows all of them. There are at
    least `rounds_at_least`, and no more once `seconds` are spent.

    Args:
        candidates: by name; each has been called at least once already (it is warm).
        seconds: the time to spend, all in all.
        cuda: wait for the GPU before and after each sample.
        hopeless: from the third round on leave out whoever takes more than this multiple of the best.
        on_round: told the number of each round that is done.
        sample_seconds: how long calls follow each other before the clock is read. On a GPU, where the clock
            waits for the last of them, a longer row of calls is what a user's own loop looks like.

    >>> times = interleaved({"short": lambda: sum(range(10)), "long": lambda: sum(range(9000))}, 0.01)
    >>> times["short"] < times["long"]
    True
    """
    started = time.perf_counter()
    repeats: dict[str, int] = {}
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    running = list(candidates)
    rounds = 0
    while rounds < rounds_at_least or time.perf_counter() - started < seconds:
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
    return {name: statistics.median(taken[1:]) for name, taken in samples.items()}


def best_medians(
    clock: Callable[[], dict[str, float]],
    settled: Callable[[dict[str, float]], bool],
    least: int = 3,
    most: int = 8,
) -> tuple[dict[str, float], int]:
    """The best of several medians of each candidate, and of how many: somebody else's work on the machine is
    nobody's own time.

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


def _sample(call: Callable[[], Any], repeats: int, cuda: bool) -> float:
    if cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    if cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats
