"""A second call takes a shortcut. Whatever happened in between, its numbers are the loop's."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wide_compiler
from wide_compiler import WideConfig

N = 3


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)

    def forward(self, x):
        return self.down(F.relu(self.norm(self.up(x))))


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WIDE_COMPILER_CACHE", str(tmp_path))


@pytest.fixture(params=["default", "loop"])
def pair(request):
    torch.manual_seed(0)
    models = [Net().double().eval() for _ in range(N)]
    config = WideConfig(strategy="loop") if request.param == "loop" else WideConfig(tune_seconds=0.05)
    return models, wide_compiler.compile(models, batch()[0], config=config)


def batch(size=5):
    return torch.randn(N, size, 4, dtype=torch.float64)


def check(models, wide, x):
    """Twice: the first call may find the way, the second takes it."""
    for _ in range(2):
        want = torch.stack([m(a) for m, a in zip(models, x, strict=True)])
        got = wide.stacked(x)
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
        assert got.requires_grad == want.requires_grad
        for model, mean in zip(models, wide.norm.running_mean, strict=True):
            torch.testing.assert_close(model.norm.running_mean, mean)


def train(models, wide):
    for model in (*models, wide):
        model.train()


def norm_alone(models, wide):
    for model in (*models, wide):
        model.norm.training = not model.norm.training


def new_parameter(models, wide):
    wide.up.bias = nn.Parameter(torch.randn(N, 4, dtype=torch.float64))
    for model, bias in zip(models, wide.up.bias, strict=True):
        model.up.bias = nn.Parameter(bias.detach().clone())


def other_memory(models, wide):
    """The same numbers, turned round in memory."""
    weight = torch.randn(N, 4, 4, dtype=torch.float64)
    wide.up.weight.data = weight.mT
    for model, own in zip(models, weight, strict=True):
        model.up.weight.data = own.mT.clone()


def frozen(models, wide):
    for model in (*models, wide):
        for parameter in model.parameters():
            parameter.requires_grad_(False)


def in_place(models, wide):
    with torch.no_grad():
        for model, weight in zip(models, wide.down.weight, strict=True):
            weight.mul_(2)
            model.down.weight.mul_(2)


@pytest.mark.parametrize("change", [train, norm_alone, new_parameter, other_memory, frozen, in_place])
def test_changes_between_two_calls(pair, change):
    models, wide = pair
    x = batch()
    check(models, wide, x)
    change(models, wide)
    check(models, wide, x)
    with torch.no_grad():
        check(models, wide, x)
        change(models, wide)
        check(models, wide, x)
    check(models, wide, batch(7))


def test_inputs_that_want_gradients(pair):
    models, wide = pair
    check(models, wide, batch())
    x, again = batch().requires_grad_(), nn.Parameter(batch())
    for leaf in (x, again):
        (want,) = torch.autograd.grad(sum(m(a).sum() for m, a in zip(models, leaf, strict=True)), leaf)
        (got,) = torch.autograd.grad(wide.stacked(leaf).sum(), leaf)
        torch.testing.assert_close(got, want)


def test_the_world_around_a_call(pair):
    models, wide = pair
    x = batch()
    check(models, wide, x)
    with torch.inference_mode():
        check(models, wide, x)
        assert wide.stacked(x).is_inference()
    per_item = torch.func.vmap(lambda a: wide.stacked(a))(torch.stack([x, 2 * x]))
    torch.testing.assert_close(per_item[1], wide.stacked(2 * x))
    with torch.autocast("cpu", torch.bfloat16):
        check(models, wide, x)
    traced = torch.fx.experimental.proxy_tensor.make_fx(wide.stacked)(x)
    torch.testing.assert_close(traced(x), wide.stacked(x))
