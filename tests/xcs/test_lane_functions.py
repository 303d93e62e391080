"""NumPy's functions on lanes: by a rule or item by item, the numbers are those of each item, bit by bit."""

import numpy as np
import pytest

from wide_compiler.xcs import Config, jit
from xcs import oracle

RNG = np.random.default_rng(0)
ROWS = list(RNG.normal(size=(40, 12)))
SQUARES = list(RNG.normal(size=(40, 4, 4)) + 4 * np.eye(4))
KERNEL = np.array([0.5, 0.25, 0.25])
GRID = RNG.normal(size=(60, 50))

OF_ROWS = {
    "diff": lambda x: np.diff(x), "second difference": lambda x: np.diff(x, 2),
    "running sum": lambda x: np.cumsum(x), "running product": lambda x: np.cumprod(x),
    "convolution": lambda x: np.convolve(x, KERNEL, mode="valid"),
    "histogram": lambda x: np.histogram(x, bins=5, range=(-1.0, 1.0)),
    "percentiles": lambda x: np.percentile(x, [5, 50, 95]), "one percentile": lambda x: np.percentile(x, 30),
    "median": lambda x: np.median(x), "clipped": lambda x: np.clip(x, -0.5, 0.5),
    "in order": lambda x: np.take_along_axis(x, np.argsort(x), 0), "by an order": lambda x: x[np.argsort(x)],
    "spectrum": lambda x: np.abs(np.fft.rfft(x)), "rolled": lambda x: np.roll(x, 2), "cubes": lambda x: x**3,
    "root": lambda x: np.abs(x) ** 0.5, "an array": lambda x: np.array([x[0], x.sum(), 1.0]),
    "a matrix": lambda x: np.array([[x[0], -x[1]], [x[1], x[0]]]), "joined": lambda x: np.hstack([x, KERNEL]),
    "sum of Python": lambda x: sum(x), "rounded": lambda x: round(float(x[0]), 2),
    "numbers of a row": lambda x: [v * 2 for v in x], "length": lambda x: np.linalg.norm(x),
    "place": lambda x: GRID[int(abs(x[0]) * 10), 3], "choice": lambda x: KERNEL[int(x.argmax()) % 3],
}  # fmt: skip
OF_SQUARES = {
    "solve": lambda a: np.linalg.solve(a, KERNEL4), "inverse": lambda a: np.linalg.inv(a),
    "determinant": lambda a: np.linalg.det(a), "largest": lambda a: a.max(axis=1),
    "size": lambda a: np.linalg.norm(a), "sums": lambda a: (a.sum(), a.sum(axis=0), a.mean(axis=1)),
    "product": lambda a: a @ a.T, "of a transpose": lambda a: a.T.sum(axis=0),
}  # fmt: skip
KERNEL4 = np.arange(4.0)


def check(body, items):
    def run(items):
        return [body(x) for x in items]

    fast = jit(run, config=Config(measure=False))
    oracle.compare(oracle.observe(run, (items,)), oracle.observe(fast, (items,)))
    return next(iter(fast.stats().values())).get("numpy lanes", 0)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", OF_ROWS)
def test_of_rows(name, dtype):
    assert check(OF_ROWS[name], [row.astype(dtype) for row in ROWS]) == 1


@pytest.mark.parametrize("name", OF_SQUARES)
def test_of_squares(name):
    assert check(OF_SQUARES[name], SQUARES) == 1


def test_parts_of_an_image():
    def run(img):
        return [img[i : i + 8, j : j + 8].std() for i in range(0, 48, 8) for j in range(0, 40, 8)]

    fast = jit(run, config=Config(measure=False))
    oracle.compare(oracle.observe(run, (GRID,)), oracle.observe(fast, (GRID,)), rtol=1e-9)
    assert next(iter(fast.stats().values()))["numpy lanes"] == 1
