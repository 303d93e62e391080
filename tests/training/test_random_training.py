"""Random trainings equal stock optimisers, and by name what they have found."""

import copy
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import wide_compiler
from nightly import SEED, count
from wide_compiler.training import Adagrad, Adam, AdamW

sys.path.insert(0, str(Path(__file__).parent))
import random_training

STOCK = {AdamW: torch.optim.AdamW, Adam: torch.optim.Adam, Adagrad: torch.optim.Adagrad}


@pytest.mark.parametrize("part", range(count(4, 100)))
def test_random_trainings_equal_stock_optimisers(part):
    for i in range(10):
        random_training.train(SEED + 200_000 + 10 * part + i)


def groups_of(model):
    return [{"params": list(model[0].parameters())}, {"params": list(model[2].parameters()), "lr": 0.05}]


class Pair:
    """Three members with stock optimisers, and the wide model of them."""

    def __init__(self, kind, params=lambda model: model.parameters(), **options):
        members = [nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double() for _ in range(3)]
        sample = torch.randn(2, 4, dtype=torch.float64)
        config = wide_compiler.WideConfig(tune_seconds=0)
        self.members, self.wide = (
            members,
            wide_compiler.compile(copy.deepcopy(members), sample, config=config),
        )
        options.setdefault("lr", 0.01)
        self.alone = [STOCK[kind](params(member), **options) for member in members]
        self.optimizer = kind(params(self.wide), **options)

    def steps(self, number=2, without=()):
        for _ in range(number):
            x = torch.randn(5, 4, dtype=torch.float64)
            for model in (*self.members, self.wide):
                model.zero_grad()
            for member in self.members:
                member(x).square().sum().backward()
            self.wide.shared(x).square().sum().backward()
            for model in (*self.members, self.wide):
                for name in without:
                    model.get_parameter(name).grad = None
            for optimizer in (*self.alone, self.optimizer):
                optimizer.step()
        for lane, member in enumerate(self.members):
            for name, p in member.named_parameters():
                torch.testing.assert_close(
                    self.wide.lane_state(lane, name), p.detach(), rtol=1e-9, atol=1e-12, msg=name
                )
            counts = [float(s["step"]) for s in self.optimizer.lane_state(lane)["state"].values()]
            assert counts == [float(s["step"]) for s in self.alone[lane].state_dict()["state"].values()]


@pytest.mark.parametrize("kind", [Adam, AdamW, Adagrad])
@pytest.mark.parametrize("without", [["0.bias"], ["0.weight", "2.weight"]])
def test_a_step_without_some_gradients_is_not_counted_for_them(kind, without):
    pair = Pair(kind)
    pair.steps()
    pair.steps(without=without)
    pair.steps()
    pair.optimizer.load_state_dict(pair.optimizer.state_dict())
    pair.steps(without=without[:1])
    pair.steps()


CHANGES = {
    "load": lambda o: o.load_state_dict(copy.deepcopy(o.state_dict())),
    "mask": lambda o: (o.mask([0]), o.unmask([0])),
    "lane state": lambda o: o.load_lane_state(1, o.lane_state(1)),
    "none": lambda o: None,
}


@pytest.mark.parametrize("kind", [Adam, AdamW, Adagrad])
@pytest.mark.parametrize("change", CHANGES)
def test_every_group_counts_its_own_steps(kind, change):
    pair = Pair(kind, groups_of)
    pair.steps()
    CHANGES[change](pair.optimizer)
    pair.steps()
    CHANGES[change](pair.optimizer)
    pair.steps(without=["2.bias"])
    CHANGES[change](pair.optimizer)
    pair.steps()


@pytest.mark.parametrize("kind", [Adam, AdamW, Adagrad])
@pytest.mark.parametrize("lane", [0, 2])
def test_a_lane_state_whose_parameters_have_other_step_counts(kind, lane):
    pair = Pair(kind)
    pair.steps()
    other = Pair(kind)
    other.steps(3)
    other.steps(without=["0.bias"])
    state = other.alone[0].state_dict()
    pair.optimizer.load_lane_state(lane, state)
    pair.alone[lane].load_state_dict(copy.deepcopy(state))
    pair.steps()
    pair.steps(without=["2.bias"])


@pytest.mark.parametrize("kind", [Adam, AdamW])
def test_parameters_of_two_dtypes_in_a_group(kind):
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 5).double(), nn.Linear(5, 3)

        def forward(self, x):
            return self.b(self.a(x).tanh().float())

    members = [Mixed() for _ in range(2)]
    wide = wide_compiler.compile(copy.deepcopy(members), torch.randn(2, 4, dtype=torch.float64))
    optimizer, alone = (
        kind(wide.parameters(), lr=0.01),
        [STOCK[kind](m.parameters(), lr=0.01) for m in members],
    )
    for _ in range(3):
        x = torch.randn(5, 4, dtype=torch.float64)
        for model in (*members, wide):
            model.zero_grad()
        for member in members:
            member(x).square().sum().backward()
        wide.shared(x).square().sum().backward()
        for one in (*alone, optimizer):
            one.step()
    for lane, member in enumerate(members):
        for name, p in member.named_parameters():
            torch.testing.assert_close(wide.lane_state(lane, name), p.detach(), rtol=1e-4, atol=1e-5)
        assert [float(s["step"]) for s in optimizer.lane_state(lane)["state"].values()] == [3.0] * 4


@pytest.mark.parametrize("params", [lambda model: model.parameters(), groups_of])
def test_a_state_of_adagrad_holds_parameters_that_were_never_updated(params):
    """PyTorch before 2.13 makes a state for every parameter at once, and fails without one."""
    pair = Pair(Adagrad, params)
    assert len(pair.optimizer.lane_state(1)["state"]) == 4
    pair.steps(without=["0.bias", "2.weight"])
    pair.alone[1] = STOCK[Adagrad](params(pair.members[1]), lr=0.01)
    pair.alone[1].load_state_dict(pair.optimizer.lane_state(1))
    pair.steps()
