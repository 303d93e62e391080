"""Searches: settings by lane, lanes that take over, a model that follows its lanes."""

import math

import pytest
import torch
from torch import nn

import wide_compiler
from training.loops import PLAIN
from wide_compiler.training import (
    AdamW,
    Choice,
    EvolutionStrategy,
    LogUniform,
    Population,
    Uniform,
    exploit_and_explore,
    folds,
    grid_search,
    halve,
    random_search,
    ranked,
)


def population(n=8, **options):
    wide = wide_compiler.compile(nn.Linear(3, 2), torch.randn(2, 3), n=n, config=PLAIN)
    return Population(wide, AdamW(wide.parameters(), **{"lr": [0.1 * (i + 1) for i in range(n)], **options}))


def test_random_settings_lie_in_their_space_and_repeat():
    space = {"lr": LogUniform(1e-4, 1e-1), "beta1": Uniform(0.8, 0.9), "eps": Choice([1e-8, 1e-6])}
    first, second = random_search(50, 3, **space), random_search(50, 3, **space)
    assert first == second != random_search(50, 4, **space)
    assert all(1e-4 <= lr <= 1e-1 for lr in first["lr"])
    assert 10 < sum(lr < math.sqrt(1e-5) for lr in first["lr"]) < 40
    assert all(0.8 <= beta <= 0.9 for beta in first["betas"][0]) and first["betas"][1] == 0.999
    assert set(first["eps"]) == {1e-8, 1e-6}
    wide = wide_compiler.compile(nn.Linear(3, 2), torch.randn(2, 3), n=50, config=PLAIN)
    assert AdamW(wide.parameters(), **first).lane_values("beta1").tolist() == first["betas"][0]


def test_exploit_and_explore():
    pack = population()
    weight = pack.wide.weight.detach().clone()
    scores = torch.tensor([0.0, 5.0, 1.0, float("nan"), 2.0, 3.0, 4.0, 6.0])
    rates = pack.optimizer.lane_values("lr")
    generator = torch.Generator().manual_seed(0)
    copies = exploit_and_explore(pack, scores, {"lr": 2.0}, 0.25, generator)
    assert set(copies) == {3, 7} and set(copies.values()) <= {0, 2}
    now = pack.optimizer.lane_values("lr")
    for lane in range(8):
        source = copies.get(lane, lane)
        assert torch.equal(pack.wide.weight[lane], weight[source])
        ratio = round(float(now[lane] / rates[source]), 6)
        assert ratio in ((0.5, 2.0) if lane in copies else (1.0,))
    assert exploit_and_explore(population(2), torch.ones(2), {}, 0.25) == {}
    with pytest.raises(ValueError, match="fraction must be above 0 and at most"):
        exploit_and_explore(pack, scores, {}, 0.7)
    with pytest.raises(ValueError, match="expected one loss per lane"):
        exploit_and_explore(pack, scores.mean(), {})


def test_halving_keeps_the_best_first():
    pack = population()
    weight = pack.wide.weight.detach().clone()
    kept = halve(pack, torch.tensor([3.0, 0.0, float("inf"), 1.0, 5.0, 4.0, 6.0, 2.0]))
    assert kept == [1, 3, 7, 0] and pack.n == 4
    assert torch.equal(pack.wide.weight, weight[kept])
    assert halve(pack, torch.ones(4), 0.1) == [0]
    assert ranked(torch.tensor([float("nan"), 2.0, 1.0])) == [2, 1, 0]
    with pytest.raises(ValueError, match="keep must be between 0 and 1"):
        halve(pack, torch.ones(1), 1.0)


def test_folds():
    train, test = folds(23, 5, seed=1)
    assert train.shape == (5, 19) and test.shape == (5, 4)
    assert len(set(test.flatten().tolist())) == 20
    for lane in range(5):
        assert set(train[lane].tolist()) | set(test[lane].tolist()) == set(range(23))
        assert not set(train[lane].tolist()) & set(test[lane].tolist())
    assert torch.equal(folds(23, 5, seed=1)[1], test)
    with pytest.raises(ValueError, match="expected between 2 and 3 folds of 3 samples, got 4"):
        folds(3, 4)


def test_grid():
    settings = grid_search(lr=[1.0, 2.0], beta2=[0.9, 0.99, 0.999])
    assert settings["lr"] == [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]
    assert settings["betas"] == (0.9, [0.9, 0.99, 0.999, 0.9, 0.99, 0.999])


def test_evolution_strategy_follows_the_gradient():
    """With enough lanes the mean move points along the gradient of the score."""
    wide = wide_compiler.compile(nn.Linear(3, 1), torch.randn(2, 3), n=400, init="copy", config=PLAIN)
    strategy = EvolutionStrategy(wide, sigma=0.01, lr=1.0)
    member, x = wide.lane(0), torch.randn(30, 3)
    before = [c.clone() for c in strategy.center]
    strategy.ask()
    with torch.no_grad():
        strategy.tell(wide.shared(x).square().mean((1, 2)))
    member(x).square().mean().backward()
    moves = torch.cat([(c - b).flatten() for c, b in zip(strategy.center, before, strict=True)])
    gradient = torch.cat([member.weight.grad.flatten(), member.bias.grad.flatten()])
    assert torch.cosine_similarity(moves, -gradient, dim=0) > 0.95
    strategy.settle()
    assert torch.equal(wide.weight[0], wide.weight[399])


def test_bad_evolution():
    wide = wide_compiler.compile(nn.Linear(3, 1), torch.randn(2, 3), n=3, config=PLAIN)
    with pytest.raises(ValueError, match="an even number of lanes, not 3"):
        EvolutionStrategy(wide)
    wide = wide_compiler.compile(nn.Linear(3, 1), torch.randn(2, 3), n=4, config=PLAIN)
    with pytest.raises(ValueError, match="sigma must be above 0"):
        EvolutionStrategy(wide, sigma=0)
    with pytest.raises(ValueError, match=r"call ask\(\) first"):
        EvolutionStrategy(wide).tell(torch.ones(4))
    with pytest.raises(ValueError, match="LogUniform needs 0 < low <= high"):
        LogUniform(0.0, 1.0)
