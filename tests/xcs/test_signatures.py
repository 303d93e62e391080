"""A rung that was right with some items meets others: another dtype, shape, order in memory, branch, mode."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from wide_compiler.xcs import Config, jit
from xcs import oracle

VECTORS = list(np.arange(8.0).reshape(4, 2))
MATRICES = list(np.arange(16.0).reshape(4, 2, 2))
FLOATS = [1.0, 2.0, 3.0, 4.0]
SINGLE = [v.astype(np.float32) for v in VECTORS]
ONE_DAY = np.timedelta64(1, "D")
W = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))


def of(body):
    def run(xs):
        return [body(x) for x in xs]

    return run


def of_two(body):
    def run(xs, other):
        return [body(x, other) for x in xs]

    return run


def days(*texts):
    return [np.datetime64(text) for text in texts]


def raveled(x):
    y = x * 2.0
    z = y.ravel()
    z *= 3.0
    return float(y[0, 0])


def one_twice(x):
    a = [x, x + 1.0]
    b = a if x > 100 else [x, x]
    return a, b


def zeros_or_first(x, zeros):
    return np.zeros_like(x[0]) if zeros else x[0]


def divided(xs, ks):
    return [x / k for x, k in zip(xs, ks, strict=True)]


def ignoring(body):
    def run(xs):
        with np.errstate(all="ignore"):
            return [body(x) for x in xs]

    return run


# The function, a call that lanes take, and one of another look.
LANES = {
    "inner product of matrices": (of(lambda x: np.inner(x, x)), (VECTORS,), (MATRICES,)),
    "vdot of matrices": (of(lambda x: np.vdot(x, x)), (VECTORS,), (MATRICES,)),
    "vdot of complex": (of(lambda x: np.vdot(x, x)), (VECTORS,), ([v + 1j for v in VECTORS],)),
    "an axis that is not there": (
        of(lambda x: np.concatenate([x, x], axis=-2)),
        (MATRICES,),
        (VECTORS,),
    ),
    "int of a row": (of(lambda x: int(x[0])), (VECTORS,), (MATRICES,)),
    "powers of truths": (of(lambda x: x**2), (VECTORS,), ([v > 1 for v in VECTORS],)),
    "an item of a long double": (
        of(lambda x: x.sum().item()),
        (VECTORS,),
        ([v.astype(np.longdouble) for v in VECTORS],),
    ),
    "trunc of a float32": (of(lambda x: math.trunc(x[0])), (VECTORS,), (SINGLE,)),
    "zeros like texts": (of(np.zeros_like), (MATRICES,), ([m.astype("U3") for m in MATRICES],)),
    "where of a matrix": (
        of_two(lambda x, a: np.where(x > 0, a, a)),
        (VECTORS, np.arange(2.0)),
        (VECTORS, np.arange(8.0).reshape(4, 2)),
    ),
    "units": (divided, (VECTORS, [1, 2, 3, 4]), ([v.astype("m8[D]") for v in VECTORS], [1, 2, 3, 4])),
    "order in memory": (of(raveled), (MATRICES,), ([np.asfortranarray(m) for m in MATRICES],)),
    "order in memory of one": (
        of(lambda x: x * 2.0),
        (MATRICES * 3,),
        ([np.asfortranarray(m) if i == 5 else m for i, m in enumerate(MATRICES * 3)],),
    ),
    "order in memory of all": (
        of(lambda x: x + 1.0),
        (np.arange(16.0).reshape(4, 2, 2),),
        (np.arange(16.0).reshape(2, 2, 4).T,),
    ),
    "a power too large": (ignoring(lambda x: x**2.0), (FLOATS,), ([1.0, 1e200, 2.0],)),
    "a root of a negative number": (ignoring(lambda x: x**0.5), (FLOATS,), ([1.0, -8.0, 2.0],)),
    "a power of zero": (ignoring(lambda x: x**-1.0), (FLOATS,), ([1.0, 0.0, 2.0],)),
    "nan rounded": (ignoring(lambda x: round(x * 1.5)), (FLOATS,), ([1.0, math.nan, 2.0],)),
    "one object twice": (of(one_twice), (FLOATS,), ([200.0, 300.0],)),
    "an array like a number": (of_two(zeros_or_first), (VECTORS, 0), (VECTORS, 1)),
    "unsigned below zero": (
        of(lambda x: x[0] - x[1]),
        (VECTORS,),
        (list(np.array([[1, 2]] * 4, np.uint64)),),
    ),
    "half of a complex number": (
        of(lambda x: x.astype("f8")),
        (MATRICES,),
        ([m + 1j for m in MATRICES],),
    ),
    "no degrees of freedom": (of(lambda x: x.var(ddof=2)), (MATRICES,), (VECTORS,)),
}


def calls_alike(run, fast, arguments):
    for _ in range(3):
        oracle.compare(oracle.observe(run, arguments), oracle.observe(fast, arguments), rtol=1e-9)


@pytest.mark.parametrize("name", LANES)
def test_lanes_meet_items_of_another_look(name):
    run, first, second = LANES[name]
    fast = jit(run, config=Config(measure=False))
    calls_alike(run, fast, first)
    assert any("numpy lanes" in counts for counts in fast.stats().values()), str(fast.explain())
    calls_alike(run, fast, second)
    calls_alike(run, fast, first)


def test_nan_is_given_back_itself():
    def run(xs):
        return [min(x, 5.0) for x in xs] == xs

    xs = [math.nan, 1.0, 2.0]
    fast = jit(run, config=Config(measure=False))
    assert run(xs) and fast(xs)


def test_units_of_dates_are_those_of_each():
    run = of(lambda x: x + ONE_DAY)
    fast = jit(run, config=Config(measure=False))
    for dates in (days("2020-01-01", "2020-01-02"), days("2020-01-01", "2020-01-02T00:00:01", "2020-01-03")):
        assert list(map(str, fast(dates))) == list(map(str, run(dates)))


@pytest.mark.parametrize(("dtype", "n", "value"), [(np.float16, 8192, 1.0), (np.float32, 200_000, 0.1)])
def test_sums_of_columns(dtype, n, value):
    run = of(lambda x: x.sum())
    fast = jit(run, config=Config(measure=False))
    columns = np.full((n, 4), value, dtype).T
    for xs in (np.ones((4, 3), dtype), columns, list(columns)):
        assert oracle.same(fast(xs), run(xs), rtol=1e-5)
    assert next(iter(fast.stats().values()))["numpy lanes"] == 1  # columns do not lie in rows


def test_the_same_look_is_not_compared_again(monkeypatch):
    from wide_compiler.xcs import choice

    compared = []
    monkeypatch.setattr(choice, "_verify", lambda *_: compared.append(1))
    fast = jit(of(lambda x: x * 2.0), config=Config(measure=False))
    for xs in (VECTORS, VECTORS, SINGLE, VECTORS, SINGLE, MATRICES):
        fast(xs)
    assert len(compared) == 3


def tensors(dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(4, 4, generator=generator).to(dtype) for _ in range(5)]


def turned(dtype=torch.float32):
    return [t.t() for t in tensors(dtype)]


VMAP = {
    "float of float": (of(lambda x: x.float()), tensors(torch.float64), tensors()),
    "contiguous of contiguous": (of(lambda x: (x + 1.0).contiguous()), tensors(), turned()),
    "a view of what does not lie in rows": (of(lambda x: (x * 2).view(-1)), tensors(), turned()),
    "results lie as items do": (of(lambda x: x * 2), tensors(), turned()),
    "types that do not fit": (of(lambda x: torch.addmm(W, x, x)), tensors(), tensors(torch.float64)),
    "a trace of truths": (of(lambda x: x.trace()), tensors(), tensors(torch.bool)),
    "types that are joined": (
        of(lambda x: torch.where(W > 0, x.sum(), W)),
        tensors(),
        tensors(torch.float64),
    ),
}


@pytest.mark.parametrize("name", VMAP)
def test_vmap_meets_items_of_another_look(name):
    run, first, second = VMAP[name]
    fast = jit(run, config=Config(measure=False))
    calls_alike(run, fast, (first,))
    assert "torch vmap" in next(iter(fast.stats().values())), str(fast.explain())
    calls_alike(run, fast, (second,))
    calls_alike(run, fast, (first,))


@pytest.mark.parametrize("body", [lambda x: x, lambda x: x[1:], lambda x: x.t(), lambda x: W])
def test_what_vmap_gives_shares_memory_as_it_should(body):
    def run(xs, double):
        return [x * 2.0 if double else body(x) for x in xs]

    fast = jit(run, config=Config(measure=False))
    calls_alike(run, fast, (tensors(), True))
    assert "torch vmap" in next(iter(fast.stats().values()))
    calls_alike(run, fast, (tensors(), False))


@pytest.mark.parametrize("body", [lambda x: torch.dot(x[0], x[1]), lambda x: F.linear(x, W)])
def test_vmap_under_autocast(body):
    run = of(body)
    fast = jit(run, config=Config(measure=False))
    calls_alike(run, fast, (tensors(),))
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(2):
            assert [y.dtype for y in fast(tensors())] == [y.dtype for y in run(tensors())]
            assert oracle.same(fast(tensors()), run(tensors()), rtol=1e-2)


def test_images_that_lie_by_channels():
    def run(models, x):
        with torch.no_grad():
            return [m(x) for m in models]

    models = [nn.Conv2d(3, 3, 1) for _ in range(4)]
    x = torch.randn(2, 3, 5, 5)
    fast = jit(run, config=Config(measure=False))
    for images in (x, x.to(memory_format=torch.channels_last), x):
        got, wanted = fast(models, images), run(models, images)
        assert [y.stride() for y in got] == [y.stride() for y in wanted]
        assert oracle.same(got, wanted, rtol=1e-4)
    assert next(iter(fast.stats().values()))["wide model"] == 2


ZEROS = [np.array([-0.0, 0.5]), np.array([0.0, -2.0]), np.array([3.0, -0.0])]
LARGE = [np.array([-5e9, 1.0]), np.array([7e19, 2.0]), np.array([np.nan, 3.0])]


@pytest.mark.parametrize(
    ("body", "fast_too"),
    [
        (lambda x: 1.0 / np.clip(x, 0.0, 1.0), True),
        (lambda x: 1.0 / np.clip(x, -1.0, -0.0), True),
        (lambda x: 1.0 / x.clip(-0.0, 0.0), True),
        (lambda x: 1.0 / np.maximum(x, 0.0), True),
        (lambda x: 1.0 / np.fmax(x, 0.0), True),
        (lambda x: 1.0 / np.fmin(x[:1], 0.0), True),
    ],
)
def test_of_two_zeros_the_right_one(body, fast_too):
    run = ignoring(body)
    fast = jit(run, config=Config(measure=False))
    for items in (VECTORS, ZEROS * 9, VECTORS):
        calls_alike(run, fast, (items,))
    assert ("numpy lanes" in next(iter(fast.stats().values()))) == fast_too


@pytest.mark.parametrize("dtype", ["uint8", "uint32", "int32", "int64", "uint64"])
def test_numbers_that_no_integer_holds(dtype):
    kind = np.dtype(dtype)
    run = ignoring(lambda x: x.astype(kind))
    fast = jit(run, config=Config(measure=False))
    for items in (VECTORS * 200, VECTORS * 200 + LARGE, VECTORS * 200):
        calls_alike(run, fast, (items,))
    assert next(iter(fast.stats().values()))["numpy lanes"] >= 2


def test_integers_of_two_names():
    run = of(lambda x: x[0] // 2)
    fast = jit(run, config=Config(measure=False))
    for dtype in (np.int64, np.longlong, np.int64):
        items = [v.astype(dtype) for v in VECTORS]
        calls_alike(run, fast, (items,))
        assert {type(v) for v in fast(items)} == {type(v) for v in run(items)}


SINGLES = np.dtype("float32")


@pytest.mark.parametrize(
    "body",
    [
        lambda x: x.astype(np.float32),
        lambda x: x.astype(float) * 2,
        lambda x: x.astype(dtype=np.int32),
        lambda x: x.astype(SINGLES),
        lambda x: x + np.zeros(2, dtype=np.float32),
        lambda x: np.full(2, 3, int) + x,
    ],
)
def test_types_of_numbers_by_their_names(body):
    run = of(body)
    fast = jit(run, config=Config(measure=False))
    for items in (VECTORS, SINGLE, VECTORS):
        calls_alike(run, fast, (items,))
    assert next(iter(fast.stats().values())).keys() == {"numpy lanes"}


def test_types_of_objects_are_not_among_them():
    run = of(lambda x: x.astype(np.object_))
    fast = jit(run, config=Config(measure=False))
    calls_alike(run, fast, (VECTORS,))
    assert "numpy lanes" not in next(iter(fast.stats().values()))
