"""What a body reads may change from one call to the next: each call reads it anew."""

import gc
import weakref

import numpy as np
import pytest

from wide_compiler.xcs import Config, jit, module
from xcs import oracle

EXACTLY = Config(measure=False)


def rows(n=40, size=6):
    return list(np.random.default_rng(0).normal(size=(n, size)))


@module
class Scorer:
    weights: np.ndarray
    bias: float = 0.0

    def __call__(self, x):
        return float(x @ self.weights + self.bias)


class Holder:
    def __init__(self, **fields):
        self.__dict__.update(fields)


SCALE = 2.0
TABLE = np.arange(6.0)
FLAG = True


def scored(items, scorer):
    return [scorer(x) for x in items]


def scaled(items):
    return [x * SCALE for x in items]


def with_table(items):
    return [x + TABLE for x in items]


def by_first_of_table(items):
    return [x * 2.0 if TABLE[0] > 0.0 else x - 1.0 for x in items]


def by_flag(items):
    return [x * 2.0 if FLAG else x - 1.0 for x in items]


def twice_table(items):
    return [x + TABLE * 2.0 for x in items]


def held(items, holder):
    return [x * holder.scale for x in items]


def deeply_held(items, holder):
    return [x * holder.inner.scale for x in items]


def same_holder(items, holder, other):
    return [x * 2.0 if holder is other else x - 1.0 for x in items]


def listed(items, scales):
    return [x * scales[0] for x in items]


def with_default(x, scale=2.0):
    return x * scale


def defaulted(items):
    return [with_default(x) for x in items]


def closed(items, scale):
    def body(x):
        return x * scale

    return [body(x) for x in items]


def check(function, fast, *arguments):
    oracle.compare(oracle.observe(function, arguments), oracle.observe(fast, arguments), rtol=1e-9)


def warm(function, *arguments):
    fast = jit(function, config=EXACTLY)
    for _ in range(3):
        check(function, fast, *arguments)
    assert next(iter(fast.stats().values())).get("numpy lanes", 0) == 3
    return fast


def test_a_module_made_anew_for_every_call():
    weights = np.arange(6.0)

    def run(items):
        scorer = Scorer(weights)
        return [scorer(x) for x in items]

    warm(run, rows())


def test_other_items_that_look_the_same():
    fast = warm(scaled, rows())
    check(scaled, fast, [x + 1.0 for x in rows(70)])
    check(scaled, fast, list(np.ones((3, 6))))


def test_items_that_look_different():
    fast = warm(scaled, rows())
    for other in (rows(size=7), [x.astype("float32") for x in rows()], [x.reshape(2, 3) for x in rows()]):
        check(scaled, fast, other)
        check(scaled, fast, other)


def test_weights_changed_in_place():
    weights = np.arange(6.0)
    fast = warm(scored, rows(), Scorer(weights))
    weights[5] = -3.0
    check(scored, fast, rows(), Scorer(weights))
    check(scored, fast, rows(), Scorer(weights))


@pytest.mark.parametrize(
    "change",
    [
        lambda s: Scorer(s.weights.copy()),
        lambda s: Scorer(s.weights, 0.5),
        lambda s: Scorer(s.weights, -0.0),
        lambda s: Scorer(s.weights, float("nan")),
        lambda s: Scorer(s.weights[::-1]),
        lambda s: Scorer(s.weights.astype("float32")),
    ],
)
def test_another_scorer(change):
    scorer = Scorer(np.arange(6.0))
    fast = warm(scored, rows(), scorer)
    other = change(scorer)
    check(scored, fast, rows(), other)


def test_another_layout_of_the_same_array():
    matrix = np.arange(36.0).reshape(6, 6)
    fast = warm(scored_by_matrix, rows(), matrix)
    matrix.strides = (8, 48)
    check(scored_by_matrix, fast, rows(), matrix)


def scored_by_matrix(items, matrix):
    return [x @ matrix for x in items]


@pytest.mark.parametrize(
    ("function", "name", "value"),
    [
        (scaled, "SCALE", 3.0),
        (with_table, "TABLE", np.ones(6)),
        (by_first_of_table, "TABLE", np.ones(6)),
        (by_flag, "FLAG", False),
        (twice_table, "TABLE", np.ones(6)),
    ],
)
def test_globals_that_are_replaced(monkeypatch, function, name, value):
    fast = warm(function, rows())
    monkeypatch.setitem(globals(), name, value)
    check(function, fast, rows())


@pytest.mark.parametrize("function", [with_table, by_first_of_table, twice_table])
def test_globals_that_are_changed_in_place(monkeypatch, function):
    monkeypatch.setitem(globals(), "TABLE", np.arange(6.0))
    fast = warm(function, rows())
    TABLE[0] = 7.0
    check(function, fast, rows())


def test_zero_of_the_other_sign():
    items = [np.zeros(4) for _ in range(20)]

    def run(items, scale):
        return [x * scale for x in items]

    fast = warm(run, items, 0.0)
    check(run, fast, items, -0.0)


def test_fields_of_objects():
    fast = warm(held, rows(), Holder(scale=2.0))
    check(held, fast, rows(), Holder(scale=3.0))
    fast = warm(deeply_held, rows(), Holder(inner=Holder(scale=2.0)))
    check(deeply_held, fast, rows(), Holder(inner=Holder(scale=3.0)))


def test_which_objects_are_the_same():
    holder = Holder(scale=1.0)
    fast = warm(same_holder, rows(), holder, holder)
    other = Holder(scale=1.0)
    check(same_holder, fast, rows(), other, other)
    check(same_holder, fast, rows(), holder, other)


def test_closures_and_defaults(monkeypatch):
    fast = warm(closed, rows(), 2.0)
    check(closed, fast, rows(), 3.0)
    fast = warm(defaulted, rows())
    monkeypatch.setattr(with_default, "__defaults__", (5.0,))
    check(defaulted, fast, rows())


def test_containers_that_change():
    fast, scales = jit(listed, config=EXACTLY), [2.0]
    for scale in (2.0, 2.0, 2.0, 3.0):
        scales[0] = scale
        check(listed, fast, rows(), scales)


def test_large_arrays_that_change():
    table = np.arange(40_000.0)

    def run(items, table):
        return [x + table[:6] for x in items]

    fast = jit(run, config=EXACTLY)
    for first in (0.0, 0.0, 0.0, 5.0):
        table[0] = first
        check(run, fast, rows(), table)


def test_nothing_of_the_user_is_kept_alive():
    holder = Holder(scale=2.0)
    warm(held, items := rows(), holder)
    gone = [weakref.ref(holder), weakref.ref(items[0])]
    del holder, items
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


def test_after_a_call_that_warned():
    fast = warm(logged, [np.full(4, 2.0 + i) for i in range(30)])
    with pytest.warns(RuntimeWarning):
        fast([np.full(4, float(i - 3)) for i in range(30)])
    check(logged, fast, [np.full(4, 2.0 + i) for i in range(30)])


def logged(items):
    return [np.log(x) for x in items]


def alike(items, a, b):
    return [x * 2.0 if a is b else x * 3.0 for x in items]


@pytest.mark.parametrize("make", [lambda: "".join(["mo", "de"]), lambda: int("1000"), lambda: float("0.5")])
def test_which_texts_and_numbers_are_the_same_object(make):
    one, two = make(), make()
    fast = warm(alike, rows(), one, one)
    check(alike, fast, rows(), one, two)
