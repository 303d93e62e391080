"""Numbers of lanes are those of plain Python, bit by bit, whatever cancels or rounds in them."""

import math

import numpy as np
import pytest

from wide_compiler.xcs import Config, jit
from wide_compiler.xcs.lanes.operators import Lane

W = np.random.default_rng(1).normal(size=64)
MATRIX = np.random.default_rng(2).normal(size=(7, 64))

BODIES = {
    "sum": lambda x: x.sum(),
    "mean": lambda x: x.mean(),
    "product": lambda x: x @ W,
    "with itself": lambda x: x @ x,
    "length": lambda x: np.linalg.norm(x),
    "deviation": lambda x: x.std(),
    "variance": lambda x: x.var(ddof=1),
    "sum of functions": lambda x: np.tanh(x).sum() + np.sin(x).sum(),
    "root": lambda x: np.sqrt(x @ x),
    "quotient": lambda x: x.sum() / (x @ x),
    "difference": lambda x: (x - x.mean()).sum() - x[0],
    "of a row": lambda x: (x * x.sum())[3],
    "largest": lambda x: (x / np.linalg.norm(x)).max(),
    "squares": lambda x: np.square(x.sum()) - abs(x.mean()),
    "exponential": lambda x: np.exp(-abs(x.mean())),
    "a matrix": lambda x: (MATRIX.astype(x.dtype) @ x).sum(),
    "by a matrix": lambda x: np.tanh(x @ MATRIX.astype(x.dtype).T)[2] * 3.0,
    "logarithm": lambda x: np.log(x @ x),
}


def families():
    """Ordinary rows, rows in which large numbers cancel, tiny and huge ones."""
    rng = np.random.default_rng(0)
    ordinary = rng.normal(size=(200, 64))
    cancelling = rng.normal(size=(200, 64))
    for row in cancelling:
        first, second = rng.choice(64, 2, replace=False)
        row[first], row[second] = 1e16, -1e16
    return {
        "ordinary": ordinary,
        "cancelling": cancelling,
        "tiny": 1e-200 * ordinary,
        "huge": 1e100 * ordinary,
    }


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("family", ["ordinary", "cancelling", "tiny", "huge"])
@pytest.mark.parametrize("name", BODIES)
def test_lanes_are_plain_python_s_bit_by_bit(name, family, dtype):
    rows = families()[family]
    if dtype is np.float32 and family in ("tiny", "huge"):
        rows = np.sign(rows) * np.abs(rows) ** 0.05
    rows = rows.astype(dtype)
    with np.errstate(all="ignore"):
        lane = BODIES[name](Lane(rows, "array", fresh=False))
        plain = np.array([BODIES[name](row) for row in rows])
        assert lane.data.tobytes() == plain.tobytes()


def test_truths_are_those_of_every_item_whatever_cancels():
    def run(rows, w):
        return [bool(row @ w > 0.5) for row in rows]

    fast = jit(run, config=Config(measure=False))
    ones = np.ones(64)
    for _ in range(2):
        assert fast(list(np.ones((6, 64))), ones) == [True] * 6
    for seed in range(100):
        rng = np.random.default_rng(seed)
        rows = rng.normal(size=(6, 64))
        rows[:, rng.integers(64)], rows[:, rng.integers(64)] = 1e16, -1e16
        assert fast(list(rows), ones) == run(list(rows), ones)
    for seed in range(100):
        rows = list(np.random.default_rng(seed).normal(size=(6, 64)))
        assert fast(rows, ones) == run(rows, ones)
    assert next(iter(fast.stats().values()))["numpy lanes"] >= 100


def test_a_branch_that_can_be_told_is_told():
    def run(rows):
        return [float(row.mean()) if row.std() > 0.9 else math.nan for row in rows]

    rows = list(np.random.default_rng(0).normal(size=(50, 64)))
    fast = jit(run, config=Config(measure=False))
    got, wanted = np.array(fast(rows)), np.array(run(rows))
    assert np.allclose(got, wanted, equal_nan=True) and np.isnan(wanted).any() and not np.isnan(wanted).all()
    assert next(iter(fast.stats().values()))["numpy lanes"] == 1
