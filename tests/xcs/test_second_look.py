"""Calls that look like one which was compared, and are others: more parts, other numbers, another branch."""

import dataclasses
import math
import time

import numpy as np
import pytest
import torch
from torch import nn

from wide_compiler.xcs import Config, jit
from wide_compiler.xcs.lanes import gather
from xcs import oracle

NOW = Config(measure=False)
BOX = []
THRESHOLD = [0.0]
Q = np.random.default_rng(0).standard_normal(64)
Q32 = Q.astype(np.float32)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(gather, "CHUNK_BYTES", 1)  # 256 items a part


def of(body):
    def run(xs):
        return [body(x) for x in xs]

    return run


def rows(n, bad=None):
    found = [np.full(4, 1.0 + i) for i in range(n)]
    if bad is not None:
        found[600][0] = bad
    return found


def compared(run, fast, *arguments):
    plain, got = oracle.observe(run, arguments), oracle.observe(fast, arguments)
    oracle.compare(plain, got, rtol=1e-9)


def taken(fast, rung="numpy lanes"):
    return sum(counts.get(rung, 0) for counts in fast.stats().values())


def own_array(x):
    kept = np.zeros(4)
    y = x + kept
    kept += 1.0
    return y * kept


def own_array_by_index(x):
    kept = np.zeros(4)
    y = x + kept
    kept[0] = 5.0
    return y * kept


def own_array_sorted(x):
    kept = np.array([3.0, 1.0, 2.0, 4.0])
    y = x + kept
    kept.sort()
    return y * kept


def divides_for_nothing(x):
    1.0 / float(x[0])
    return x * 2.0


def roots_for_nothing(x):
    math.sqrt(x[0])
    return x * 2.0


def whole_for_nothing(x):
    int(x[0])
    return x * 2.0


def warns_for_nothing(x):
    y = x * 2.0
    z = 1.0 / x  # noqa: F841
    return y


@pytest.mark.parametrize(
    ("body", "bad"),
    [
        (own_array, None),
        (own_array_by_index, None),
        (own_array_sorted, None),
        (divides_for_nothing, 0.0),
        (roots_for_nothing, -1.0),
        (whole_for_nothing, math.nan),
        (warns_for_nothing, 0.0),
    ],
)
def test_later_parts_do_what_every_item_does(body, bad):
    run = of(body)
    fast = jit(run, config=NOW)
    compared(run, fast, rows(100))
    compared(run, fast, rows(1000))
    assert taken(fast) == 2
    for _ in range(2):
        compared(run, fast, rows(1000, bad))


def through_a_view(x):
    y = x * 0.0
    z = y[0:1]
    z += (x @ Q) + z
    return 1 if y[0] > THRESHOLD[0] else 0


def bound_of_what_was(x):
    q = Q32.copy()
    v = x @ q
    q *= 0.0
    return 1 if v > THRESHOLD[0] else 0


EDGES = {
    "through a view": through_a_view,
    "divided": lambda x: 1.0 / (float(x @ Q) - THRESHOLD[0]),
    "divided by NumPy": lambda x: 1.0 / (x @ Q - THRESHOLD[0]),
    "logarithm": lambda x: math.log(float(x @ Q) - THRESHOLD[0]),
    "logarithm by NumPy": lambda x: np.log(x @ Q - THRESHOLD[0]),
    "root": lambda x: math.sqrt(float(x @ Q) - THRESHOLD[0]),
    "sign": lambda x: np.copysign(1.0, x @ Q - THRESHOLD[0]),
    "angle": lambda x: np.arctan2(x @ Q - THRESHOLD[0], -1.0),
    "angle by Python": lambda x: math.atan2(float(x @ Q) - THRESHOLD[0], -1.0),
    "truth": lambda x: np.logical_xor(x @ Q - THRESHOLD[0], True),
    "no number": lambda x: 1 if np.isnan(np.sqrt(x @ Q - THRESHOLD[0])) else 0,
    "infinite": lambda x: 1 if np.isinf(1.0 / (x @ Q - THRESHOLD[0])) else 0,
    "a power": lambda x: (float(x @ Q) - THRESHOLD[0]) ** 0.5,
}


@pytest.mark.parametrize("errors", ["warn", "ignore"])
@pytest.mark.parametrize("name", EDGES)
def test_rounded_numbers_at_an_edge(name, errors):
    """The edge lies where plain Python, or where lanes have put one of the numbers."""
    items = list(np.random.default_rng(1).standard_normal((40, 64)))
    at_once, alone = np.stack(items) @ Q, np.array([x @ Q for x in items])
    differing = np.flatnonzero(at_once != alone)[:6]
    run = of(EDGES[name])
    fast = jit(run, config=NOW)
    THRESHOLD[0] = -1e3
    with np.errstate(all=errors):
        compared(run, fast, items)
        for i in differing:
            for THRESHOLD[0] in (float(at_once[i]), float(alone[i])):
                compared(run, fast, items)


def test_a_bound_is_one_of_what_was_there():
    items = list(np.random.default_rng(1).standard_normal((40, 64)).astype(np.float32))
    at_once = np.stack(items) @ Q32
    run = of(bound_of_what_was)
    fast = jit(run, config=NOW)
    for THRESHOLD[0] in (-1e3, *map(float, at_once[:8]), *(float(x @ Q32) for x in items[:8])):
        compared(run, fast, items)


def test_equal_numbers_have_no_spread():
    run = of(lambda x: (x - x.mean()) / x.std())
    fast = jit(run, config=NOW)
    rng = np.random.default_rng(0)
    for size in (3, 7, 10, 33, 64, 100, 129):
        items = list(rng.normal(size=(300, size)))
        compared(run, fast, items)
        items[5] = np.full(size, rng.normal())
        compared(run, fast, items)
    assert taken(fast) >= 7


def test_zeros_are_found_among_lengths_and_sums():
    for body in (lambda x: x / np.linalg.norm(x), lambda x: x / (x @ x), lambda x: x / np.exp(x).sum()):
        run = of(body)
        fast = jit(run, config=NOW)
        compared(run, fast, rows(600))
        assert taken(fast) == 1
        items = rows(600)
        items[300][:] = 0.0
        compared(run, fast, items)


def bump():
    BOX.append(1)
    return len(BOX)


@dataclasses.dataclass
class Counted:
    a: float
    n: int = dataclasses.field(init=False, default_factory=bump)


def counted(x):
    Counted(1.0)
    return x * 2.0


def test_defaults_that_are_made_by_a_function():
    fast = jit(of(counted), config=NOW)
    BOX.clear()
    fast(rows(100))
    assert len(BOX) == 100


def two_sinks(xs):
    a, b = [], []
    for x in xs:
        y = x * 2.0
        a.append(y)
        if x[0] > 500.0:
            b.append(y)
    return a, b


def turned(x):
    return (x * 2.0).T if x[0, 0] > 500.0 else x * 2.0


class Weighted:
    def __init__(self, w):
        self.w = w

    def __call__(self, x):
        return self.w * float(x[0])


def test_one_array_in_two_lists():
    two = [np.full(4, float(i)) for i in range(100)]
    fast = jit(two_sinks, config=NOW)
    compared(two_sinks, fast, two)
    two[30][0] = 900.0
    compared(two_sinks, fast, two)


def test_order_in_memory_of_results():
    run = of(turned)
    fast = jit(run, config=NOW)
    items = list(np.random.default_rng(0).normal(size=(40, 3, 3)))
    compared(run, fast, items)
    items[7][0, 0] = 900.0
    compared(run, fast, items)

    def weighted(m, xs):
        return [m(x) for x in xs]

    fast = jit(weighted, config=NOW)
    w = np.random.default_rng(0).normal(size=(3, 5))
    for own in (w, np.asfortranarray(w), w):
        compared(weighted, fast, Weighted(own), rows(40))
    assert taken(fast) == 2


class Modes:
    """Two results of one item, by a flag."""

    def __init__(self, mode):
        self.mode = mode

    def __call__(self, x):
        y = x * 2.0
        if self.mode == 1:
            return (y, y)
        if self.mode == 2:
            return (y, y[1:])
        return (y, y[1:] + 1.0)


class Joined:
    def __init__(self, w):
        self.w = w

    def __call__(self, x):
        return torch.where(self.w > 0, x.sum(), self.w)


class Flipped(nn.Module):
    flip = False

    def forward(self, x):
        y = x @ x
        return y.T if self.flip else y


def over(m, xs):
    return [m(x) for x in xs]


def test_vmap_by_flags_of_objects():
    fast = jit(over, config=NOW)
    ts = [torch.rand(6) for _ in range(20)]
    for mode in (0, 1, 2, 0):
        compared(over, fast, Modes(mode), ts)
    assert taken(fast, "torch vmap") == 2

    fast, flipped = jit(over, config=NOW), Flipped()
    squares = [torch.rand(4, 4) for _ in range(20)]
    for flipped.flip in (False, True, False):
        compared(over, fast, flipped, squares)
    assert taken(fast, "torch vmap") == 2


def test_vmap_joins_types_as_one_item_does():
    fast = jit(over, config=NOW)
    ts = [torch.rand(3, dtype=torch.float64) for _ in range(20)]
    scalars = [torch.tensor(i + 1.0, dtype=torch.float64) for i in range(20)]
    for dtype in (torch.float64, torch.float32, torch.float64):
        for items in (ts, scalars):
            compared(over, fast, Joined(torch.ones(3, dtype=dtype)), items)
    assert taken(fast, "torch vmap") >= 1


def test_tensors_of_inference_mode():
    layer = nn.Linear(6, 6).requires_grad_(False)
    run = of(lambda x: torch.tanh(layer(x)) * 2.0)
    fast = jit(run, config=NOW)
    compared(run, fast, [torch.rand(6) for _ in range(20)])
    assert taken(fast, "torch vmap") == 1
    with torch.inference_mode():
        items = [torch.rand(6) for _ in range(20)]
    compared(run, fast, items)


def test_parts_of_a_split_are_views():
    run = of(lambda x: torch.split(x * 1.0, 3))
    got = jit(run, config=NOW)([torch.rand(6).requires_grad_() for _ in range(12)])
    with pytest.raises(RuntimeError, match="view"):
        got[3][0].add_(1.0)


def stops(xs):
    out = []
    try:
        for x in xs:
            time.sleep(0.001)
            if x == 3:
                raise StopIteration("no")
            out.append(x)
    except StopIteration:
        return "stopped", out


def again(x):
    time.sleep(0.001)
    if x == 2:
        raise
    return x


def raises_again(xs):
    try:
        1 / 0  # noqa: B018
    except ZeroDivisionError:
        return [again(x) for x in xs]


def looks_for(xs):
    return [x in (math.nan, 1.0) for x in xs]


@pytest.mark.parametrize("function", [stops, raises_again])
def test_errors_that_belong_to_somebody_else(function):
    fast = jit(function, config=NOW)
    for _ in range(2):
        compared(function, fast, list(range(8)))


def test_nan_is_found_by_being_itself():
    fast = jit(looks_for, config=NOW)
    compared(looks_for, fast, [2.0, 3.0] * 10)
    assert taken(fast) == 1
    compared(looks_for, fast, [2.0, 3.0, math.nan, 4.0] * 5)


def own_array_annotated(x):
    kept = np.zeros(4)
    y = x + kept
    kept[0]: float = 5.0
    return y * kept


def own_array_as_target(x):
    kept = np.zeros(4)
    y = x + kept
    for kept[1] in (2.0, 3.0):
        pass
    return y * kept


@pytest.mark.parametrize("body", [own_array_annotated, own_array_as_target])
def test_stores_by_other_statements(body):
    run = of(body)
    fast = jit(run, config=NOW)
    for n in (100, 1000, 1000):
        compared(run, fast, rows(n))
    assert taken(fast) == 3
