"""Modes and transforms of PyTorch around a call: they see every function that plain Python would call."""

import time

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.autograd.graph import disable_saved_tensors_hooks, saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from wide_compiler.xcs import Config, jit
from wide_compiler.xcs.parallel.threads import Overlap
from xcs import oracle


class Seen(TorchFunctionMode):
    """Doubles what linear layers give, and counts what is called."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.calls.append(func)
        out = func(*args, **(kwargs or {}))
        return out * 2 if func is torch.nn.functional.linear else out


class Dispatched(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls.append(str(func))
        return func(*args, **(kwargs or {}))


def members(models, x):
    with torch.no_grad():
        return [m(x) for m in models]


def rows(model, xs):
    with torch.no_grad():
        return [model(x) for x in xs]


def cases():
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval() for _ in range(4)]
    return {
        "wide model": (members, (models, torch.randn(3, 4))),
        "torch vmap": (rows, (models[0], [torch.randn(4) for _ in range(8)])),
    }


def ran(fast, rung):
    return next(iter(fast.stats().values())).get(rung, 0)


@pytest.mark.parametrize("mode", [Seen, Dispatched])
@pytest.mark.parametrize("rung", ["wide model", "torch vmap"])
def test_a_mode_sees_what_it_would_see(rung, mode):
    plain, arguments = cases()[rung]
    fast = jit(plain, config=Config(measure=False))
    assert oracle.same(fast(*arguments), plain(*arguments), rtol=1e-5)
    with mode() as expected:
        wanted = plain(*arguments)
    with mode() as seen:
        given = fast(*arguments)
    assert oracle.same(given, wanted, rtol=1e-5)
    assert seen.calls == expected.calls
    assert ran(fast, rung) == 1 and "mode" in str(fast.explain())
    assert oracle.same(fast(*arguments), plain(*arguments), rtol=1e-5)
    assert ran(fast, rung) == 2


def test_a_default_device_changes_nothing():
    plain, arguments = cases()["wide model"]
    fast = jit(plain, config=Config(measure=False))
    with torch.device("cpu"):
        assert oracle.same(fast(*arguments), plain(*arguments), rtol=1e-5)
    assert ran(fast, "wide model") == 1


def test_within_a_transform():
    def total(x, models):
        return sum(m(x).sum() for m in models)

    _, (models, x) = cases()["wide model"]
    fast = jit(total, config=Config(measure=False))
    wanted = torch.func.grad(total)(x, models)
    assert torch.equal(torch.func.grad(fast)(x, models), wanted)


def test_statements_that_wait_within_a_mode():
    def waits(seconds):
        time.sleep(seconds)
        return torch.ones(2)

    @jit(config=Config(measure=False))
    def run():
        a = waits(0.01)
        b = waits(0.01)
        return a, b

    with torch.device("meta"):
        assert [t.device.type for t in run()] == ["meta", "meta"]
    with Seen() as seen:
        run()
    assert seen.calls == [torch.ones, torch.ones]


@pytest.mark.parametrize("rung", ["wide model", "torch vmap"])
def test_tangents_of_forward_differentiation(rung):
    plain, (models, x) = cases()[rung]
    fast = jit(plain, config=Config(measure=False))
    fast(models, x)
    with forward_ad.dual_level():
        if rung == "wide model":
            dual = forward_ad.make_dual(x, torch.ones_like(x))
        else:
            dual = [forward_ad.make_dual(x[0], torch.ones_like(x[0])), *x[1:]]
        wanted, given = ([forward_ad.unpack_dual(y) for y in f(models, dual)] for f in (plain, fast))
        assert oracle.same([y.primal for y in given], [y.primal for y in wanted], rtol=1e-5)
        assert [y.tangent is None for y in given] == [y.tangent is None for y in wanted]
        assert torch.equal(given[0].tangent, wanted[0].tangent)
    assert ran(fast, rung) == 1
    fast(models, x)
    assert ran(fast, rung) == 2


def waited(x, w):
    time.sleep(0.003)
    return x @ w


def waiting(xs, w):
    return [waited(x, w) for x in xs]


def waiting_statements(xs, w):
    a = waited(xs[0], w)
    b = waited(xs[1], w)
    return [a, b]


@pytest.mark.parametrize("plain", [waiting, waiting_statements])
def test_hooks_of_saved_tensors_belong_to_their_thread(plain):
    fast = jit(plain, config=Config(measure=False))
    xs, w = [torch.ones(2, 3), torch.ones(2, 3)], torch.ones(3, 3, requires_grad=True)
    counts = []
    for function in (plain, fast):
        packed = []
        with saved_tensors_hooks(lambda t, packed=packed: packed.append(1) or t, lambda t: t):
            function(xs, w)
        counts.append(len(packed))
    assert counts[0] == counts[1] > 0
    with disable_saved_tensors_hooks("not here"):
        fast(xs, w)
    assert ran(fast, "threads") == 0
    fast(xs, w)
    assert ran(fast, "threads") == 1


def faded(x):
    time.sleep(0.003)
    return x * 1e-30 * 1e-10


def fading(xs):
    return [faded(x) for x in xs]


def test_small_numbers_that_are_zero_in_their_thread():
    xs = [torch.ones(2)] * 3
    fast = jit(fading, config=Config(measure=False))
    usual = fading(xs)
    assert oracle.same(fast(xs), usual)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor keeps them")
    try:
        wanted = fading(xs)
        assert oracle.same(fast(xs), wanted)
    finally:
        torch.set_flush_denormal(False)
    assert not oracle.same(wanted, usual) and ran(fast, "threads") == 1
    assert oracle.same(fast(xs), usual) and ran(fast, "threads") == 2


def test_threads_have_the_default_device():
    with torch.device("meta"):
        run = Overlap(lambda i: torch.zeros(i).device.type, 3, 2)
    run.start(2)
    run.finish()
    assert list(run.results.values()) == ["meta"] * 3


# torch.compile reads the original text.


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("rung", ["wide model", "torch vmap"])
def test_a_jitted_function_can_be_compiled(rung, warm):
    function, arguments = cases()[rung]
    fast = jit(function, config=Config(measure=False))
    if warm:
        fast(*arguments)
        assert ran(fast, rung) == 1
    compiled = torch.compile(fast, backend="eager", fullgraph=True)
    for _ in range(2):
        assert all(map(torch.equal, compiled(*arguments), function(*arguments)))
    if warm:
        assert ran(fast, rung) == 1


def test_a_jitted_function_within_a_compiled_one():
    function, arguments = cases()["torch vmap"]
    fast = jit(function, config=Config(measure=False))
    fast(*arguments)
    around = torch.compile(lambda *given: torch.stack(fast(*given)) * 2, backend="eager", fullgraph=True)
    assert torch.equal(around(*arguments), torch.stack(function(*arguments)) * 2)
    assert ran(fast, "torch vmap") == 1
