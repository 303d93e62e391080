"""Several threads call one wide model at once, for the first time and later."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import wide_compiler

N, THREADS = 3, 8


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.norm, self.fc2 = nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2)

    def forward(self, x):
        return self.fc2(torch.tanh(self.norm(self.fc1(x))))


@pytest.fixture
def models():
    return [Net().double().eval() for _ in range(N)]


@pytest.fixture
def wide(models):
    """Compiled in training mode: a call in eval mode is the first of its kind."""
    wide = wide_compiler.compile([model.train() for model in models], randn(2, 4)).eval()
    for model in models:
        model.eval()
    return wide


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def at_once(calls):
    """The results of all calls, each in a thread of its own, begun together."""
    barrier = threading.Barrier(len(calls))

    def begin(call):
        barrier.wait(60)
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(120) for future in [pool.submit(begin, call) for call in calls]]


def loop(models, x):
    return torch.stack([model(x) for model in models])


@pytest.mark.parametrize("shapes", ["one", "several"])
def test_the_first_call_in_eight_threads(models, wide, shapes):
    xs = [randn(5 if shapes == "one" else 3 + i, 4) for i in range(THREADS)]
    outs = at_once([lambda x=x: wide.shared(x) for x in xs])
    for x, out in zip(xs, outs, strict=True):
        torch.testing.assert_close(out, loop(models, x))
    assert wide.explain(measure=False).coverage == 1.0
    torch.testing.assert_close(wide.shared(xs[0]), loop(models, xs[0]))


def test_the_four_doors_in_eight_threads(models, wide):
    x, xs = randn(5, 4), [randn(5, 4) for _ in range(N)]
    stacked = torch.stack([m(y) for m, y in zip(models, xs, strict=True)])
    doors = [
        (lambda: wide.shared(x), loop(models, x)),
        (lambda: wide.stacked(torch.stack(xs)), stacked),
        (lambda: torch.stack(wide.each(xs)), stacked),
        (lambda: torch.stack(wide_compiler.unpack(wide(wide_compiler.pack(xs)), N)), stacked),
    ]
    outs = at_once([call for call, _ in doors * 2])
    for out, (_, expected) in zip(outs, doors * 2, strict=True):
        torch.testing.assert_close(out, expected)


def test_hooks_of_several_doors_at_once(models, wide):
    x, doors = randn(5, 4), []
    wide.register_forward_hook(lambda module, args, out: doors.append(out.dim()))
    outs = at_once([lambda: wide.shared(x), lambda: wide(x.repeat(1, N))] * 4)
    for i, out in enumerate(outs):
        out = torch.stack(wide_compiler.unpack(out, N)) if i % 2 else out
        torch.testing.assert_close(out, loop(models, x))
    assert sorted(doors) == [2] * 4 + [3] * 4


def test_some_threads_train_while_others_do_not(models, wide):
    x = randn(5, 4).requires_grad_()

    def without():
        with torch.no_grad():
            return wide.shared(x)

    def with_gradients():
        (gradient,) = torch.autograd.grad(wide.shared(x).square().sum(), x)
        return gradient

    outs = at_once([without, with_gradients] * (THREADS // 2))
    (expected,) = torch.autograd.grad(loop(models, x).square().sum(), x)
    for i, out in enumerate(outs):
        torch.testing.assert_close(out, expected if i % 2 else loop(models, x).detach())


def test_a_transform_in_each_thread(models, wide):
    x = randn(5, 4)
    worlds = [
        lambda f: f(x),
        lambda f: torch.func.grad(lambda x: f(x).square().sum())(x),
        lambda f: torch.vmap(f)(torch.stack([x, -x])),
        lambda f: torch.func.jvp(f, (x,), (torch.ones_like(x),))[1],
    ]
    worlds = [*worlds[:3], *worlds]  # forward-mode AD counts its levels for all threads together: once only
    outs = at_once([lambda w=w: w(wide.shared) for w in worlds])
    for out, world in zip(outs, worlds, strict=True):
        torch.testing.assert_close(out, world(lambda x: loop(models, x)))
