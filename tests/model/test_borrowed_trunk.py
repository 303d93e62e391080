"""A frozen trunk stays in the original models' memory; what writes it later leaves these models alone."""

import copy

import pytest
import torch
from torch import nn

import wide_compiler
from wide_compiler import WideConfig
from wide_compiler.training import SGD


def _ensemble():
    trunk = nn.Linear(4, 4).double().requires_grad_(False)
    members = [nn.Sequential(trunk, nn.Tanh(), nn.Linear(4, 2).double()) for _ in range(3)]
    x = torch.randn(5, 4, dtype=torch.float64)
    return members, wide_compiler.compile(members, x, config=WideConfig(tune_seconds=0)), x


@pytest.mark.parametrize("stock", [True, False])
def test_training_an_unfrozen_trunk_leaves_the_models_alone(stock):
    members, wide, x = _ensemble()
    assert wide.get_parameter("0.weight").data_ptr() == members[0][0].weight.data_ptr()
    before, alone = members[0][0].weight.clone(), copy.deepcopy(members)
    wide.shared(x)
    wide.requires_grad_(True)
    alone[0][0].requires_grad_(True)
    parameters = list(dict.fromkeys(p for member in alone for p in member.parameters()))
    optimizers = (
        (torch.optim.SGD if stock else SGD)(wide.parameters(), lr=0.1),
        torch.optim.SGD(parameters, 0.1),
    )
    for _ in range(2):
        for optimizer in optimizers:
            optimizer.zero_grad()
        wide.shared(x).square().sum().backward()
        sum(member(x).square().sum() for member in alone).backward()
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(wide.get_parameter("0.weight"), alone[0][0].weight)
    torch.testing.assert_close(wide.lane_state(2, "2.weight"), alone[2][2].weight.detach())
    assert torch.equal(members[0][0].weight, before)


def test_loading_a_trunk_leaves_the_models_alone():
    members, wide, _ = _ensemble()
    before = members[0][0].weight.clone()
    wide.load_state_dict({name: value * 2 for name, value in wide.state_dict().items()})
    assert torch.equal(members[0][0].weight, before)
    assert torch.equal(wide.get_parameter("0.weight"), before * 2)
