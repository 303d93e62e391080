"""Clipping by lane is torch's clipping of each model alone."""

import pytest
import torch
from torch import nn

import wide_compiler
from training.loops import PLAIN, Net
from wide_compiler.training import clip_lane_norms_, clip_lane_values_

N = 3


def gradients():
    models = [Net().double() for _ in range(N)]
    x = torch.randn(N, 4, 5).double()
    wide = wide_compiler.compile(models, x[0], config=PLAIN)
    wide.stacked(x).square().sum().backward()
    for model, a in zip(models, x, strict=True):
        model(a).square().sum().backward()
    return wide, models


def check(wide, models):
    for name, p in wide.named_parameters():
        expected = torch.stack([m.get_parameter(name).grad for m in models])
        torch.testing.assert_close(p.grad, expected)


@pytest.mark.parametrize("kind", [1.0, 2.0, float("inf")])
@pytest.mark.parametrize("limits", [0.5, [0.1, 2.0, 1e6]])
def test_norms(limits, kind):
    wide, models = gradients()
    norms = clip_lane_norms_(wide.parameters(), limits, kind)
    for lane, model in enumerate(models):
        limit = limits[lane] if isinstance(limits, list) else limits
        expected = torch.nn.utils.clip_grad_norm_(model.parameters(), limit, kind)
        torch.testing.assert_close(norms[lane], expected)
    check(wide, models)


@pytest.mark.parametrize("limits", [0.05, [0.01, 0.1, 1e6]])
def test_values(limits):
    wide, models = gradients()
    clip_lane_values_(wide.parameters(), limits)
    for lane, model in enumerate(models):
        limit = limits[lane] if isinstance(limits, list) else limits
        torch.nn.utils.clip_grad_value_(model.parameters(), limit)
    check(wide, models)


def test_a_lane_that_is_not_finite_changes_no_other():
    wide, models = gradients()
    wide.get_parameter("up.bias").grad[1, 2] = float("nan")
    norms = clip_lane_norms_(wide.parameters(), 0.5)
    assert norms.isnan().tolist() == [False, True, False]
    for model in models:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    for name, p in wide.named_parameters():
        for lane in (0, 2):
            torch.testing.assert_close(p.grad[lane], models[lane].get_parameter(name).grad)
    with pytest.raises(RuntimeError, match=r"lanes \[1\] are not finite"):
        clip_lane_norms_(wide.parameters(), 0.5, error_if_nonfinite=True)


def test_half_precision_norms_are_summed_in_single():
    wide = wide_compiler.compile(nn.Linear(500, 100).bfloat16(), torch.randn(2, 500).bfloat16(), n=2)
    for p in wide.parameters():
        p.grad = torch.ones_like(p)
    norms = clip_lane_norms_(wide.parameters(), 1.0)
    torch.testing.assert_close(norms, torch.full((2,), 50100.0).sqrt(), rtol=1e-4, atol=0)


def test_bad_input():
    trunk = nn.Linear(3, 3)
    models = [nn.Sequential(trunk, nn.Linear(3, 2)) for _ in range(N)]
    wide = wide_compiler.compile(models, torch.randn(2, 3), config=PLAIN)
    wide.shared(torch.randn(2, 3)).sum().backward()
    with pytest.raises(
        ValueError, match=r"0\.weight is one tensor for all lanes, so its gradient belongs to no single lane"
    ):
        clip_lane_norms_(wide.parameters(), 1.0)
    own = [p for name, p in wide.named_parameters() if wide.has_lanes(name)]
    assert clip_lane_norms_(own, 1.0).shape == (N,)
    with pytest.raises(ValueError, match="max_norm of lane 1 is -1"):
        clip_lane_norms_(own, [1.0, -1.0, 1.0])
    with pytest.raises(ValueError, match="takes the parameters of a wide model"):
        clip_lane_norms_(trunk.parameters(), 1.0)
