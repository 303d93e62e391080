"""Long loops run in parts: results are those of every item, whatever the parts look like."""

import math
import warnings

import numpy as np
import pytest

from wide_compiler.xcs import Config, jit
from wide_compiler.xcs.lanes import gather
from xcs import oracle

N = 1500
PART = 256  # the least that a part has


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(gather, "CHUNK_BYTES", 1)


def rows(n=N, size=6, dtype=float, shift=0.0):
    return list((np.random.default_rng(0).normal(size=(n, size)) + shift).astype(dtype))


W = np.random.default_rng(1).normal(size=6)
M = np.random.default_rng(2).normal(size=(6, 3))


def in_place(x):
    y = x * 2.0
    y[0] = 1.0
    y += x
    return y


def branching(x):
    return x * 2.0 if x.sum() > 0.0 else x - 1.0


def same_branch(x):
    return x * 2.0 if x.max() > -100.0 else x - 1.0


BODIES = {
    "softmax": lambda x: np.exp(x - x.max()) / np.exp(x - x.max()).sum(),
    "standardise": lambda x: (x - x.mean()) / x.std(),
    "normalise": lambda x: x / np.linalg.norm(x),
    "a constant": lambda x: x * 2.0 + W,
    "score": lambda x: float(x @ W + 0.5),
    "score of NumPy": lambda x: x @ W,
    "score of Python": lambda x: float(x @ W) * 2.0 + 1.0,
    "matrix": lambda x: x @ M,
    "reflected": lambda x: M.T @ x,
    "by itself": lambda x: x @ x,
    "parts": lambda x: np.concatenate([x[1:], x[:2]]) * x[0],
    "shapes": lambda x: (x.reshape(2, 3).T @ x.reshape(2, 3)).astype("float32"),
    "running": lambda x: np.cumsum(x) + np.sort(x),
    "outer": lambda x: np.outer(x, x) - np.mean(x),
    "truth of each number": lambda x: (x > 0.5) & (x < 2.0),
    "clipped": lambda x: np.clip(x, -0.5, 0.5),
}
DECIDING = {
    "a branch": branching,
    "a branch that all take": same_branch,
    "in place": in_place,
    "an integer": lambda x: x.shape[0] * (x > 0.0).sum(),
    "whole numbers": lambda x: math.floor(x[0]) + 1,
    "a tuple": lambda x: (x * 2.0, float(x[0])),
    "the item itself": lambda x: x,
}


def taken(fast):
    return next(iter(fast.stats().values())).get("numpy lanes", 0)


def check(body, items):
    def run(items):
        return [body(x) for x in items]

    fast = jit(run, config=Config(measure=False))
    for _ in range(3):
        oracle.compare(oracle.observe(run, (items,)), oracle.observe(fast, (items,)), rtol=1e-9)
    return fast


@pytest.mark.parametrize("name", BODIES)
def test_results_are_those_of_every_item(name):
    assert taken(check(BODIES[name], rows())) == 3


@pytest.mark.parametrize("name", DECIDING)
def test_numbers_that_decide_are_looked_at_in_every_part(name):
    check(DECIDING[name], rows())


@pytest.mark.parametrize("other", [{"dtype": np.float32}, {"size": 7}, {"dtype": np.int64, "shift": 9.0}])
def test_parts_of_another_kind_are_begun_anew(other):
    items = rows(2 * PART) + rows(2 * PART, **other)
    check(lambda x: (x - x.mean()) * 2.0, items)


def test_what_all_items_of_a_part_share():
    def run(items, scales):
        return [x * s for x, s in zip(items, scales, strict=True)]

    for scales in ([2.0] * (2 * PART) + [3.0] * (2 * PART), [W] * (2 * PART) + [W + 1.0] * (2 * PART)):
        fast = jit(run, config=Config(measure=False))
        for _ in range(2):
            items = rows(4 * PART)
            assert oracle.same(fast(items, scales), run(items, scales), rtol=1e-12)


def test_what_would_warn_in_a_later_part():
    items = rows(shift=100.0)
    body = np.sqrt

    def run(items):
        return [body(x) for x in items]

    fast = jit(run, config=Config(measure=False))
    assert oracle.same(fast(items), run(items))
    items[N - 1] = -items[N - 1]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert oracle.same(fast(items), run(items), rtol=1e-12)
    assert len(caught) == 2
    assert next(iter(fast.stats().values()))["numpy lanes"] == 1


def test_rows_of_all_parts_have_places_of_their_own():
    def run(items):
        return [x * 2.0 for x in items]

    fast = jit(run, config=Config(measure=False))
    items = rows()
    got = fast(items)
    for i, row in enumerate(got):
        row[:] = i
    assert all((row == i).all() for i, row in enumerate(got))
    assert oracle.same(fast(items), run(items))


def test_sets_and_keys_of_rounded_numbers_stay_with_python():
    def run(items):
        return {float(x @ W) for x in items}, {float(x @ W): i for i, x in enumerate(items)}

    fast = jit(run, config=Config(measure=False))
    items = rows()
    assert fast(items) == run(items)
