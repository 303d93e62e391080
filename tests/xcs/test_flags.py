"""A flag sends the body another way: the items are tried and compared again."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from wide_compiler.xcs import Config, jit
from xcs import oracle

TABLE = torch.arange(25.0).reshape(5, 5)
LAYER = nn.Linear(4, 4).requires_grad_(False)
AT_ONCE = Config(measure=False)


def taken(fast, rung):
    return sum(counts.get(rung, 0) for counts in fast.stats().values())


MAPPED = {
    "integers": lambda x, hard: (LAYER(x) * 1e6).long() if hard else LAYER(x),
    "a row of a table": lambda x, hard: TABLE[x.argmax()] if hard else x * 1,
    "another type": lambda x, hard: torch.where(x > 0, x.sum().double(), x) if hard else x * 1,
    "warnings": lambda x, hard: F.mse_loss(x, TABLE[0, :1]) if hard else x.sum(),
    "no rule": lambda x, hard: x.masked_fill(x > 0, x.sum()) if hard else x * 1,
}
LANES = {
    "a column": lambda x, hard: changed_column(x, hard),
    "ptp": lambda x, hard: x.ptp() if hard else x.max(),
    "a copy": lambda x, hard: np.copy(x[0]) if hard else x[0] * 1,
}


def changed_column(x, hard):
    y = x * 2
    if hard:
        column = y[::2].ravel()
        column += 1
    return y


def of(body):
    def run(xs, hard):
        return [body(x, hard) for x in xs]

    return run


def tensors():
    return list(torch.randn(400, 4, generator=torch.Generator().manual_seed(3)))


def rows():
    return list(np.arange(48.0).reshape(12, 4))


FLAGS = {
    "a truth": (False, True),
    "a number": (0, 3),
    "a text": ("", "hard"),
    "nothing": (None, "hard"),
    "a list": ([], [1]),
}


@pytest.mark.parametrize("config", [Config(), AT_ONCE], ids=["measured", "at once"])
@pytest.mark.parametrize("name", MAPPED)
def test_tensors(name, config):
    run = of(MAPPED[name])
    fast = jit(run, config=config)
    for hard in (*[False] * 8, True, True, False):
        plain = oracle.observe(run, (tensors(), hard), world=TABLE)
        oracle.compare(plain, oracle.observe(fast, (tensors(), hard), world=TABLE), rtol=1e-5)
    # Newer versions of PyTorch have a rule where older ones have none.
    assert config.measure or taken(fast, "torch vmap") in ((9, 11) if name == "no rule" else (9,))


@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("name", LANES)
def test_arrays(name, flags):
    run = of(LANES[name])
    fast = jit(run, config=AT_ONCE)
    off, on = FLAGS[flags]
    for hard in (off, off, off, on, on, off):
        oracle.compare(oracle.observe(run, (rows(), hard)), oracle.observe(fast, (rows(), hard)), rtol=1e-9)
    assert taken(fast, "numpy lanes") >= 4


def test_one_item_goes_the_odd_way():
    def run(xs):
        return [odd(x) for x in xs]

    items = [x * 0 for x in rows()]
    items[4] = items[4] + 10
    fast = jit(run, config=AT_ONCE)
    for _ in range(3):
        oracle.compare(oracle.observe(run, (items,)), oracle.observe(fast, (items,)))


def odd(x):
    return x.ptp() if x[0] > 9 else x.max()


class Member(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self.hard = False


class Twice(Member):
    def forward(self, x):
        h = self.layer(x)
        return (h, h) if self.hard else (h, h * 2)


class View(Member):
    def forward(self, x):
        return x.view(-1) if self.hard else self.layer(x)


class Turned(Member):
    def forward(self, x):
        return self.layer(x).t() if self.hard else self.layer(x)


class Whole(Member):
    def forward(self, x):
        return (self.layer(x) * 1e6).long() if self.hard else self.layer(x)


class Weights(Member):
    def forward(self, x):
        return self.layer.weight.view(-1) if self.hard else self.layer(x)


@pytest.mark.parametrize("kind", [Twice, View, Turned, Whole, Weights])
def test_members(kind):
    def run(modules, x):
        with torch.no_grad():
            return [m(x) for m in modules]

    modules, x = [kind() for _ in range(6)], torch.randn(33, 16)
    fast = jit(run, config=AT_ONCE)
    for hard in (*[False] * 3, *[True] * 3, *[False] * 3):
        for module in modules:
            module.hard = hard
        oracle.compare(oracle.observe(run, (modules, x)), oracle.observe(fast, (modules, x)), rtol=1e-4)
    assert taken(fast, "wide model") >= 3


def test_a_number_that_is_another_one_at_each_call():
    """Compared each time, as the body may go another way; still all at once, items handed back too."""

    def run(xs, k):
        return [x * k if k > 0 else x for x in xs]

    fast = jit(run, config=AT_ONCE)
    for k in range(-100, 100):
        assert oracle.same(run(rows(), k), fast(rows(), k))
    assert taken(fast, "numpy lanes") == 200


COMPLEX = {
    "larger": lambda z: bool(abs(z * z) > abs(z) * abs(z)),
    "equal": lambda z: 1 if z * z / z == z else 0,
    "root": lambda z: bool(np.sqrt(z) * np.sqrt(z) == z),
    "floor": lambda z: np.floor(abs(z) * 1e9),
}


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("name", COMPLEX)
def test_complex_numbers_are_rounded(name, dtype):
    body = COMPLEX[name]

    def run(zs):
        return [body(z) for z in zs]

    for seed in range(10):
        parts = np.random.default_rng(seed).normal(size=(2, 41))
        zs = list((parts[0] + 1j * parts[1]).astype(dtype))
        fast = jit(run, config=AT_ONCE)
        for _ in range(3):
            assert fast(zs) == run(zs)


@pytest.mark.parametrize(
    "body", [lambda z: torch.eq(z * z / z, z), lambda z: (torch.abs(z * z) * 1e6).long()]
)
def test_complex_tensors_are_rounded(body):
    def run(zs):
        return [body(z) for z in zs]

    for seed in range(5):
        for size in (1, 2):
            generator = torch.Generator().manual_seed(seed)
            zs = list(torch.randn(41, size, dtype=torch.complex64, generator=generator))
            fast = jit(run, config=AT_ONCE)
            for _ in range(3):
                assert oracle.same(run(zs), fast(zs))


def test_complex_products_still_run_as_one():
    def run(zs):
        return [z * z.conj() + z for z in zs]

    zs = list(np.random.default_rng(0).normal(size=(30, 4)) * (1 + 2j))
    fast = jit(run, config=AT_ONCE)
    for _ in range(3):
        assert oracle.same(run(zs), fast(zs), rtol=1e-9)
    assert taken(fast, "numpy lanes") in (0, 3)
