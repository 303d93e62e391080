"""`compile: true`: what repeats is shipped once, compiled on the workers, and gives the same values."""

import logging
import shutil

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wide_compiler.signals as gt
from signals.placed import same_training, signal
from wide_compiler.signals import runtime
from wide_compiler.workers.templates import FLOAT, TENSOR
from wide_compiler.workers.worker import Worker

pytestmark = pytest.mark.usefixtures("workers")
needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="torch.compile needs a C++ compiler here"
)


@needs_compiler
def test_forward_and_backward_are_compiled_where_they_repeat():
    """Uneven shards: the workers compile different shapes."""
    signal("hot_path", [1, 3], compile=True)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4)).double()
    data = torch.randn(11, 6).double(), torch.randn(11, 4).double()

    def plain(model, x, y):
        return F.mse_loss(model(x), y)

    def hot(model, x, y):
        with gt.signal.context("hot_path"):
            return F.mse_loss(model(x), y)

    before = gt.debug.worker_stats()
    done = same_training(model, plain, data, lambda p: torch.optim.SGD(p, lr=0.1), hot)
    assert not any("hot_path" in s["regions"] for s in before)
    tallies = [s["regions"].get("hot_path") for s in gt.debug.worker_stats()]
    assert tallies[0] is None and tallies[2] is None
    for tally in (tallies[1], tallies[3]):
        assert tally["compiled"] >= 2 and tally["reason"] == "", tally
        assert tally["compiled_runs"] >= 2 * 17, tally  # of 20 steps, twice: two replays come first
    assert [d["aten.addmm.default"] for d in done] == [0, 40, 0, 40]
    assert [d["aten.tanh_backward.default"] for d in done] == [0, 20, 0, 20]
    assert "compiled" in gt.debug.explain()["hot_path"].why


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
    assert reason in gt.debug.explain()["hot"].why


def test_writes_and_views_inside_a_region():
    signal("hot", [0, 1, 2], compile=True)
    start = torch.randn(7, 3)

    def program(x):
        y = x * 2
        y.view(-1)[2:9].mul_(10)
        y[1].add_(1)
        y[:, 1] = 0
        return y.sum(0), y

    for _ in range(4):
        x = gt.signal.tensor(gt.tensor(start), name="hot")
        with gt.signal.context("hot"):
            total, y = program(x)
        expected = program(start)
        torch.testing.assert_close(total.cpu(), expected[0])
        torch.testing.assert_close(y.cpu(), expected[1])
    assert "not compiled" in gt.debug.explain()["hot"].why


def test_what_writes_is_not_compiled():
    signal("write", [0, 1], compile=True)
    x = gt.signal.tensor(gt.ones(4, 4), name="write")
    for _ in range(4):
        with gt.signal.context("write"):
            y = (x * 2).add_(1) * 3
    assert y.sum().item() == 9 * 16
    assert "not compiled: it writes to a tensor (aten.add_.Tensor)" in gt.debug.explain()["write"].why


def test_an_error_inside_a_region_is_the_programs_own():
    signal("hot", [0, 1], compile=True)
    x = gt.signal.tensor(gt.ones(4, 4), name="hot")
    index = gt.signal.tensor(gt.tensor([9, 9]), name="hot")
    with gt.signal.context("hot"):
        y = (x * 2 + 1)[index]
    with pytest.raises(gt.WorkerFailed, match="hot"):
        y.sum().item()
    assert x.sum().item() == 16


def test_ops_that_talk_to_other_workers_are_not_compiled():
    signal("talk", [0, 1], compile=True)
    x = gt.signal.tensor(gt.tensor(torch.arange(8.0).reshape(4, 2)), name="talk")
    for _ in range(4):
        with gt.signal.context("talk"):
            y = (x * 2).sum().exp().log() * x
    torch.testing.assert_close(y.cpu(), 56 * torch.arange(8.0).reshape(4, 2))
    assert "not compiled: its ops talk to other workers" in gt.debug.explain()["talk"].why


def test_a_backward_pass_that_fails_ends_its_region():
    signal("hot", [0, 1], compile=True)
    x = gt.signal.tensor(gt.ones(4, 4), name="hot").requires_grad_()
    regions = runtime.engine().regions

    def refuse(grad):
        assert regions.name == "hot" and regions.backward
        raise ZeroDivisionError

    with gt.signal.context("hot"):
        y = x.tanh()
        y.register_hook(refuse)
        total = (y * 2 + 1).exp().sum()
    with pytest.raises(ZeroDivisionError):
        total.backward()
    z = x.detach() + 1
    assert regions.name is None and z.sum().item() == 32


def region(worker, runs):
    """A worker of its own does `x * 2 + 1`, with a view of it, some times; what it made the last time."""
    worker.execute(("mesh", 1, 0, (0,), (1,)))
    worker.values[1] = torch.arange(6.0).reshape(2, 3)
    names = ("aten.mul.Scalar", "aten.add.Scalar")
    for number, name in enumerate(names, 1):
        worker.execute(("template", 1, number, name, ((TENSOR, 0), (FLOAT, 0)), {}))
    worker.execute(("template", 1, 3, "aten.t.default", ((TENSOR, 0),), {}))
    steps = ((1, (0,), 1, 1), (2, (1,), 1, 1), (3, (2,), 1, 0))
    worker.execute(("define", 1, 7, "hot", steps, (2, 3)))
    for k in range(runs):
        ids = (10 * k + 11, 10 * k + 12, 10 * k + 13)
        worker.execute(("region", 1, 7, (1,), ids, (2.0, 1.0)))
    return [worker.values[i] for i in ids[1:]]


def test_a_compiler_that_fails_is_said_and_the_values_are_right(monkeypatch, caplog):
    def broken(function, **options):
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(torch, "compile", broken)
    worker = Worker(0, torch.device("cpu"), 0, lambda request, payload: None)
    with caplog.at_level(logging.WARNING), torch.no_grad():
        made, view = region(worker, 5)
    assert torch.equal(made, torch.arange(6.0).reshape(2, 3) * 2 + 1) and torch.equal(view, made.t())
    tally = worker.region_counts["hot"]
    assert (tally.compiled, tally.compiled_runs, tally.replayed) == (0, 0, 5)
    assert "no compiler here" in tally.reason
    assert caplog.text.count("runs op by op") == 1


def test_views_of_compiled_results_share_their_memory(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    worker = Worker(0, torch.device("cpu"), 0, lambda request, payload: None)
    with torch.no_grad():
        made, view = region(worker, 5)
        made.zero_()
    tally = worker.region_counts["hot"]
    assert (tally.compiled, tally.compiled_runs, tally.replayed) == (1, 3, 2)
    assert not view.any()
    assert worker.instructions == {"aten.mul.Scalar": 5, "aten.add.Scalar": 5, "aten.t.default": 5}
    with torch.no_grad():  # other numbers than those compiled: op by op, and right
        worker.execute(("region", 1, 7, (1,), (91, 92, 93), (3.0, 1.0)))
    assert torch.equal(worker.values[92], torch.arange(6.0).reshape(2, 3) * 3 + 1)
