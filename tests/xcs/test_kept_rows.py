"""Rows lie in blocks: nothing of a call is kept after it, nor more than a block by one row."""

import gc
import itertools
import weakref

import numpy as np
import pytest

from wide_compiler.xcs import Config, jit
from wide_compiler.xcs.lanes import results
from xcs import oracle

NOW = Config(measure=False)
ROWS = [np.linspace(0.1 * i, 1.0 + i, 4) for i in range(9)]
SEEN = []


def taken(fast, rung="numpy lanes"):
    return [counts.get(rung, 0) for counts in fast.stats().values()]


def notes(y):
    SEEN.append(weakref.ref(y))
    return float(y[0])


def to_effects(xs):
    ys = [np.sqrt(x * x + 1.0) for x in xs]
    return [notes(y) for y in ys]


def to_an_error(xs):
    ys = [np.sqrt(x * x + 1.0) for x in xs]
    return notes(None) + sum(np.tanh(y).sum() for y in ys)


def test_nothing_of_a_call_is_kept_after_it():
    fast, before = jit(to_effects, config=NOW), _lists()
    fast(ROWS)
    resting = fast.__xcs__.sites[1]
    resting.schedule.left = itertools.repeat(None)  # not looked at any more, as the clock would say
    SEEN.clear()
    fast(ROWS)
    assert taken(fast)[0] == 2 and len(SEEN) == len(ROWS)
    assert all(row() is None for row in SEEN) and _lists() == before


def test_nothing_of_a_call_that_raised_is_kept_after_it():
    fast, before = jit(to_an_error, config=NOW), _lists()
    with pytest.raises(TypeError):
        fast(ROWS)
    assert taken(fast)[0] == 1 and _lists() == before


def _lists():
    """How many lists of as many arrays there are."""
    gc.collect()
    kept = [held for held in gc.get_objects() if type(held) is list and len(held) == len(ROWS)]
    return sum(all(type(v) is np.ndarray for v in held) for held in kept)


def outer(xs):
    return [np.outer(x, x) for x in xs]


def outer_of_parts(xs):
    return [x[:, None] * x[None, :] for x in xs]


def outer_twice(xs):
    return [(np.outer(x, x), [np.outer(x, x + 1.0)]) for x in xs]


def outer_handed_on(xs):
    ys = [x[:, None] * x[None, :] for x in xs]
    return [y + 1.0 for y in ys]


def wholes(found):
    """The bytes that each array of a result keeps."""
    for part in found:
        if type(part) is not np.ndarray:
            yield from wholes(part)
            continue
        while part.base is not None:
            part = part.base
        yield part.nbytes


@pytest.mark.parametrize("n, size", [(40, 16), (700, 16), (9, 64)])
@pytest.mark.parametrize("run", [outer, outer_of_parts, outer_twice, outer_handed_on])
def test_a_row_keeps_no_more_than_a_block(run, n, size, monkeypatch):
    monkeypatch.setattr(results, "BLOCK_BYTES", 2**14)  # of eight rows, where one row is not larger
    rng = np.random.default_rng(0)
    xs, fast = [rng.normal(size=size) for _ in range(n)], jit(run, config=NOW)
    for _ in range(3):  # by itself, then by its tape
        found = fast(xs)
        assert oracle.same(found, run(xs), rtol=1e-9)
        assert max(wholes(found)) <= max(2**14, size * size * 8)
    assert min(taken(fast)) == 3
