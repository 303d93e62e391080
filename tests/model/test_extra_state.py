"""What members keep by `get_extra_state` is in state dicts, one entry per lane."""

import copy
import io

import pytest
import torch
from torch import nn

import wide_compiler
from wide_compiler import InputError, WideConfig
from wide_compiler.errors import UnsupportedError


class Scaled(nn.Module):
    """Saves a number, and the largest value seen, which is a plain tensor."""

    def __init__(self, scale):
        super().__init__()
        self.linear, self.scale, self.highest = nn.Linear(4, 4), scale, torch.zeros((), dtype=torch.float64)

    def forward(self, x):
        return self.linear(x) * self.scale + self.highest

    def get_extra_state(self):
        return {"scale": self.scale, "highest": self.highest}

    def set_extra_state(self, state):
        self.scale, self.highest = state["scale"], state["highest"].clone()


def _pair(root):
    torch.manual_seed(0)
    members = [Scaled(1.0 + lane).double() for lane in range(3)]
    for lane, member in enumerate(members):
        member.highest += lane
    members = members if root else [nn.Sequential(member, nn.Tanh()) for member in members]
    x = torch.randn(2, 4, dtype=torch.float64)
    return members, wide_compiler.compile(copy.deepcopy(members), x, config=WideConfig(tune_seconds=0)), x


def _same(wide, members, x):
    for got, member in zip(wide.shared(x), members, strict=True):
        torch.testing.assert_close(got, member(x))


@pytest.mark.parametrize("root", [True, False])
@pytest.mark.parametrize("nested", [True, False])
def test_state_dicts_hold_it(root, nested):
    members, wide, x = _pair(root)
    holder = nn.ModuleDict({"wide": wide}) if nested else wide
    file = io.BytesIO()
    torch.save(holder.state_dict(), file)
    file.seek(0)
    own = members[1] if root else members[1][0]
    own.scale = 7.0
    wide.load_lane(1, members[1])
    _same(wide, members, x)
    own.scale = 2.0
    holder.load_state_dict(torch.load(file))
    _same(wide, members, x)
    _same(copy.deepcopy(wide), members, x)
    torch.testing.assert_close(wide.lane(1)(x), members[1](x))


def test_what_does_not_fit_is_refused(tmp_path):
    _, wide, _ = _pair(True)
    state = wide.state_dict()
    with pytest.raises(RuntimeError, match="_extra_state"):
        wide.load_state_dict({key: value for key, value in state.items() if key != "_extra_state"})
    with pytest.raises(InputError, match="list of 3"):
        wide.load_state_dict({**state, "_extra_state": state["_extra_state"][:2]})
    with pytest.raises(UnsupportedError, match=r"torch\.save"):
        wide.save(tmp_path / "lanes.safetensors")
