"""`vmap` of this room: a function over lists, arrays and tensors, by the same rungs as a loop."""

import time

import numpy as np
import pytest
import torch

from wide_compiler.xcs import Config, jit, vmap
from xcs import oracle

NOW = Config(measure=False)


def ran(function):
    return {rung for counts in function.stats().values() for rung in counts if rung != "plain"}


def test_vmap_over_lists_and_leading_axes():
    def length(x):
        return np.sqrt((x * x).sum())

    xs = list(np.random.default_rng(0).normal(size=(12, 4)))
    many = vmap(length, config=NOW)
    assert oracle.same(many(xs), [length(x) for x in xs], rtol=1e-9)
    assert ran(many) == {"numpy lanes"}
    stacked = many(np.stack(xs))
    assert isinstance(stacked, np.ndarray) and np.allclose(stacked, [length(x) for x in xs])
    assert vmap(lambda a, b: a + b)([1, 2], [3, 4]) == [4, 6]
    assert vmap(lambda a, b, c: a + b + c)([1, 2], [3, 4], [5, 6]) == [9, 12]
    with pytest.raises(ValueError, match="the same length"):
        vmap(lambda a, b: a)([1], [1, 2])


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_as_many_arguments_as_there_are(count):
    def one(a):
        return a.mean()

    def two(a, b):
        return a.mean() + b.max()

    def three(a, b, c):
        return (a * b).sum() + c.max()

    def five(a, b, c, d, e):
        return (a * b * c).sum() + d.max() - e.min()

    fn = {1: one, 2: two, 3: three, 5: five}[count]
    columns = [np.random.default_rng(i).random((40, 6)) for i in range(count)]
    many = vmap(fn, config=NOW)
    np.testing.assert_allclose(many(*columns), [fn(*rows) for rows in zip(*columns, strict=True)], rtol=1e-12)
    assert ran(many) == {"numpy lanes"}


def test_waiting_functions_of_three_arguments_overlap():
    def wait(a, b, c):
        time.sleep(0.002)
        return a + b + c

    many = vmap(wait)
    many([1] * 16, [2] * 16, range(16))
    assert many([1] * 16, [2] * 16, range(16)) == [3 + i for i in range(16)]
    assert ran(many) == {"threads"}


def test_it_explains_all_calls_under_the_name_of_the_function():
    def scaled(x, y=1.0):
        return x * y

    many = vmap(scaled)
    assert str(many.explain()).startswith(scaled.__qualname__) and "not run" in str(many.explain())
    many([1, 2]), many([1, 2], [3, 4])
    texts = [row.text for row in many.explain().rows]
    assert texts == ["[fn(x) for x in xs]", "[fn(x0, x1) for x0, x1 in zip(x0s, x1s)]"]
    assert [sum(counts.values()) for counts in many.stats().values()] == [1, 1]


@pytest.mark.parametrize("name", ["x", "xs", "x0", "x1s", "zip", "class", "<lambda>", "mapped", "made"])
def test_names_that_the_loop_has_itself(name):
    def fn(a, b=0):
        return 10 * a + b

    fn.__name__ = name
    assert vmap(fn)([1, 2]) == [10, 20] and vmap(fn)([1, 2], [3, 4]) == [13, 24]


def test_what_is_stacked_and_what_is_listed():
    numbers = np.arange(4.0)
    assert vmap(lambda x: complex(x, 1.0))(numbers).dtype == complex
    assert type(vmap(lambda x: (x, x))(numbers)) is list
    assert torch.equal(vmap(lambda x: x + 1)(torch.arange(3)), torch.arange(3) + 1)
    assert vmap(lambda x: x)(np.zeros((0, 3))) == []


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: vmap(3), TypeError, "takes a function, got int"),
        (lambda: vmap(abs)(5), TypeError, "with at least one axis, got a int"),
        (lambda: vmap(abs)(np.array(5)), TypeError, "with at least one axis, got a ndarray"),
        (lambda: vmap(abs)(x for x in [1]), TypeError, "got a generator"),
        (lambda: vmap(abs)([1], scale=2), TypeError, "bind 'scale' first"),
        (lambda: vmap(abs)(), ValueError, "at least one"),
    ],
)
def test_bad_input_says_what_to_do(call, error, says):
    with pytest.raises(error, match=says):
        call()


def test_jit_of_a_jitted_function():
    """Is that function; with another config the text is jitted anew."""

    @jit
    def run(xs):
        return [x.sum() for x in xs]

    assert jit(run) is run and jit(run, config=Config()) is run
    exact = jit(run, config=Config(exact=True, measure=False))
    rows = [np.arange(3.0) + i for i in range(9)]
    assert exact is not run and exact(rows) == run(rows)
    assert ran(exact) == {"numpy lanes"}  # sums of rows are the same bit by bit


def test_jit_with_another_config_keeps_the_defaults_of_now():
    def scaled(xs, k=1):
        return [x * k for x in xs]

    fast = jit(scaled)
    fast.__defaults__ = (10,)
    assert fast([1, 2]) == jit(fast, config=NOW)([1, 2]) == [10, 20]
