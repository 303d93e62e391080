"""What chooses among rounded numbers must choose as plain Python does: the largest, a truth, one of two."""

import warnings

import numpy as np
import pytest
import torch

from wide_compiler.xcs import Config, jit
from xcs import oracle

NOW = Config(measure=False)
WEIGHTS = np.random.default_rng(0).standard_normal(37)
MATRIX = np.random.default_rng(1).standard_normal((8, 8))


def score(x):
    return float(x @ WEIGHTS)


def rows(seed, n=3001, width=37):
    return list(np.random.default_rng(seed).standard_normal((n, width)))


def ran(fast, rung="numpy lanes"):
    return sum(counts.get(rung, 0) for counts in fast.stats().values())


def largest(xs):
    return max(score(x) for x in xs)


def smallest(xs):
    return min(x @ WEIGHTS for x in xs)


def best(xs):
    return max((score(x), i) for i, x in enumerate(xs))


def worst(xs):
    return min((i % 3, score(x), i) for i, x in enumerate(xs))


@pytest.mark.parametrize("plain", [largest, smallest, best])
def test_the_largest_is_the_very_number(plain):
    fast = jit(plain, config=NOW)
    for seed in range(20):
        xs = rows(seed, 3001 + seed)
        assert plain(xs) == fast(xs)
    assert ran(fast) == 20


def winners(xs):
    top = max(score(x) for x in xs)
    return [i for i, x in enumerate(xs) if score(x) == top]


def test_the_largest_is_found_again():
    fast = jit(winners, config=NOW)
    for seed in range(20):
        xs = rows(seed, 3001 + seed)
        assert winners(xs) == fast(xs)
    assert ran(fast) == 40


def in_order(xs):
    return sorted((score(x), i) for i, x in enumerate(xs))


@pytest.mark.parametrize("plain", [largest, best, worst, in_order])
def test_ties_are_decided_as_ever(plain):
    """Items that are equal are so in plain Python; in a batch one of them may come out larger."""
    fast = jit(plain, config=NOW)
    for seed in range(12):
        base, draw = rows(seed, 7), np.random.default_rng(seed)
        xs = [base[k] for k in draw.integers(7, size=4003 + seed)]
        assert plain(xs) == fast(xs)


def test_where_many_come_near():
    xs = rows(0, 40)
    fast = jit(largest, config=NOW)
    assert fast(xs) == largest(xs) and ran(fast) == 1
    many = [xs[0]] * 40
    assert fast(many) == largest(many) and ran(fast) == 2


def test_numbers_that_were_left_out_or_are_none():
    def positive(xs):
        return max(score(x) for x in xs if x[0] > 0.0)

    fast, xs = jit(positive, config=NOW), rows(3, 200)
    assert fast(xs) == positive(xs)
    xs[0][0] = np.nan
    for plain in (largest, best):
        assert oracle.same(plain(xs), jit(plain, config=NOW)(xs))


def active(xs):
    return [np.where(MATRIX @ x, 1.0, 0.0) for x in xs]


def full(xs):
    return [bool((MATRIX @ x).all()) for x in xs]


def true(xs):
    return [bool((MATRIX @ x)[0]) for x in xs]


def top(xs):
    return [(MATRIX @ x).max() for x in xs]


def one_of_two(xs):
    return [np.maximum(MATRIX @ x, x / 3) for x in xs]


@pytest.mark.parametrize("plain", [active, full, true, top, one_of_two])
@pytest.mark.parametrize("kind", [float, complex])
def test_a_truth_or_choice_from_products(plain, kind):
    """Of numbers that are nothing exactly, as solved for: a batch may make something of them."""
    draw = np.random.default_rng(0)
    wanted = draw.integers(-1, 2, (400, 8)).astype(kind)
    if kind is complex:
        wanted = wanted + 1j * draw.integers(-1, 2, (400, 8))
    xs = np.linalg.solve(MATRIX, wanted.T).T
    for given in (np.ascontiguousarray(xs), [x.copy() for x in xs]):
        fast = jit(plain, config=NOW)
        for _ in range(2):
            got, expected = fast(given), plain(given)
            assert np.array_equal(got, expected) or (plain in (top, one_of_two) and kind is float)
            assert np.allclose(got, expected)


def roots(xs):
    return [x ** (1 / 3) == torch.round(x ** (1 / 3)) for x in xs]


def finite(xs):
    return [torch.where(torch.isfinite(torch.sinh(x)), torch.sinh(x), torch.zeros(4)) for x in xs]


@pytest.mark.parametrize("plain", [roots, finite])
def test_floats_made_of_whole_tensors_are_rounded_too(plain):
    cubes = torch.arange(1, 41) ** 3 if plain is roots else torch.arange(-100, 100, 5)
    xs = list(cubes.reshape(-1, 4).repeat(16, 1))
    assert oracle.same(plain(xs), jit(plain, config=NOW)(xs))


def counted(xs):
    return [x + (x > np.uint8(100)) for x in xs]


def test_truths_added_to_small_integers_may_overflow():
    xs = list(np.arange(256, dtype=np.uint8))
    fast = jit(counted, config=NOW)
    with np.errstate(over="raise"):
        wanted, got = oracle.observe(counted, (xs,)), oracle.observe(fast, (xs,))
        assert isinstance(wanted.error, FloatingPointError)
        oracle.compare(wanted, got)
    oracle.compare(oracle.observe(counted, (xs,)), oracle.observe(fast, (xs,)))


def centred(xs):
    nothing = np.full(3, np.nan)
    return [x - np.nanmean(nothing) for x in xs]


def spread(xs):
    return [x.max().var(ddof=1) for x in xs]


def of_nothing(xs):
    return [x[:0].mean() for x in xs]


@pytest.mark.parametrize("plain", [centred, spread, of_nothing])
def test_what_warns_by_pythons_own_means_warns_each_time(plain):
    fast, xs = jit(plain, config=NOW), rows(0, 50, 3)
    for _ in range(3):
        oracle.compare(oracle.observe(plain, (xs,)), oracle.observe(fast, (xs,)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        oracle.compare(oracle.observe(plain, (xs,)), oracle.observe(fast, (xs,)))


def test_types_of_the_same_numbers_keep_their_scalars():
    def last(xs):
        return [x[1, 1] for x in xs]

    xs = [np.ones((2, 2), dtype=np.int64) for _ in range(9)]
    xs[4] = xs[4].astype(np.longlong)
    fast = jit(last, config=NOW)
    assert [type(v) for v in fast(xs)] == [type(v) for v in last(xs)]


SMALL_WEIGHTS = WEIGHTS.astype(np.float32)


def single(xs):
    return max(x @ SMALL_WEIGHTS for x in xs)


def farthest(xs):
    return max((score(x) for x in xs), key=abs)


def by_text(xs):
    return sorted((score(x) for x in xs), key=str)


def either(xs):
    return max((score(x) if x[0] > 0.0 else 0) for x in xs)


@pytest.mark.parametrize("plain", [single, farthest, by_text, either])
def test_other_numbers_and_orders(plain):
    fast = jit(plain, config=NOW)
    for seed in range(12):
        xs = rows(seed, 2001 + seed)
        if plain is single:
            xs = [x.astype(np.float32) for x in xs]
        wanted, got = plain(xs), fast(xs)
        assert wanted == got and type(wanted) is type(got)
    assert plain is not single or ran(fast) == 12


def test_nothing_is_left():
    def none(xs):
        return max((score(x) for x in xs if x[0] > 100.0), default=None)

    assert jit(none, config=NOW)(rows(0, 50)) is None


def nested(xs):
    return max(((score(x), 0), i) for i, x in enumerate(xs))


def listed(xs):
    return max([score(x), i] for i, x in enumerate(xs))


def one_without(xs):
    return max((score(x), i) if i else (0, i) for i, x in enumerate(xs))


@pytest.mark.parametrize("plain", [nested, listed, one_without])
def test_what_holds_the_numbers_deeper(plain):
    fast = jit(plain, config=NOW)
    for seed in range(20):
        xs = rows(seed, 501 + seed)
        assert plain(xs) == fast(xs)
