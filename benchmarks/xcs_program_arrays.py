"""Programs of the page `xcs_programs.md` that use NumPy: each a function and what it is called with."""

import collections
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

Program = tuple[Callable[..., Any], Callable[[np.random.Generator], tuple[Any, ...]]]
PROGRAMS: dict[str, Program] = {}


def program(name: str, make: Callable[[np.random.Generator], tuple[Any, ...]]) -> Callable[[Any], Any]:
    """Adds a function to the page; `make` gives its arguments."""

    def add(fn: Any) -> Any:
        PROGRAMS[name] = (fn, make)
        return fn

    return add


def rows(count: int, length: int) -> Callable[[np.random.Generator], tuple[Any, ...]]:
    return lambda rng: (list(rng.normal(size=(count, length))),)


@program("features of rows", rows(500, 64))
def row_features(table):
    features = []
    for row in table:
        centred = row - row.mean()
        spread = row.std()
        skew = float((centred**3).mean() / (spread**3 + 1e-12))
        features.append((float(row.min()), float(row.max()), float(spread), skew))
    return features


def roughness(signal):
    steps = np.diff(signal)
    crossings = np.sum(np.abs(np.diff(np.sign(signal)))) / 2
    return np.array([np.abs(steps).mean(), steps.std(), crossings])


@program("roughness of signals (diff)", rows(400, 128))
def rough_features(signals):
    return [roughness(s) for s in signals]


@program("patches of an image", lambda rng: (rng.random((192, 192)),))
def patches(img):
    height, width = img.shape
    return [img[i : i + 8, j : j + 8].mean() for i in range(0, height, 8) for j in range(0, width, 8)]


@program(
    "Monte Carlo option price, drawn before",
    lambda rng: (rng.normal(size=(600, 50)), 100.0, 105.0, 0.2, 0.02),
)
def option_price(draws, start, strike, sigma, rate):
    dt = 1.0 / draws.shape[1]
    total = 0.0
    for z in draws:
        path = start * np.exp(np.cumsum((rate - 0.5 * sigma**2) * dt + sigma * math.sqrt(dt) * z))
        total += max(float(path[-1]) - strike, 0.0)
    return math.exp(-rate) * total / len(draws)


@program(
    "similarity of documents to a query", lambda rng: (rng.normal(size=64), list(rng.normal(size=(600, 64))))
)
def similarities(query, documents):
    return [float(np.dot(query, d) / (np.linalg.norm(query) * np.linalg.norm(d))) for d in documents]


@program("moving averages (convolve)", rows(1000, 200))
def moving_averages(signals):
    kernel = np.ones(9) / 9
    return [np.convolve(s, kernel, mode="valid") for s in signals]


@program("percentiles of rows", rows(200, 100))
def percentiles(table):
    return [np.percentile(row, [5, 50, 95]) for row in table]


@program("histograms of rows", rows(250, 128))
def histograms(table):
    return [np.histogram(row, bins=16, range=(-3.0, 3.0))[0] for row in table]


@program("strongest frequencies (FFT)", rows(400, 256))
def strongest(signals):
    found = []
    for signal in signals:
        spectrum = np.abs(np.fft.rfft(signal - signal.mean()))
        found.append(int(spectrum.argmax()))
    return found


@program(
    "small linear systems",
    lambda rng: (list(rng.normal(size=(500, 4, 4)) + 4 * np.eye(4)), list(rng.normal(size=(500, 4)))),
)
def solve_systems(matrices, vectors):
    return [np.linalg.solve(a, b) for a, b in zip(matrices, vectors, strict=True)]


@program("nearest centre", lambda rng: (list(rng.normal(size=(600, 8))), rng.normal(size=(12, 8))))
def nearest_centres(points, centres):
    return [int(np.argmin(((centres - p) ** 2).sum(axis=1))) for p in points]


@program(
    "neighbours vote",
    lambda rng: (list(rng.normal(size=(200, 6))), rng.normal(size=(150, 6)), rng.integers(0, 3, 150)),
)
def neighbours_vote(points, known, labels):
    votes = []
    for p in points:
        distance = np.sqrt(((known - p) ** 2).sum(axis=1))
        nearest = labels[np.argsort(distance)[:5]]
        votes.append(int(np.bincount(nearest, minlength=3).argmax()))
    return votes


@program("areas of polygons", lambda rng: (list(rng.random((500, 12, 2))),))
def polygon_areas(polygons):
    areas = []
    for polygon in polygons:
        x, y = polygon[:, 0], polygon[:, 1]
        areas.append(0.5 * abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1))))
    return areas


@program("rotations of points by angles", lambda rng: (rng.random(1000).tolist(), rng.random((2, 30))))
def rotations(angles, points):
    turned = []
    for angle in angles:
        c, s = np.cos(angle), np.sin(angle)
        turned.append(np.array([[c, -s], [s, c]]) @ points)
    return turned


@program("bootstrap means", lambda rng: (rng.normal(size=300), list(rng.integers(0, 300, (500, 300)))))
def bootstrap(sample, draws):
    means = [sample[index].mean() for index in draws]
    return np.percentile(means, [2.5, 97.5])


@program("rows that spread widely (filter)", rows(600, 48))
def wide_rows(table):
    return [i for i, row in enumerate(table) if row.std() > 1.0]


@dataclass
class Reading:
    sensor: str
    gain: float
    values: np.ndarray


@program(
    "records with arrays (dataclass)",
    lambda rng: (
        [
            Reading(f"s{i}", float(g), v)
            for i, (g, v) in enumerate(zip(rng.random(400), rng.normal(size=(400, 40)), strict=True))
        ],
    ),
)
def calibrated(readings):
    return [(r.gain * np.clip(r.values, -2.0, 2.0)).sum() for r in readings]


class Sample(NamedTuple):
    time: float
    low: np.ndarray
    high: np.ndarray


@program(
    "named tuples of arrays",
    lambda rng: (
        [
            Sample(float(t), a, a + b)
            for t, a, b in zip(
                rng.random(400), rng.normal(size=(400, 24)), rng.random((400, 24)), strict=True
            )
        ],
    ),
)
def ranges(samples):
    return {round(s.time, 6): float((s.high - s.low).mean()) for s in samples}


@program("three passes over rows", rows(500, 40))
def three_passes(table):
    centred = [row - row.mean() for row in table]
    scaled = [row / (np.abs(row).max() + 1e-9) for row in centred]
    return [float((row * row).sum()) for row in scaled]


@program("smoothing of series", rows(300, 60))
def smoothed(table):
    out = []
    for series in table:
        level = series[0]
        for value in series[1:]:
            level = 0.3 * value + 0.7 * level
        out.append(float(level))
    return out


@program("sums by group (dict)", lambda rng: (rng.integers(0, 20, 2000).tolist(), rng.normal(size=(2000, 8))))
def group_sums(keys, values):
    sums = collections.defaultdict(float)
    for key, value in zip(keys, values, strict=True):
        sums[key] += float(value.sum())
    return dict(sums)


@program(
    "sequences of many lengths, padded",
    lambda rng: ([rng.normal(size=int(k)) for k in rng.integers(5, 40, 400)],),
)
def padded(sequences):
    longest = max(len(s) for s in sequences)
    return np.stack([np.pad(s, (0, longest - len(s))) for s in sequences])


def one_item(row):
    return (row - row.mean()) / (row.std() + 1e-9)


@program("best row by score (running maximum)", rows(500, 32))
def best_row(table):
    best, best_score = -1, -math.inf
    for i, row in enumerate(table):
        score = float(np.abs(one_item(row)).sum())
        if score > best_score:
            best, best_score = i, score
    return best, best_score
