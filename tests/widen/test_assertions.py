"""Assertions about values fire if any lane violates them, and cost no fast path."""

import pytest
import torch
from torch import nn

import wide_compiler
from fn import Fn
from wide_compiler import WideConfig


def compiled(function):
    torch.manual_seed(0)
    models = [Fn(function, w=nn.Parameter(torch.ones(3) * (lane + 1))) for lane in range(3)]
    return models, wide_compiler.compile(models, torch.ones(2, 3), config=WideConfig(tune_seconds=0))


ABOUT_LANES = {
    "with a message": lambda m, x: torch._assert_async((x * m.w < 100).all(), "too large"),
    "without": lambda m, x: torch._assert_async((x * m.w < 100).all()),
    "of a number": lambda m, x: torch._assert_async(((x * m.w).max() < 100).float().reshape(1), "too large"),
}


@pytest.mark.parametrize("name", ABOUT_LANES)
def test_an_assertion_fires_if_one_lane_violates_it(name):
    def forward(m, x):
        ABOUT_LANES[name](m, x)
        return x * m.w

    models, wide = compiled(forward)
    assert wide.explain(measure=False).coverage == 1.0
    right = torch.ones(2, 3)
    torch.testing.assert_close(wide.shared(right), torch.stack([model(right) for model in models]))
    too_large = right * 40  # 40, 80 and 120: only the last lane violates it
    models[1](too_large)
    with pytest.raises(RuntimeError):
        models[2](too_large)
    with pytest.raises(RuntimeError, match=None if name == "without" else "too large"):
        wide.shared(too_large)
    with pytest.raises(RuntimeError):
        wide.each([right, too_large * 3, right])


def test_an_assertion_about_a_shared_value_fires():
    def forward(m, x):
        torch._assert_async((x < 100).all(), "too large")
        return x * m.w

    _, wide = compiled(forward)
    wide.shared(torch.ones(2, 3))
    with pytest.raises(RuntimeError, match="too large"):
        wide.shared(torch.ones(2, 3) * 200)


def test_a_check_of_a_number_read_from_a_tensor_fires():
    def forward(m, x):
        total = x.sum().item()
        torch._check(total < 100)
        return x * m.w * total

    models, wide = compiled(forward)
    x = torch.ones(2, 3)
    torch.testing.assert_close(wide.shared(x), torch.stack([model(x) for model in models]))
    with pytest.raises(RuntimeError):
        models[0](x * 200)
    with pytest.raises(RuntimeError):
        wide.shared(x * 200)


def test_a_number_that_lanes_share_by_chance_is_read_lane_by_lane():
    def forward(m, x):
        return x * m.w * (x > 0).sum().item()

    models, wide = compiled(forward)  # the sample counts alike in all lanes
    xs = [torch.ones(2, 3), -torch.ones(2, 3), torch.randn(2, 3)]
    expected = [model(x) for model, x in zip(models, xs, strict=True)]
    torch.testing.assert_close(torch.stack(wide.each(xs)), torch.stack(expected))
