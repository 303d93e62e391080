"""What every wide module shares: from_modules, its refusals, to_modules."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import wide_compiler
from primitives.loop import make_members, rand
from wide_compiler import primitives as library
from wide_compiler.primitives import (
    WideAttention,
    WideBatchNorm2d,
    WideConv2d,
    WideInstanceNorm,
    WideLinear,
    WideLSTM,
)


def linears(n: int = 4) -> list[nn.Module]:
    return make_members(lambda: nn.Linear(3, 2), n=n)


def test_no_modules() -> None:
    with pytest.raises(ValueError, match="WideLinear: got no modules"):
        WideLinear.from_modules([])


def test_a_single_module_is_not_a_sequence() -> None:
    with pytest.raises(TypeError, match=r"sequence of modules.*Linear"):
        WideLinear.from_modules(nn.Linear(2, 2))  # type: ignore[arg-type]


def test_module_list_is_a_sequence() -> None:
    assert WideLinear.from_modules(nn.ModuleList(linears())).n == 4


def test_wrong_type_names_lane_expected_got() -> None:
    with pytest.raises(TypeError, match=r"lane 2: expected nn\.Linear, got Conv2d"):
        WideLinear.from_modules([*linears(2), nn.Conv2d(1, 1, 1)])


def test_subclass_with_its_own_forward_is_another_type() -> None:
    class Doubled(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(input)

    class Renamed(nn.Linear):
        pass

    with pytest.raises(TypeError, match=r"lane 0: expected nn\.Linear, got Doubled"):
        WideLinear.from_modules([Doubled(3, 2)])
    assert type(WideLinear.from_modules([Renamed(3, 2)]).to_modules()[0]) is Renamed


def test_lanes_of_two_classes() -> None:
    with pytest.raises(TypeError, match="lane 1 is InstanceNorm2d, lane 0 is InstanceNorm1d"):
        WideInstanceNorm.from_modules([nn.InstanceNorm1d(2), nn.InstanceNorm2d(2)])


@pytest.mark.parametrize(
    ("first", "other", "message"),
    [
        (nn.Linear(3, 128), nn.Linear(3, 64), "lane 3: out_features is 64, lane 0 has 128"),
        (nn.Linear(3, 2), nn.Linear(3, 2, bias=False), r"lane 3: bias.shape is None, lane 0 has \(2,\)"),
        (nn.Linear(3, 2, bias=False), nn.Linear(3, 2), r"lane 3: bias.shape is \(2,\), lane 0 has None"),
        (
            nn.Linear(3, 2),
            nn.Linear(3, 2).double(),
            "weight.dtype is torch.float64, lane 0 has torch.float32",
        ),
        (nn.Linear(3, 2), nn.Linear(3, 2).eval(), "lane 3: training is False, lane 0 has True"),
        (
            nn.Linear(3, 2),
            nn.Linear(3, 2).requires_grad_(False),
            "weight.requires_grad is False, lane 0 has True",
        ),
        (nn.Linear(3, 2), nn.Linear(3, 2, device="meta"), "weight.device is 'meta', lane 0 has 'cpu'"),
    ],
)
def test_lanes_that_differ(first: nn.Module, other: nn.Module, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WideLinear.from_modules([first, first, first, other])


def test_other_settings_that_differ() -> None:
    with pytest.raises(ValueError, match=r"lane 1: stride is \(2, 2\), lane 0 has \(1, 1\)"):
        WideConv2d.from_modules([nn.Conv2d(1, 1, 3), nn.Conv2d(1, 1, 3, stride=2)])
    with pytest.raises(ValueError, match=r"lane 1: momentum is None, lane 0 has 0\.1"):
        WideBatchNorm2d.from_modules([nn.BatchNorm2d(2), nn.BatchNorm2d(2, momentum=None)])
    with pytest.raises(ValueError, match=r"lane 1: bias_k\.shape is"):
        WideAttention.from_modules(
            [nn.MultiheadAttention(4, 2), nn.MultiheadAttention(4, 2, add_bias_kv=True)]
        )


def test_unknown_strategy_lists_the_choices() -> None:
    choices = "'auto', 'einsum', 'transposed', 'tensor_core', 'sequential'"
    with pytest.raises(ValueError, match=f"'warp'; choose one of {choices}"):
        WideLinear.from_modules(linears(), "warp")


def test_lazy_hooked_and_parametrized_members_are_refused() -> None:
    with pytest.raises(ValueError, match="lane 0: the parameters of LazyLinear are not initialised"):
        WideLinear.from_modules([nn.LazyLinear(3)])
    hooked = nn.Linear(3, 2)
    hooked.register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match=r"lane 1: .*hooks"):
        WideLinear.from_modules([nn.Linear(3, 2), hooked])
    with pytest.raises(ValueError, match="parametrizations"):
        WideLinear.from_modules([nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))])


def test_weights_are_copies_both_ways() -> None:
    members = linears()
    wide = WideLinear.from_modules(members)
    back = wide.to_modules()
    with torch.no_grad():
        wide.weight.zero_()
    assert members[0].weight.abs().sum() > 0 and back[0].weight.abs().sum() > 0


def test_flags_are_kept() -> None:
    members = [m.requires_grad_(False).eval() for m in linears()]
    wide = WideLinear.from_modules(members)
    assert not wide.training and not wide.weight.requires_grad
    back = wide.to_modules()[0]
    assert not back.training and not back.weight.requires_grad


def test_skeleton_is_no_submodule_and_copies_travel() -> None:
    wide = WideLSTM.from_modules(make_members(lambda: nn.LSTM(3, 2, num_layers=2)))
    assert list(wide.state_dict()) == list(nn.LSTM(3, 2, num_layers=2).state_dict())
    assert not list(wide.children())
    x = rand(3, 4, 2, 3)
    for other in (copy.deepcopy(wide), pickle.loads(pickle.dumps(wide))):
        assert torch.equal(other(x)[0], wide(x)[0])
        lane = other.to_modules()[1]
        assert torch.allclose(lane(x[1])[0], wide(x)[0][1])


def test_repr() -> None:
    assert (
        repr(WideLinear.from_modules(linears()))
        == "WideLinear(n=4, in_features=3, out_features=2, strategy='auto')"
    )


PACKED = {
    "WideLinear": ((6, 5), (2, 6)),
    "WideConv1d": ((4, 5, 3), (2, 4, 6)),
    "WideConv2d": ((4, 5, 3), (2, 4, 6, 6)),
    "WideConvTranspose2d": ((4, 5, 3), (2, 4, 6, 6)),
    "WideBatchNorm1d": ((4,), (2, 4, 6)),
    "WideBatchNorm2d": ((4,), (2, 4, 6, 6)),
    "WideLayerNorm": ((6,), (2, 4, 6)),
    "WideRMSNorm": ((6,), (2, 4, 6)),
    "WideGroupNorm": ((2, 4), (2, 4, 6)),
    "WidePReLU": ((4,), (2, 4, 6)),
    "WideInstanceNorm2d": ((4, 1e-5, 0.1, True), (2, 4, 6, 6)),
}


@pytest.mark.parametrize("name", PACKED)
def test_made_of_a_number_of_lanes_it_takes_and_gives_packed_tensors(name):
    torch.compiler.reset()  # one code object for all of them, which Dynamo compiles eight times at most
    arguments, shape = PACKED[name]
    wide = getattr(library, name)(3, *arguments)
    members = wide.to_modules()
    inputs = [torch.randn(shape) for _ in members]
    got = wide(wide_compiler.pack(inputs))
    expected = wide_compiler.pack([m(x) for m, x in zip(members, inputs, strict=True)])
    torch.testing.assert_close(got, expected)
    got.sum().backward()
    compiled = torch.compile(wide.eval(), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(wide_compiler.pack(inputs)), wide(wide_compiler.pack(inputs)))


def test_lanes_made_of_a_number_start_differently_and_take_a_strategy():
    wide = library.WideLinear(3, 4, 2, bias=False, strategy="sequential")
    assert wide.bias is None and wide.strategy == "sequential" and "n=3" in repr(wide)
    assert not torch.equal(wide.weight[0], wide.weight[1])
    assert wide(torch.randn(5, 12)).shape == (5, 6)
    assert copy.deepcopy(wide)(torch.ones(1, 12)).shape == (1, 6)
    stacked = library.WideLinear.from_modules([torch.nn.Linear(4, 2) for _ in range(3)])
    assert stacked(torch.randn(3, 5, 4)).shape == (3, 5, 2)


@pytest.mark.parametrize("n", [0, -1, True])
def test_a_number_of_lanes_that_is_none(n):
    with pytest.raises(ValueError, match="must be a positive integer"):
        library.WideLinear(n, 4, 2)


def test_a_channel_count_that_does_not_divide():
    with pytest.raises(ValueError, match="not divisible by 3 lanes"):
        library.WideLinear(3, 4, 2)(torch.randn(5, 13))
