"""Workers come when they are named; what lives on those that run stays."""

import pytest
import torch
from torch import nn

import wide_compiler.signals as gt
from signals.placed import signal
from wide_compiler.errors import ArgumentError
from wide_compiler.signals import runtime


@pytest.fixture(autouse=True)
def few():
    """None at first; as many as each test names."""
    gt.shutdown()
    gt.clear_configs()
    yield
    gt.shutdown()
    gt.clear_configs()


def count():
    return len(runtime.engine().pool.pids)


def test_the_signal_that_grows_with_the_batch():
    def configure_for_batch_size(batch_size):
        signal("training", [0, 1, 2, 3] if batch_size >= 256 else [0, 1])

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.0), nn.BatchNorm1d(8), nn.Linear(8, 2)).double()
    alone = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.0), nn.BatchNorm1d(8), nn.Linear(8, 2)).double()
    alone.load_state_dict(model.state_dict())
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.01) for m in (model, alone)]
    for batch_size, workers in ((64, 2), (256, 4), (64, 4), (300, 4)):
        batch = torch.randn(batch_size, 4).double()
        configure_for_batch_size(batch_size)
        with gt.signal.context("training"):
            output = model(batch)
        losses = [(output**2).mean(), (alone(batch) ** 2).mean()]
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-9)
        assert count() == workers
        assert gt.debug.placement(output)[0] == ((0, 1) if batch_size < 256 else (0, 1, 2, 3))
    for a, b in zip(model.state_dict().values(), alone.state_dict().values(), strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-9, atol=1e-12)


def test_values_views_and_meshes_outlive_the_newcomers():
    signal("two", [0, 1])
    with gt.signal.context("two"):
        x = gt.tensor(torch.arange(12.0).reshape(6, 2))
        view, turned = x[1:4], x.t()
        total = x.sum()  # a partial sum
    late = gt.ones(3)
    signal("five", [0, 2, 4])
    with gt.signal.context("five"):
        y = x * 2  # from the old mesh to one of old and new workers
        assert torch.equal(y.cpu(), torch.arange(12.0).reshape(6, 2) * 2)
    assert count() == 5 and total.item() == 66 and late.sum().item() == 3
    with torch.no_grad():
        view.zero_()
    assert torch.equal(x.cpu()[1:4], torch.zeros(3, 2)) and torch.equal(turned.cpu(), x.cpu().t())
    with gt.signal.context("two"):
        torch.testing.assert_close((x.t() @ x).cpu(), x.cpu().t() @ x.cpu())
        assert torch.equal((gt.ones(5, 3) @ gt.ones(3, 3)).cpu(), torch.full((5, 3), 3.0))


def test_workers_asked_for_by_hand():
    gt.cpu_workers(2)
    x = gt.ones(4)
    gt.cpu_workers(3)
    assert count() == 3 and x.sum().item() == 4
    gt.cpu_workers(2)  # enough run
    assert count() == 3
    assert len(gt.debug.worker_stats()) == 3
    with pytest.raises(ArgumentError, match="at least 1"):
        gt.cpu_workers(0)


def test_after_a_restart_as_many_come_back(tmp_path):
    signal("two", [0, 1])
    with gt.signal.context("two"):
        x = gt.ones(4)
    gt.cpu_workers(3)
    gt.checkpoint(tmp_path)
    gt.restart(tmp_path)
    assert count() == 3 and x.sum().item() == 4


def test_compiled_contexts_go_on():
    signal("hot", [0, 1], compile=True)
    x = gt.tensor(torch.arange(8.0))
    for step in range(6):
        with gt.signal.context("hot"):
            y = ((x * 2 + 1).relu() * 3).sum()
        assert y.item() == 3 * (2 * 28 + 8)
        if step == 3:
            gt.cpu_workers(3)
