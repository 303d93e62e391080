"""Functions under other decorators: their loops are those of the function inside."""

import contextlib
import functools

import numpy as np
import pytest
import torch
from torch import nn

from wide_compiler.xcs import jit

ROWS = list(np.random.default_rng(0).normal(size=(400, 16)))


def scaled(rows):
    return [(row * 2.0).sum() + np.abs(row).max() for row in rows]


def counting(function):
    calls = 0

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        nonlocal calls
        calls += 1
        return function(*args, **kwargs)

    wrapper.calls = lambda: calls
    return wrapper


def warm(fast, *args):
    for _ in range(30):
        result = fast(*args)
    return result


@pytest.mark.parametrize("decorate", [torch.no_grad(), torch.inference_mode(), counting])
def test_loops_under_a_decorator_are_found(decorate, eager):
    fast = jit(decorate(scaled))
    np.testing.assert_allclose(warm(fast, ROWS), scaled(ROWS))
    assert sum(site.get("numpy lanes", 0) for site in fast.stats().values()) > 0
    assert "numpy lanes" in str(fast.explain())


def test_a_decorator_keeps_its_own_variables_and_the_name():
    plain = counting(scaled)
    fast = jit(plain)
    plain(ROWS[:2])
    fast(ROWS[:2])
    assert plain.calls() == fast.calls() == 2  # one variable, which both wrappers count in
    assert fast.__name__ == "scaled" and fast.__wrapped__.__wrapped__ is scaled


def test_a_decorator_around_what_cannot_be_jitted_stays_as_it_is(recwarn):
    @jit
    @contextlib.contextmanager
    def opened(rows):
        yield scaled(rows)

    with opened(ROWS) as result:
        np.testing.assert_allclose(result, scaled(ROWS))
    assert not recwarn.list


def test_modes_of_the_decorator_hold_inside():
    model = nn.Linear(3, 2)

    @jit
    @torch.no_grad()
    def outputs(xs):
        return [model(x) for x in xs]

    assert not any(y.requires_grad for y in warm(outputs, [torch.randn(3) for _ in range(64)]))


NETS = [nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).eval() for _ in range(2)]


def first_net(xs):
    return [NETS[0](x).softmax(-1) for x in xs]


def test_an_item_of_a_list_by_its_number_is_followed(monkeypatch, eager):
    xs = [torch.randn(4) for _ in range(300)]
    fast = jit(torch.no_grad()(first_net))
    for _ in range(2):
        with torch.no_grad():
            want = first_net(xs)
        torch.testing.assert_close(warm(fast, xs), want)
        monkeypatch.setitem(globals(), "NETS", NETS[::-1])
    assert sum(site.get("torch vmap", 0) for site in fast.stats().values()) > 10
    monkeypatch.setitem(globals(), "NETS", [])
    with pytest.raises(IndexError):
        fast(xs)
