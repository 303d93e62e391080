"""A forward that sets PyTorch's random generator runs as Python: a graph would draw on."""

import pytest
import torch
from torch import nn

import wide_compiler
from fn import Fn
from wide_compiler import WideConfig


def seeded(m, x):
    torch.manual_seed(3)
    return x * m.w + torch.randn(3)


def seeded_in_a_fork(m, x):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        noise = torch.randn(3)
    return x * m.w + noise


def state_set(m, x):
    state = torch.get_rng_state()
    noise = torch.randn(3)
    torch.set_rng_state(state)
    return x * m.w + noise + torch.randn(3)


@pytest.mark.parametrize("forward", [seeded, seeded_in_a_fork, state_set])
def test_a_forward_that_sets_the_generator_runs_as_a_loop(forward):
    models = [Fn(forward, w=nn.Parameter(torch.randn(3))) for _ in range(3)]
    wide = wide_compiler.compile(models, torch.randn(2, 3), config=WideConfig(tune_seconds=0))
    assert "its forward calls torch's" in wide.explain(measure=False).why
    x = torch.randn(2, 3)
    torch.manual_seed(0)
    expected = torch.stack([model(x) for model in models])
    torch.manual_seed(0)
    torch.testing.assert_close(wide.shared(x), expected)


def test_a_forward_that_only_draws_keeps_its_rule():
    models = [Fn(lambda m, x: x * m.w + torch.randn(3), w=nn.Parameter(torch.randn(3))) for _ in range(3)]
    wide = wide_compiler.compile(models, torch.randn(2, 3), config=WideConfig(tune_seconds=0))
    assert wide.explain(measure=False).coverage == 1.0
    lanes = wide.shared(torch.zeros(2, 3))
    assert not torch.equal(lanes[0], lanes[1])
