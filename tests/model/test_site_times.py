"""Calls too long to time every strategy: ops are timed alone, and results equal the loop."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wide_compiler
from measure.clocks import HeldClock
from wide_compiler import oracle
from wide_compiler.measure import use_clock

N = 3


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WIDE_COMPILER_CACHE", str(tmp_path))


class LongCalls(HeldClock):
    """Every call takes a second, so that few can be afforded."""

    def once(self, call, cuda):
        call()
        return 1.0


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)
        self.up, self.down = nn.Linear(64, 8), nn.Linear(8, 3)

    def forward(self, x):
        x = F.dropout(F.relu(self.norm(self.conv(x))), 0.0)
        return self.down(F.gelu(self.up(x.flatten(1))))


def built():
    models = [Net().double() for _ in range(N)]
    return models, wide_compiler.compile(models, torch.randn(5, 2, 6, 6, dtype=torch.float64))


@pytest.mark.parametrize("gradients", [False, True])
def test_the_fastest_strategy_of_each_op_is_taken(gradients):
    models, wide = built()
    clock = LongCalls(lambda label: 1.0 if "transposed" in label or "sequential" in label else 2.0)
    x = torch.randn(N, 5, 2, 6, 6, dtype=torch.float64)
    with use_clock(clock), torch.set_grad_enabled(gradients):
        wide.stacked(x)
    for model, own in zip(models, x, strict=True):
        model(own)  # moves its statistics, as the call above has
    assert {"einsum", "transposed", "grouped", "sequential"} <= set(clock.tried)  # ops alone
    chosen = {row.op: row.strategy for row in wide.explain(measure=False).rows}
    assert chosen["linear.default"] == "transposed" and chosen["conv2d.default"] == "sequential"
    inputs = [((torch.randn(5, 2, 6, 6, dtype=torch.float64),), {}) for _ in range(N)]
    oracle.compare(models, wide, inputs, gradients=gradients, learning_rate=0.1).check(1e-9, 1e-9)


def test_buffers_and_random_numbers_are_as_after_one_call():
    models, wide = built()
    x = torch.randn(N, 5, 2, 6, 6, dtype=torch.float64)
    torch.manual_seed(11)
    with use_clock(LongCalls(lambda label: 1.0)):
        out = wide.stacked(x)
    assert torch.equal(torch.rand(2), torch.rand(2, generator=torch.Generator().manual_seed(11)))
    torch.testing.assert_close(out, torch.stack([m(a) for m, a in zip(models, x, strict=True)]))
    for lane, model in enumerate(models):
        torch.testing.assert_close(wide.lane(lane).norm.running_mean, model.norm.running_mean)
        assert wide.lane(lane).norm.num_batches_tracked == 1


def test_an_op_that_computes_something_else_is_left_out(monkeypatch):
    from wide_compiler.primitives import linear

    monkeypatch.setitem(linear._PRODUCTS, "transposed", lambda x, w, b: linear._einsum(x, w, b) + 1)
    _, wide = built()
    with use_clock(LongCalls(lambda label: 1.0 if "transposed" in label else 2.0)) as clock:
        wide.stacked(torch.randn(N, 5, 2, 6, 6, dtype=torch.float64))
    assert "transposed" not in clock.tried
    chosen = {row.op: row.strategy for row in wide.explain(measure=False).rows}
    assert chosen["linear.default"] == "einsum"
