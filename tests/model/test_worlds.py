"""The first call of a wide model inside a transform, a trace or a mode: it equals the loop over members."""

import threading

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacrev, jvp, vjp
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import wide_compiler

N = 3
F64 = torch.float64


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.norm, self.fc2 = nn.Linear(5, 8), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x):
        return self.fc2(torch.tanh(self.norm(self.fc1(x))))


@pytest.fixture
def models():
    return [Net().double() for _ in range(N)]


@pytest.fixture
def wide(models):
    """Compiled for training; the tests call it in eval mode, which has no program yet."""
    fresh = wide_compiler.compile(models, torch.randn(2, 5, dtype=F64)).eval()
    for model in models:
        model.eval()
    return fresh


def loop(models, x):
    return torch.stack([model(x) for model in models])


class Passing(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class PassingFunctions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def dual(f, x):
    with forward_ad.dual_level():
        out = f(forward_ad.make_dual(x, torch.ones_like(x)))
        return forward_ad.unpack_dual(out).tangent


def inside(context):
    def call(f, x):
        with context():
            return f(x)

    return call


WORLDS = {
    "grad": lambda f, x: grad(lambda x: f(x).square().sum())(x),
    "vmap": lambda f, x: torch.vmap(f)(torch.stack([x, 2 * x, -x])),
    "vmap of rows": lambda f, x: torch.vmap(f, out_dims=1)(x),
    "vmap in vmap": lambda f, x: torch.vmap(torch.vmap(f))(torch.stack([x, 2 * x])),
    "jvp": lambda f, x: jvp(f, (x,), (torch.ones_like(x),)),
    "vjp": lambda f, x: vjp(f, x)[1](torch.ones(N, len(x), 3, dtype=F64)),
    "jacrev": lambda f, x: jacrev(f)(x),
    "hessian": lambda f, x: hessian(lambda x: f(x).square().sum())(x),
    "dual": dual,
    "checkpoint": lambda f, x: checkpoint(f, x, use_reentrant=False),
    "reentrant checkpoint": lambda f, x: checkpoint(f, x.clone().requires_grad_(), use_reentrant=True),
    "no_grad": inside(torch.no_grad),
    "inference_mode": inside(torch.inference_mode),
    "saved tensors on cpu": inside(torch.autograd.graph.save_on_cpu),
    "dispatch mode": inside(Passing),
    "function mode": inside(PassingFunctions),
    "make_fx": lambda f, x: make_fx(f)(x)(x),
}


@pytest.mark.parametrize("world", WORLDS)
def test_first_call(models, wide, world):
    x = torch.randn(7, 5, dtype=F64)
    got = WORLDS[world](wide.shared, x)
    expected = WORLDS[world](lambda x: loop(models, x), x)
    torch.testing.assert_close(got, expected)
    assert wide.explain(measure=False).coverage == 1.0


@pytest.mark.parametrize("world", WORLDS)
def test_the_call_after_it_is_an_ordinary_one(models, wide, world):
    x = torch.randn(4, 5, dtype=F64)
    WORLDS[world](wide.shared, x)
    wide.zero_grad()
    y = torch.randn(4, 5, dtype=F64, requires_grad=True)
    (got,) = torch.autograd.grad(wide.shared(y).square().sum(), y)
    (expected,) = torch.autograd.grad(loop(models, y).square().sum(), y)
    torch.testing.assert_close(got, expected)
    wide.shared(y).square().sum().backward()
    loop(models, y).square().sum().backward()
    torch.testing.assert_close(wide.fc1.weight.grad, torch.stack([model.fc1.weight.grad for model in models]))
    assert wide.explain(measure=False).coverage == 1.0


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradients_through_a_checkpoint(models, wide, reentrant):
    x = torch.randn(4, 5, dtype=F64, requires_grad=True)
    checkpoint(wide.shared, x, use_reentrant=reentrant).square().sum().backward()
    got, x.grad = x.grad, None
    loop(models, x).square().sum().backward()
    torch.testing.assert_close(got, x.grad)
    for i, model in enumerate(models):
        torch.testing.assert_close(wide.fc2.weight.grad[i], model.fc2.weight.grad)


def test_a_population_of_weights_through_vmap(models, wide):
    """functional_call in vmap: the weights too are wrappers when the program is built."""
    x = torch.randn(4, 5, dtype=F64)
    weights = {name: torch.stack([p, 2 * p]) for name, p in wide.named_parameters()}
    packed = x.repeat(1, N)
    got = torch.vmap(lambda w: functional_call(wide, w, (packed,)))(weights)
    for k, scale in enumerate((1, 2)):
        for i, model in enumerate(models):
            own = {name: scale * p for name, p in model.named_parameters()}
            torch.testing.assert_close(wide_compiler.unpack(got[k], N)[i], functional_call(model, own, (x,)))
    torch.testing.assert_close(wide.shared(x), loop(models, x))


def test_fake_tensors(wide):
    with FakeTensorMode(allow_non_fake_inputs=True):
        out = wide.shared(torch.empty(4, 5, dtype=F64))
    assert out.shape == (N, 4, 3)
    x = torch.randn(4, 5, dtype=F64)
    torch.testing.assert_close(wide.shared(x), loop(wide.lanes(), x))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("dynamic", [True, False])
def test_export(models, wide, strict, dynamic, training):
    wide.train(training)
    packed = torch.randn(4, N * 5, dtype=F64)
    shapes = {"args": ({0: torch.export.Dim.AUTO},)} if dynamic else None
    program = torch.export.export(wide, (packed,), dynamic_shapes=shapes, strict=strict)
    for batch in (4, 9) if dynamic else (4,):
        packed = torch.randn(batch, N * 5, dtype=F64)
        expected = [m(x) for m, x in zip(models, wide_compiler.unpack(packed, N), strict=True)]
        torch.testing.assert_close(program.module()(packed), wide_compiler.pack(expected))
        torch.testing.assert_close(wide(packed), wide_compiler.pack(expected))


def test_jit_trace(models, wide):
    packed = torch.randn(4, N * 5, dtype=F64)
    traced = torch.jit.trace(wide, packed)
    expected = [m(x) for m, x in zip(models, wide_compiler.unpack(packed, N), strict=True)]
    torch.testing.assert_close(traced(packed), wide_compiler.pack(expected))


def test_another_thread_exports_meanwhile(models, wide):
    """`torch.compiler.is_compiling` is one flag for all threads: it must decide nothing."""
    x = torch.randn(4, 5, dtype=F64)
    entered, done = threading.Event(), threading.Event()

    class Slow(nn.Module):
        def forward(self, x):
            entered.set()
            done.wait(60)
            return x + 1

    exporting = threading.Thread(target=lambda: torch.export.export(Slow(), (x,), strict=False))
    exporting.start()
    try:
        assert entered.wait(60)
        assert torch.compiler.is_compiling()
        got = wide_compiler.lanes.unstack(wide.shared(x), N)
    finally:
        done.set()
        exporting.join()
    torch.testing.assert_close(torch.stack(got), loop(models, x))
