"""Routers under activation checkpointing: what is built in a first call is not part of the user's forward."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from routers.doors import DOORS, Sums
from routers.towers import AT_ONCE
from wide_compiler import WideConfig


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("config", [AT_ONCE, WideConfig()], ids=["at once", "measured"])
@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
def test_a_checkpoint_around_a_router(door, config, warm):
    x = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    model, joined, alone, expected = door(Sums, x.detach(), config)
    if warm:
        joined(x.detach())
    for _ in range(3):
        checkpoint(joined, x, use_reentrant=False).square().sum().backward()
        expected().square().sum().backward()
    for (name, p), q in zip(model.named_parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-10, atol=1e-10, msg=name)
