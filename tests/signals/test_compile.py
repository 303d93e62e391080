"""`compile: true`: a region is shipped once and replayed by number, with the same values."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wide_compiler.signals as gt
from signals.placed import same_training, signal

pytestmark = pytest.mark.usefixtures("workers")


def test_a_training_step_is_shipped_once():
    signal("hot_path", [0, 1, 2, 3], compile=True)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4)).double()
    data = torch.randn(12, 6).double(), torch.randn(12, 4).double()

    def plain(model, x, y):
        return F.mse_loss(model(x), y)

    def hot(model, x, y):
        x, y = gt.signal.tensor(x, name="hot_path"), gt.signal.tensor(y, name="hot_path")
        with gt.signal.context("hot_path"):
            return F.mse_loss(model(x), y)

    same_training(model, plain, data, lambda p: torch.optim.SGD(p, lr=0.1), hot)
    said = gt.debug.explain()["hot_path"]
    # The first step moves the parameters to their workers, so the second ships.
    assert "1 region(s) shipped, replayed 18 times" in said, said


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (lambda x: x + gt.randn(4, 4), "new tensor"),
        (lambda x: F.dropout(x, 0.5, True), "random draw"),
        (lambda x: x * x.sum().item(), "value that the script reads"),
        (lambda x: x + torch.ones(4, 4).mul(2), "new tensor"),
    ],
)
def test_what_no_region_can_hold_is_said(body, reason):
    signal("hot", [0, 1], compile=True)
    gt.manual_seed(1)
    x = gt.signal.tensor(gt.ones(4, 4), name="hot")
    with gt.signal.context("hot"):
        body(x * 1).sum()
    assert reason in gt.debug.explain()["hot"]


def test_writes_and_views_inside_a_region():
    signal("hot", [0, 1, 2], compile=True)
    start = torch.randn(7, 3)

    def program(x):
        y = x * 2
        y.view(-1)[2:9].mul_(10)
        y[1].add_(1)
        y[:, 1] = 0
        return y.sum(0), y

    for _ in range(3):
        x = gt.signal.tensor(gt.tensor(start), name="hot")
        with gt.signal.context("hot"):
            total, y = program(x)
        expected = program(start)
        torch.testing.assert_close(total.cpu(), expected[0])
        torch.testing.assert_close(y.cpu(), expected[1])


def test_an_error_inside_a_region_is_the_programs_own():
    signal("hot", [0, 1], compile=True)
    x = gt.signal.tensor(gt.ones(4, 4), name="hot")
    index = gt.signal.tensor(gt.tensor([9, 9]), name="hot")
    with gt.signal.context("hot"):
        y = (x * 2)[index]
    with pytest.raises(gt.WorkerFailed, match="hot"):
        y.sum().item()
    assert x.sum().item() == 16
