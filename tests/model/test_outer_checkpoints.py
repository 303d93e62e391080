"""`torch.utils.checkpoint` around a wide model: its forward runs a second time, in the backward pass."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import wide_compiler
from wide_compiler import UnsupportedError, WideConfig


def _members():
    torch.manual_seed(0)
    layers = [[nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)] for _ in range(3)]
    return [nn.Sequential(*own).double() for own in layers]


def _wide(members):
    sample = torch.randn(3, 4, dtype=torch.float64)
    return wide_compiler.compile(copy.deepcopy(members), sample, config=WideConfig(tune_seconds=0)), sample


@pytest.mark.parametrize("reentrant", [True, False])
def test_held_lanes_stay_in_the_second_forward(reentrant):
    members = _members()
    wide, x = _wide(members)
    wide.hold_lanes([1])
    x.requires_grad_()
    checkpoint(wide.shared, x, use_reentrant=reentrant).square().sum().backward()
    for lane, member in enumerate(members):
        if lane != 1:
            checkpoint(member, x, use_reentrant=reentrant).square().sum().backward()
        for name, buffer in member.named_buffers():
            torch.testing.assert_close(wide.lane_state(lane, name), buffer)


@pytest.mark.parametrize("reentrant", [True, False])
def test_draws_are_repeated_or_refused(reentrant):
    wide, x = _wide(_members())
    x.requires_grad_()

    def gradients(run):
        torch.manual_seed(1)
        wide.zero_grad()
        run(x).square().sum().backward()
        return [p.grad for p in wide.parameters()]

    def second(x):
        return checkpoint(wide.shared, x, use_reentrant=reentrant)

    for got, want in zip(gradients(second), gradients(wide.shared), strict=True):
        torch.testing.assert_close(got, want)
    wide.seed(7)
    with pytest.raises(UnsupportedError, match=r"torch\.utils\.checkpoint"):
        gradients(second)
    wide.eval()  # nothing is drawn
    for got, want in zip(gradients(second), gradients(wide.shared), strict=True):
        torch.testing.assert_close(got, want)
