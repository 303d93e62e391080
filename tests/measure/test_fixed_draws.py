"""Fixed draws are the same in every gradient mode, and write nothing that an op was given."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wide_compiler
from wide_compiler.measure.fixed_draws import FixedDraws
from wide_compiler.routers import CompileRouter, WideRouter

DRAWS = {
    "dropout": lambda x: F.dropout(x, 0.5, True),
    "dropout of nothing": lambda x: F.dropout(x, 0.0, True),
    "dropout of all": lambda x: F.dropout(x, 1.0, True),
    "dropout in eval": lambda x: F.dropout(x, 0.5, False),
    "dropout in place": lambda x: F.dropout(x.clone(), 0.5, True, inplace=True),
    "channels": lambda x: F.dropout1d(x.unsqueeze(0), 0.5, True),
    "no channels": lambda x: F.dropout1d(x.unsqueeze(0), 0.0, True),
    "alpha": lambda x: F.alpha_dropout(x, 0.3, True),
    "alpha of nothing": lambda x: F.alpha_dropout(x, 0.0, True),
    "alpha of channels": lambda x: F.feature_alpha_dropout(x.unsqueeze(0), 0.3, True),
    "like": torch.rand_like,
    "coin": lambda x: torch.bernoulli(x.sigmoid()),
    "normal": lambda x: torch.normal(x, 1.0),
    "in place": lambda x: x.clone().uniform_(),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.3),
}
MODES = [torch.enable_grad, torch.no_grad, torch.inference_mode]


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_the_same_in_every_mode_and_nothing_is_written(draw):
    x = torch.randn(3, 4)
    given, found = x.clone(), []
    for mode in MODES:
        with mode(), FixedDraws():
            found.append(draw(given).clone())
        assert torch.equal(given, x)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_dropout_is_the_identity_in_inference_mode():
    x = torch.randn(3, 4)
    with torch.inference_mode(), FixedDraws():
        assert torch.equal(F.dropout(x, 0.5, True), x)


class Branches(nn.Module):
    def __init__(self, members):
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x):
        return [member(x) for member in self.members]


def wide_call(members, sample, config):
    wide = wide_compiler.compile(members, sample, config=config)
    return lambda x: list(wide.shared(x))


def router_call(members, sample, config):
    router = WideRouter("router", config=config)
    for i, member in enumerate(members):
        router.attach(f"t{i}", member)
        router.register_tower(f"t{i}")
    return lambda x: list(router.wide_forward(x).values())


def branches_call(members, sample, config):
    return CompileRouter.from_module(Branches(members), sample, config=config).compile()


@pytest.mark.parametrize("door", [wide_call, router_call, branches_call])
@pytest.mark.parametrize("draw", [nn.Dropout(0.0), nn.Dropout1d(0.0), nn.AlphaDropout(0.0)])
@pytest.mark.parametrize("mode", MODES)
def test_no_door_writes_its_input_while_it_compares(door, draw, mode):
    members = [nn.Sequential(copy.deepcopy(draw), nn.Linear(6, 5)).double() for _ in range(3)]
    sample = torch.randn(2, 6, dtype=torch.float64)
    call = door(copy.deepcopy(members), sample, wide_compiler.WideConfig(tune_seconds=0.02))
    for _ in range(2):
        x = torch.randn(3, 6, dtype=torch.float64)
        before = x.clone()
        with mode():
            got = call(x)
        assert torch.equal(x, before)
        for one, member in zip(got, members, strict=True):
            torch.testing.assert_close(one, member(x), rtol=1e-9, atol=1e-12)
