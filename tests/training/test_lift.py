"""Any stock optimiser whose steps are proportional to lr, with a rate per lane."""

import copy

import pytest
import torch
from torch import nn

import wide_compiler
from training.loops import Both, N
from wide_compiler.training import Population, lift

LRS = [1e-4 * 2**i for i in range(N)]
CAN = {
    "SGD": {"momentum": 0.9, "weight_decay": 0.1},
    "Adam": {"weight_decay": 0.1},
    "AdamW": {},
    "NAdam": {},
    "RAdam": {},
    "Adamax": {},
    "Adadelta": {},
    "RMSprop": {"momentum": 0.9},
    "Adagrad": {"lr_decay": 0.1},
}


@pytest.mark.parametrize("name", CAN)
def test_lanes_are_those_of_the_stock_optimiser(name):
    stock = getattr(torch.optim, name)
    both = Both(lift(stock), stock, {"lr": LRS, **CAN[name]})
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(o, 0.97) for o in (both.optimizer, *both.own)]
    for _ in range(20):
        both.run(1)
        for scheduler in schedulers:
            scheduler.step()
    both.check()
    for lane in (0, N - 1):
        alone = stock(both.wide.lane(lane).parameters(), lr=0.5)
        alone.load_state_dict(both.optimizer.lane_state(lane))
        assert alone.param_groups[0]["lr"] == pytest.approx(both.own[lane].param_groups[0]["lr"])


def test_masks_copies_and_checkpoints():
    both = Both(lift(torch.optim.NAdam), torch.optim.NAdam, {"lr": LRS})
    population = Population(both.wide, both.optimizer)
    both.run(2)
    population.mask([1])
    before = both.wide.state_dict()["up.weight"].clone()
    both.run(2)
    both.check([lane for lane in range(N) if lane != 1])
    assert torch.equal(both.wide.state_dict()["up.weight"][1], before[1])
    population.copy(0, 1)
    population.unmask()
    both.models[1].load_state_dict(both.models[0].state_dict())
    both.own[1].load_state_dict(copy.deepcopy(both.own[0].state_dict()))  # torch shares it
    both.optimizer.load_state_dict(both.optimizer.state_dict())
    both.run(2)
    both.check()
    population.select([1, 3, 5])
    assert both.optimizer.lane_values("lr").tolist() == pytest.approx([LRS[0], LRS[3], LRS[5]])


class Lamb(torch.optim.Optimizer):
    """A step scaled by the ratio of two norms over the tensor, as LAMB and LARS have it."""

    def __init__(self, params, lr=1e-3):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * p.norm() / p.grad.norm() * p.grad)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (torch.optim.Rprop, "not proportional to the learning rate"),
        (torch.optim.ASGD, "not proportional to the learning rate"),
        (torch.optim.LBFGS, "does not step a tensor"),
        (torch.optim.Adafactor, "depends on the others'|not proportional"),
        (torch.optim.Muon, "does not step a tensor|depends on the others'"),
        (Lamb, "depends on the others'"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_others_are_refused_by_name(kind, why):
    with pytest.raises(ValueError, match=f"{kind.__name__} cannot be lifted: .*({why})"):
        lift(kind)


def test_what_a_lifted_optimiser_cannot_do():
    both = Both(lift(torch.optim.NAdam), torch.optim.NAdam, {"lr": LRS})
    both.run(1)
    with pytest.raises(ValueError, match="LaneNAdam is a lifted optimiser and cannot reset single lanes"):
        both.optimizer.reset_lanes([0])
    with pytest.raises(ValueError, match="one lane's state cannot be loaded"):
        both.optimizer.load_lane_state(0, {})
    with pytest.raises(ValueError, match="LaneNAdam has no hyper-parameter 'beta1' per lane"):
        both.optimizer.set_lane_values("beta1", 0.9)


@pytest.mark.parametrize("kind", [torch.optim.NAdam, torch.optim.AdamW, torch.optim.Adadelta])
def test_a_group_that_is_added_later(kind):
    members = [nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)).double() for _ in range(2)]
    wide = wide_compiler.compile(copy.deepcopy(members), torch.randn(2, 4, dtype=torch.float64))
    optimizer = lift(kind)(wide.get_submodule("0").parameters(), lr=[0.01, 0.02])
    optimizer.add_param_group({"params": list(wide.get_submodule("1").parameters()), "lr": [0.03, 0.01]})
    alone = [kind(m[0].parameters(), lr=lr) for m, lr in zip(members, [0.01, 0.02], strict=True)]
    for one, member, lr in zip(alone, members, [0.03, 0.01], strict=True):
        one.add_param_group({"params": list(member[1].parameters()), "lr": lr})
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
            torch.testing.assert_close(wide.lane_state(lane, name), p.detach(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adadelta, torch.optim.Adamax])
def test_state_of_a_lane_that_is_masked_before_the_first_step(kind):
    wide = wide_compiler.compile([nn.Linear(4, 3).double() for _ in range(2)], torch.randn(2, 4).double())
    optimizer = lift(kind)(wide.parameters(), lr=0.01)
    optimizer.mask([1])
    before = wide.lane_state(1, "weight").clone()
    wide.shared(torch.randn(5, 4, dtype=torch.float64)).square().sum().backward()
    optimizer.step()
    assert torch.equal(wide.lane_state(1, "weight"), before)
    states = [t for s in optimizer.state.values() for t in s.values() if t.dim() > 1]
    assert states and all(not t[1].any() and t[0].any() for t in states)
