"""Loops whose last statements carry names on to the next round, and loops that add to entries of a dict."""

import collections
import math

import numpy as np
import pytest

from wide_compiler.xcs import Config, jit
from xcs import oracle

ROWS = list(np.random.default_rng(0).normal(size=(50, 8)))
NOW = Config(measure=False)


def best(xs):
    where, top = None, -math.inf
    for i, x in enumerate(xs):
        score = float(x.sum())
        if score > top:
            where, top = i, score
    return where, top


def counted(xs):
    count, top = 0, 0.0
    for x in xs:
        largest = x.max()
        if largest > 1.0:
            count += 1
        top = max(top, largest)
    return count, top


def raising(xs):
    total = 0.0
    for x in xs:
        value = float(x[0])
        total = total / 0 if value > 1.0 else total + value
    return total


def smoothed(xs):
    level = None
    for x in xs:
        value = float(x[0])
        step = value if level is None else value - level
        level = step if level is None else level + 0.5 * step
    return level


def groups(xs):
    sums = collections.defaultdict(int)
    for i, x in enumerate(xs):
        sums[i % 3] += int(x.sum() > 0)
    return sums


def missing(xs):
    sums = {0: 1.0, 1: 0.0}
    for i, x in enumerate(xs):
        sums[i % 3] += float(x.sum())
    return sums


def used_after(xs):
    top = 0.0
    for x in xs:
        value = float(x[0])
        top = max(top, value)
    return top, value


def shadowed(xs):
    max = lambda a, b: 7  # noqa: E731
    top = 0.0
    for x in xs:
        value = float(x[0])
        top = max(top, value)
    return top


@pytest.mark.parametrize("run", [best, counted, raising, smoothed, groups, missing, used_after, shadowed])
def test_as_plain_python(run):
    fast = jit(run, config=NOW)
    for _ in range(2):
        oracle.compare(oracle.observe(run, (ROWS,)), oracle.observe(fast, (ROWS,)))
    lanes = sum(counts.get("numpy lanes", 0) for counts in fast.stats().values())
    assert lanes == (0 if run in (used_after, shadowed) else 2)


def test_objects_that_compare_in_their_own_way():
    class Threshold:
        asked = 0

        def __lt__(self, other):
            Threshold.asked += 1
            return False

    def run(xs, start):
        top = start
        for x in xs:
            value = float(x[0])
            if value > top:
                top = value
        return top

    fast, start = jit(run, config=NOW), Threshold()
    assert fast(ROWS, start) is start and Threshold.asked == len(ROWS)
    assert fast(ROWS, 0.0) == run(ROWS, 0.0)
    assert next(iter(fast.stats().values()))["numpy lanes"] == 1
