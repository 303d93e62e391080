"""PyTorch's items run as one only where nothing but the time tells."""

import math
import subprocess
import sys
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from wide_compiler.xcs import Config, jit
from wide_compiler.xcs.modules import trial
from xcs import oracle

AT_ONCE = Config(measure=False)


def over(module, items):
    return [module(x) for x in items]


def without_gradients(module, items):
    with torch.no_grad():
        return [module(x) for x in items]


def members(modules, x):
    with torch.no_grad():
        return [module(x) for module in modules]


def fast_calls(fast):
    return sum(n for counts in fast.stats().values() for rung, n in counts.items() if rung != "plain")


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))


def items(n=40, *shape):
    return list(torch.randn(n, *(shape or (16,)), generator=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("config", [Config(), AT_ONCE], ids=["measured", "at once"])
class TestGradients:
    """Each result has a graph of its own."""

    def test_backward_of_each_result(self, config):
        fast, module = jit(over, config=config), network()
        for _ in range(3):
            found = []
            for function in (over, fast):
                module.zero_grad()
                for y in function(module, items(300)):
                    y.sum().backward()
                found.append([p.grad.clone() for p in module.parameters()])
            assert all(map(torch.equal, *found))

    def test_gradients_of_other_items(self, config):
        fast, module = jit(over, config=config), network()
        leaves = [x.requires_grad_() for x in items(300)]
        fast(module, leaves)[3].sum().backward()
        assert [i for i, x in enumerate(leaves) if x.grad is not None] == [3]

    def test_infinity_stays_with_its_item(self, config):
        fast, module, given = jit(over, config=config), network(), items(300)
        given[7].fill_(math.inf)
        fast(module, given)[3].sum().backward()
        assert all(p.grad.isfinite().all() for p in module.parameters())

    def test_an_item_changed_in_place_is_noticed(self, config):
        fast, module = jit(over, config=config), network()
        given = [x.requires_grad_() * 1 for x in items(300)]
        results = fast(module, given)
        with torch.no_grad():
            given[3].add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            sum(y.sum() for y in results).backward()

    def test_hooks_on_what_is_saved(self, config):
        fast, module = jit(over, config=config), network()
        counts = []
        for function in (over, fast, fast, fast):
            packed = []
            keep = lambda t, to=packed: (to.append(1), t)[1]  # noqa: E731
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
                function(module, items(300))
            counts.append(len(packed))
        assert len(set(counts)) == 1 and counts[0] > 300


def test_without_gradients_they_run_as_one():
    fast, module = jit(without_gradients, config=AT_ONCE), network()
    frozen = jit(over, config=AT_ONCE)
    for _ in range(3):
        plain = without_gradients(module, items())
        assert oracle.same(plain, fast(module, items()), rtol=1e-4)
    module.requires_grad_(False)
    assert oracle.same(plain, frozen(module, items()), rtol=1e-4)
    assert fast_calls(fast) == 3 and fast_calls(frozen) == 1


REPEATED = torch.randn(5, 64, generator=torch.Generator().manual_seed(2))[torch.arange(33) % 5].T.contiguous()
DECIDING = {
    "argmax": lambda x: (x @ REPEATED).argmax(),
    "comparison": lambda x: x @ REPEATED > 0.5,
    "chosen": lambda x: torch.where(x @ REPEATED > 0.5, x @ REPEATED, 0.0),
    "sign": lambda x: torch.sign(x @ REPEATED),
    "floor": lambda x: torch.floor(x @ REPEATED),
    "integers": lambda x: (x @ REPEATED).long(),
    "places": lambda x: torch.sort(x @ REPEATED).indices,
    "used places": lambda x: x[torch.topk(x @ REPEATED, 3).indices],
    "remainder": lambda x: (x @ REPEATED) % 0.25,
    "hardshrink": lambda x: F.hardshrink(x @ REPEATED, 0.5),
    "threshold": lambda x: F.threshold(x @ REPEATED, 0.1, 20.0),
    "copysign": lambda x: torch.copysign(x[:33], x @ REPEATED),
    "angle": lambda x: torch.atan2(x @ REPEATED, -torch.ones(33)),
    "of a sum": lambda x: x.sum() > 0.5,
    "of an exponential": lambda x: torch.exp(x) > 0.5,
    "division": lambda x: torch.div(x @ REPEATED, 0.5, rounding_mode="floor"),
}
NOT_DECIDING = {
    "argmax of the item": lambda x: x.argmax(),
    "comparison of the item": lambda x: x * 2.0 > 0.5,
    "relu": lambda x: torch.relu(x @ REPEATED),
    "largest": lambda x: (x @ REPEATED).amax(),
    "floor of the item": lambda x: torch.floor(x * 3.0),
    "product": lambda x: x @ REPEATED,
}


@pytest.mark.parametrize("name", DECIDING)
def test_a_yes_or_no_from_rounded_numbers_is_left_to_each_item(name):
    fast = jit(over, config=AT_ONCE)
    for _ in range(3):
        given = items(200, 64)
        assert oracle.same(over(DECIDING[name], given), fast(DECIDING[name], given))
    assert fast_calls(fast) == 0


@pytest.mark.parametrize("name", NOT_DECIDING)
def test_a_yes_or_no_from_exact_numbers_is_not(name):
    fast = jit(over, config=AT_ONCE)
    for _ in range(3):
        given = items(200, 64)
        assert oracle.same(over(NOT_DECIDING[name], given), fast(NOT_DECIDING[name], given), rtol=1e-4)
    assert fast_calls(fast) == 3


def test_what_is_infinite_goes_through_the_loop():
    fast = jit(over, config=AT_ONCE)
    given = [torch.ones(1) for _ in range(23)]
    assert oracle.same(over(F.gelu, given), fast(F.gelu, given), rtol=1e-6) and fast_calls(fast) == 1
    given[5].fill_(math.inf)
    assert oracle.same(over(F.gelu, given), fast(F.gelu, given), rtol=1e-6) and fast_calls(fast) == 1
    for body, value in (
        (lambda x: 7.0 % x, 1e-310),
        (lambda x: 1.0 / torch.maximum(x, torch.zeros_like(x)), -0.0),
    ):
        fast = jit(over, config=AT_ONCE)
        given = [torch.full((1,), 2.0, dtype=torch.float64) for _ in range(23)]
        given[5].fill_(value)
        assert oracle.same(over(body, given), fast(body, given))


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x), x


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("held", torch.ones(4))

    def forward(self, x):
        return self.held


@pytest.mark.parametrize("make", [nn.Identity, nn.Dropout, nn.Flatten, Pair, Own])
def test_results_that_share_memory_with_something_given(make):
    modules, x = [make().eval() for _ in range(6)], torch.ones(2, 4)
    fast = jit(members, config=AT_ONCE)
    for _ in range(3):
        results = fast(modules, x)
        assert oracle.same(members(modules, x), results, rtol=1e-5)
        first = results[0][1] if make is Pair else results[0]
        held = modules[0].held if make is Own else x
        assert first.untyped_storage().data_ptr() == held.untyped_storage().data_ptr()
    assert fast_calls(fast) == 0


def test_warnings_are_those_of_every_item():
    def spread(x):
        return x.std(0)

    fast = jit(over, config=AT_ONCE)
    counts = []
    for function in (over, fast, fast):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            function(spread, [torch.ones(1, 3) for _ in range(8)])
        counts.append(len(caught))
    assert counts == [8, 8, 8]


class Spread(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(x).std(0)


def test_members_that_warn_do_so_each():
    modules, fast = [Spread() for _ in range(6)], jit(members, config=AT_ONCE)
    counts = []
    for function in (members, fast, fast, fast):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            function(modules, torch.ones(1, 3))
        counts.append(len(caught))
    assert counts == [6, 6, 6, 6]


def test_members_that_give_infinity():
    modules = [nn.Sequential(nn.Linear(3, 1), nn.GELU()) for _ in range(23)]
    fast = jit(members, config=AT_ONCE)
    x = torch.ones(1, 3)
    for _ in range(2):
        assert oracle.same(members(modules, x), fast(modules, x), rtol=1e-4)
    assert fast_calls(fast) == 2
    with torch.no_grad():
        modules[5][0].bias.fill_(math.inf)
    for _ in range(2):
        assert oracle.same(members(modules, x), fast(modules, x), rtol=1e-4)
    assert fast_calls(fast) == 2


def test_python_remembers_which_warnings_it_has_shown():
    fast, module = jit(without_gradients, config=AT_ONCE), network()
    fast(module, items())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(4):
            warnings.warn("once", UserWarning, stacklevel=1)
            fast(module, items())
    assert [str(w.message) for w in caught] == ["once"] and fast_calls(fast) == 5


@pytest.mark.parametrize("config", [Config(), AT_ONCE], ids=["measured", "at once"])
def test_conjugate_views(config):
    fast = jit(over, config=config)
    given = [torch.randn(4, dtype=torch.complex64).conj() for _ in range(12)]
    for _ in range(3):
        assert oracle.same(over(lambda x: x * 2, given), fast(lambda x: x * 2, given), rtol=1e-5)


@pytest.mark.parametrize(
    "jump", [nn.Hardshrink(), nn.Threshold(0.1, 20.0), nn.ReLU(), nn.ELU(), nn.Hardswish()]
)
def test_layers_that_jump_are_told_from_those_that_bend(jump):
    watch = trial.Watch()
    with torch.no_grad(), watch:
        jump(torch.randn(64) @ REPEATED)
    assert watch.decided == isinstance(jump, (nn.Hardshrink, nn.Threshold))


FIRST_BATCH = """
import sys
import torch
from wide_compiler.xcs import Config, jit

@jit(config=Config(measure=False))
def run(xs):
    return [torch.tanh(x * 2.0) for x in xs]

xs = [torch.full((4,), float(i)) for i in range(16)]
before = set(sys.modules)
run(xs)
assert "torch vmap" in str(run.stats()), run.explain()
print(sorted({name.split(".")[1] for name in set(sys.modules) - before if name.startswith("torch.")}))
"""


def test_the_first_batch_of_a_process_does_not_import_compilers(tmp_path):
    path = tmp_path / "first_batch.py"
    path.write_text(FIRST_BATCH)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "_dynamo" not in done.stdout and "_inductor" not in done.stdout
