"""Members that keep tensors computed from their weights: no lane may go on with an old one."""

import copy

import pytest
import torch
from torch import nn

import wide_compiler
from life_oracle import FEATURES, live, looped


class CacheInDict(nn.Module):
    """As timm's LeViT: biases looked up once in eval, dropped by `train` (which returns nothing)."""

    def __init__(self):
        super().__init__()
        self.biases = nn.Parameter(torch.randn(3))
        self.register_buffer("index", torch.tensor([0, 2, 1, 0]), persistent=False)
        self.cache = {}

    @torch.no_grad()
    def train(self, mode=True):
        super().train(mode)
        if mode and self.cache:
            self.cache = {}

    def biases_now(self, device):
        if self.training:
            return self.biases[self.index]
        if str(device) not in self.cache:
            self.cache[str(device)] = self.biases[self.index]
        return self.cache[str(device)]

    def forward(self, x):
        return x * self.biases_now(x.device)


class CacheInAttribute(nn.Module):
    """As efficientformer: a plain tensor attribute, deleted by `train`."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(FEATURES))
        self.soft = None

    def train(self, mode=True):
        super().train(mode)
        if mode:
            self.soft = None
        return self

    def forward(self, x):
        if self.training:
            return x * self.weight.softmax(0)
        if self.soft is None:
            self.soft = self.weight.detach().softmax(0)
        return x * self.soft


class FusedInEval(nn.Module):
    """As re-parametrised convolutions: two layers are merged into one when `eval` is called."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(FEATURES, 2), nn.Linear(FEATURES, 2)
        self.merged = {}

    def train(self, mode=True):
        self.merged.clear()
        return super().train(mode)

    def forward(self, x):
        if self.training:
            return self.a(x) + self.b(x)
        if not self.merged:
            self.merged["weight"] = (self.a.weight + self.b.weight).detach()
            self.merged["bias"] = (self.a.bias + self.b.bias).detach()
        return nn.functional.linear(
            x,
            **self.merged,
        )


def inside(make):
    return lambda: nn.Sequential(nn.Linear(FEATURES, FEATURES), make(), nn.Linear(FEATURES, 2))


def check(make):
    life = live(make)
    # What is written in eval runs as Python; training has nothing to keep and runs as the lane graph.
    assert "train" not in looped(life) and life["train again"].coverage == 1.0
    assert "eval after training" in looped(life)


def test_a_cache_that_train_drops():
    check(inside(CacheInDict))


def test_a_cache_that_train_drops_in_the_model_itself():
    check(CacheInDict)


def test_a_tensor_attribute_that_train_drops():
    check(inside(CacheInAttribute))


def test_layers_merged_in_eval():
    check(FusedInEval)


def test_models_that_have_filled_their_caches_before():
    """The caches are constants of the first graph, and `train` drops them."""

    def used():
        model = CacheInAttribute().double()
        model.eval()
        model(torch.randn(2, FEATURES, dtype=torch.float64))
        return model

    life = live(used)
    assert life["train again"].coverage == 1.0


def test_a_copy_made_while_a_cache_is_full_trains_as_the_lane_graph():
    models = [inside(CacheInDict)().double() for _ in range(3)]
    for model in models:
        model.eval()
    x = torch.randn(2, FEATURES, dtype=torch.float64)
    wide = wide_compiler.compile(models, x)
    with torch.no_grad():
        wide.shared(x)
        clone = copy.deepcopy(wide)
        clone.shared(x)
    assert clone.explain(measure=False).why
    clone.train()
    clone.shared(x)
    assert clone.explain(measure=False).coverage == 1.0


@pytest.mark.parametrize("make", [CacheInDict, inside(CacheInDict)])
def test_caches_that_were_filled_while_gradients_were_recorded(make):
    models = [make().double() for _ in range(2)]
    x = torch.randn(2, FEATURES, dtype=torch.float64)
    for model in models:
        model.eval()
        model(x)
    wide = wide_compiler.compile(models, x)
    for lane, model in enumerate(models):
        torch.testing.assert_close(wide.shared(x)[lane], model(x))
        torch.testing.assert_close(wide.lane(lane)(x), model(x))


def test_a_cache_made_while_gradients_were_recorded_is_copied():
    wide = wide_compiler.compile(
        [inside(CacheInDict)().double().eval() for _ in range(2)], torch.ones(2, 4).double()
    )
    x = torch.randn(2, FEATURES, dtype=torch.float64)
    out = wide.shared(x)
    assert wide.explain(measure=False).why
    assert torch.equal(wide.lane(1)(x), out[1]) and torch.equal(copy.deepcopy(wide).shared(x), out)


class GrownAttribute(nn.Module):
    """As timm's ConViT: a small tensor at first, the right one after the first forward."""

    def __init__(self, sizes=(1,)):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(FEATURES))
        self.positions = torch.zeros(*sizes)

    def forward(self, x):
        if self.positions.shape != x.shape:
            self.positions = torch.arange(x.numel()).view_as(x).to(x)
        return x * self.weight + self.positions.to(x)


@pytest.mark.parametrize("sizes", [(1,), (1, FEATURES), (0,)])
def test_a_tensor_attribute_that_grows_in_the_forward(sizes):
    live(lambda: GrownAttribute(sizes))


def test_a_cache_dropped_by_train_of_a_submodule():
    models = [inside(CacheInDict)().double().eval() for _ in range(3)]
    x = torch.randn(2, FEATURES, dtype=torch.float64)
    wide = wide_compiler.compile(models, x)
    alone = [copy.deepcopy(model) for model in models]
    with torch.no_grad():
        wide.shared(x)
        for model in alone:
            model(x)
        wide.tensors()["1.biases"].mul_(2)
        for model in alone:
            model[1].biases.mul_(2)
        for part in (wide.get_submodule("1"), *(model[1] for model in alone)):
            part.train()
            part.eval()
        torch.testing.assert_close(wide.shared(x), torch.stack([model(x) for model in alone]))
    assert wide.explain(measure=False).why
