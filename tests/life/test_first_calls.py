"""Members whose first call changes what they hold: the next ones run as the lane graph."""

import copy

import pytest
import torch
from torch import nn

import wide_compiler
from wide_compiler import WideConfig

FEATURES = 4


class Cache(nn.Module):
    """A table computed from a weight in the first call in eval, and dropped by `train`."""

    def __init__(self):
        super().__init__()
        self.biases = nn.Parameter(torch.randn(3))
        self.cache = {}

    def train(self, mode=True):
        if mode:
            self.cache = {}
        return super().train(mode)

    def forward(self, x):
        if self.training:
            return x * self.biases[[0, 2, 1, 0]]
        if "table" not in self.cache:
            self.cache["table"] = self.biases.detach()[[0, 2, 1, 0]]
        return x * self.cache["table"]


class OtherShape(nn.Module):
    """A buffer made anew for another length, as ConViT's table of positions."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(FEATURES, FEATURES)
        self.register_buffer("places", torch.zeros(1), persistent=False)

    def forward(self, x):
        if len(self.places) != x.shape[-1]:
            self.places = torch.arange(x.shape[-1], dtype=x.dtype)
        return self.line(x) + self.places


class Counts(nn.Module):
    """Changes in every call."""

    def __init__(self):
        super().__init__()
        self.line, self.calls = nn.Linear(FEATURES, FEATURES), 0

    def forward(self, x):
        self.calls += 1
        return self.line(x) * self.calls


def lanes(make, n=3):
    torch.manual_seed(0)
    models = [make().double().eval() for _ in range(n)]
    x = [torch.randn(2, FEATURES, dtype=torch.float64) for _ in models]
    wide = wide_compiler.compile(copy.deepcopy(models), x[0], config=WideConfig(tune_seconds=0))
    return models, wide, x


@torch.no_grad()
def call(models, wide, x):
    """Compare one call; whether it ran as the lane graph."""
    for got, model, one in zip(wide.each(x), models, x, strict=True):
        torch.testing.assert_close(got, model(one))
    return not wide.explain(measure=False).why


@pytest.mark.parametrize("make", [Cache, OtherShape])
def test_the_second_call_runs_as_the_lane_graph(make):
    models, wide, x = lanes(make)
    assert [call(models, wide, x) for _ in range(4)] == [False, True, True, True]


def test_a_full_cache_stays_what_it_is_as_in_the_members():
    models, wide, x = lanes(Cache)
    assert [call(models, wide, x) for _ in range(2)] == [False, True]
    with torch.no_grad():
        wide.biases.mul_(2)
        for model in models:
            model.biases.mul_(2)
    assert call(models, wide, x)  # with the old numbers: nobody has dropped the cache


def test_a_cache_that_train_drops_is_filled_and_captured_again():
    models, wide, x = lanes(Cache)
    for _ in range(3):
        for each in (*models, wide):
            each.eval()
        ran = [call(models, wide, x) for _ in range(8)]
        assert ran[-1] and not ran[0]
        for each in (*models, wide):
            each.train()
        assert call(models, wide, x)
        with torch.no_grad():
            wide.biases.add_(1)
            for model in models:
                model.biases.add_(1)


def test_a_change_in_every_call_is_looked_at_a_few_times_only(monkeypatch):
    models, wide, x = lanes(Counts)
    looks = []
    from wide_compiler.model import program_cache

    seen = program_cache.observe
    monkeypatch.setattr(program_cache, "observe", lambda *a: looks.append(1) or seen(*a))
    assert not any(call(models, wide, x) for _ in range(40))
    assert len(looks) <= 3


def test_a_copy_of_a_model_whose_cache_is_full():
    models, wide, x = lanes(Cache)
    call(models, wide, x)
    call(models, wide, x)
    other, clone = copy.deepcopy(models), copy.deepcopy(wide)
    for each in (*models, wide):
        each.train()
    assert call(models, wide, x)
    for _ in range(3):
        call(other, clone, x)


def test_a_cache_with_a_gradient_history_stays_with_the_members():
    class Linked(Cache):
        def forward(self, x):
            if "table" not in self.cache:
                self.cache["table"] = self.biases[[0, 2, 1, 0]]
            return x * self.cache["table"]

    models, wide, x = lanes(Linked)
    for got, model, one in zip(wide.each(x), models, x, strict=True):
        torch.testing.assert_close(got, model(one))
    assert not call(models, wide, x)  # a graph would lose the gradient of the weight
