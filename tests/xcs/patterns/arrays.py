"""Loops over arrays of NumPy."""

import numpy as np

from wide_compiler.xcs import module

from ._table import pattern

WEIGHTS = np.linspace(-1.0, 1.0, 16)
MATRIX = np.linspace(-1.0, 1.0, 16 * 8).reshape(16, 8)


def rows(n=24, width=16):
    return (list(np.random.default_rng(0).normal(size=(n, width))),)


def matrix(n=24):
    return (np.random.default_rng(0).normal(size=(n, 16)),)


def two(n=24):
    return rows(n)[0], rows(n)[0][::-1]


def ragged(n=24):
    return ([np.arange(1.0, 2.0 + i % 3) for i in range(n)],)


def objects(n=24):
    return ([np.array([1, "a", None], dtype=object) for _ in range(n)],)


def integers(n=24):
    return (list(np.arange(n * 6).reshape(n, 6)),)


def float32(n=24):
    return (list(np.random.default_rng(0).normal(size=(n, 16)).astype(np.float32)),)


@module
class Scorer:
    weights: np.ndarray
    bias: float = 0.0

    def __call__(self, embedding: np.ndarray) -> float:
        return float(embedding @ self.weights + self.bias)


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def normalise(x):
    return x / np.linalg.norm(x)


def standardise(x):
    return (x - x.mean()) / (x.std() + 1e-6)


@pattern("numpy lanes", rows)
def scorer(xs):
    """A module called in a comprehension."""
    score = Scorer(weights=WEIGHTS, bias=0.5)
    return [score(x) for x in xs]


@pattern("numpy lanes", rows)
def scorer_of_normalised(xs):
    """One vectorised site feeding another."""
    score = Scorer(weights=WEIGHTS)
    unit = [normalise(x) for x in xs]
    return [score(u) for u in unit]


@pattern("numpy lanes", rows)
def softmax_rows(xs):
    """Softmax of each row."""
    return [softmax(x) for x in xs]


@pattern("numpy lanes", rows)
def standardise_rows(xs):
    """Standardise each row."""
    return [standardise(x) for x in xs]


@pattern("numpy lanes", matrix)
def rows_of_a_matrix(m):
    """The rows of a matrix, normalised."""
    return [normalise(row) for row in m]


@pattern("numpy lanes", two)
def zipped_arrays(xs, ys):
    """zip of two lists of arrays."""
    return [float(x @ y) for x, y in zip(xs, ys)]  # noqa: B905


@pattern("numpy lanes", rows)
def enumerated_arrays(xs):
    """enumerate over arrays."""
    return [x * i for i, x in enumerate(xs)]


@pattern("numpy lanes", rows)
def projected(xs):
    """A matrix product with a shared matrix."""
    return [np.tanh(x @ MATRIX) for x in xs]


@pattern("numpy lanes", rows)
def tuple_results(xs):
    """A tuple of results for each item."""
    return [(x.mean(), x.std(), x.argmax()) for x in xs]


@pattern("numpy lanes", rows)
def dict_of_arrays(xs):
    """A dict comprehension with arrays as values."""
    return {i: x - x.mean() for i, x in enumerate(xs)}


@pattern("numpy lanes", rows)
def filtered_arrays(xs):
    """A comprehension with a test."""
    return [x * 2 for x in xs if x[0] > 0]


def clipped(x):
    if x[0] > 1.5:
        return np.zeros_like(x)
    return x * 0.5


@pattern("numpy lanes", rows)
def rare_branch(xs):
    """A branch that few items take."""
    return [clipped(x) for x in xs]


@pattern("numpy lanes", rows)
def appended_arrays(xs):
    """A loop that computes, then appends."""
    out = []
    for x in xs:
        centred = x - x.mean()
        scale = np.sqrt((centred * centred).sum())
        out.append(centred / scale)
    return out


@pattern("numpy lanes", float32)
def single_precision(xs):
    """Arrays of float32."""
    return [x * 0.5 + 1 for x in xs]


@pattern("numpy lanes", integers)
def integer_arrays(xs):
    """Arrays of integers, to the last digit."""
    return [x * 3 - 1 for x in xs]


@pattern("numpy lanes", rows)
def in_place_on_fresh(xs):
    """In-place arithmetic on an array the body has made."""
    out = []
    for x in xs:
        y = x * 2.0
        y += 1.0
        out.append(y)
    return out


@pattern("numpy lanes", rows)
def in_place_on_items(xs):
    """In-place arithmetic on the items themselves."""
    for x in xs:
        x += 1.0
    return [x for x in xs]  # noqa: C416


@pattern("plain", rows)
def views_of_items(xs):
    """Results that are views of the items."""
    return [x[2:5] for x in xs]


@pattern("numpy lanes", rows)
def items_themselves(xs):
    """Results that are the items themselves."""
    return [x for x in xs]  # noqa: C416


@pattern("plain", ragged)
def ragged_shapes(xs):
    """Arrays of different lengths."""
    return [x * 2 for x in xs]


@pattern("plain", objects)
def object_arrays(xs):
    """Arrays of Python objects."""
    return [x + x for x in xs if len(x) > 5]


def with_zeros(n=24):
    arrays = rows(n)[0]
    arrays[3] = np.zeros(16)
    return (arrays,)


@pattern("plain", with_zeros)
def division_by_zero_row(xs):
    """A row of zeros, which NumPy warns of."""
    return [x / x.sum() for x in xs]


def shared_results(x, shared=np.ones(3)):  # noqa: B008
    return shared


@pattern("plain", rows)
def shared_mutable_result(xs):
    """One shared mutable object as every result."""
    return [shared_results(x) for x in xs]


@pattern("plain", rows)
def mapped(xs):
    """map, made a list."""
    return list(map(softmax, xs))


@pattern("numpy lanes", rows)
def best_of_all(xs):
    """The best of all rows and where it is, to the last digit."""
    return max((float(x @ WEIGHTS), i) for i, x in enumerate(xs))


class Keeper:
    def __init__(self):
        self.__weights = WEIGHTS

    def __score(self, x):
        return x @ self.__weights

    def scores(self, xs):
        """A method with private names."""
        return [self.__score(x) for x in xs]


pattern("numpy lanes", lambda n=24: (Keeper(), *rows(n)))(Keeper.scores)
