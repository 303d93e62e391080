"""Meshes of two dimensions, parameters that are cut while data parallel, gradients that are summed once."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wide_compiler.signals as gt
from signals.placed import same_training, train

pytestmark = pytest.mark.usefixtures("workers")
GRID = [[0, 1], [2, 3]]

# What each says of the first weight, and of the rows of data.
SIGNALS = {
    "data x tensor, columns": (gt.ShardConfig([0, None], GRID, [None, 0]), "R, S(0)", "S(0), R"),
    "data x tensor, rows": (gt.ShardConfig([0, None], GRID, [None, 1]), "R, S(1)", "S(0), R"),
    "both axes of both": (gt.ShardConfig([0, 1], GRID), "R, S(1)", "S(0), S(1)"),
    "cut parameters": (gt.ShardConfig(0, [0, 1, 2, 3], 0), "S(0)", "S(0)"),
    "cut parameters on three": (gt.ShardConfig(0, [0, 2, 3], 1), "S(1)", "S(0)"),
    "cut within rows of the grid": (gt.ShardConfig([0, 0], GRID, [None, 0]), "R, S(0)", "S(0), S(0)"),
    "cut parameters x tensor": (gt.ShardConfig([0, None], GRID, [0, 0]), "S(0), S(0)", "S(0), R"),
}


def network():
    torch.manual_seed(0)
    layers = nn.Linear(6, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 4)
    return nn.Sequential(*layers).double()


def rows(n=13):
    torch.manual_seed(1)
    return torch.randn(n, 6, dtype=torch.float64), torch.randn(n, 4, dtype=torch.float64)


def adam(params):
    return torch.optim.Adam(params, lr=1e-2)


def loss_of(model, x, y):
    return F.mse_loss(model(x), y)


def under(name):
    def placed(model, x, y):
        with gt.signal.context(name):
            return loss_of(model, gt.signal.tensor(x, name), gt.signal.tensor(y, name))

    return placed


@pytest.mark.parametrize("name", SIGNALS)
def test_training(name):
    """Uneven rows, AdamW; parameters, gradients and optimiser state lie as the signal says."""
    shard, weights, data = SIGNALS[name]
    gt.register_config(name, gt.SignalConfig(shard))
    model = network()
    states = []

    def make(params):
        states.append(torch.optim.AdamW(params, lr=1e-2))
        return states[-1]

    done = same_training(model, loss_of, rows(), make, under(name))
    weight = model[0].weight
    held = shard.ids
    assert gt.debug.placement(weight) == (held, weights)
    assert gt.debug.placement(weight.grad) == (held, weights)
    assert gt.debug.placement(states[-1].state[weight]["exp_avg"]) == (held, weights)
    assert gt.debug.placement(gt.signal.tensor(rows()[0], name)) == (held, data)
    assert [d["aten.addmm.default"] for d in done] == [40 * (w in held) for w in range(4)]


@pytest.mark.parametrize("name", SIGNALS)
def test_parameters_made_inside(name):
    shard, weights, _ = SIGNALS[name]
    gt.register_config(name, gt.SignalConfig(shard))
    alone = network()
    with gt.signal.context(name):
        model = network()
    model.load_state_dict(alone.state_dict())
    assert gt.debug.placement(model[0].weight) == (shard.ids, weights)
    data = rows()
    expected = train(alone, loss_of, data, adam(alone.parameters()), 5)
    got = train(model, under(name), [gt.tensor(x) for x in data], adam(model.parameters()), 5)
    torch.testing.assert_close(torch.tensor(got), torch.tensor(expected), rtol=1e-9, atol=1e-9)
    assert gt.debug.placement(model[0].weight.grad) == (shard.ids, weights)


def between(before, name):
    return [new[name] - old[name] for old, new in zip(before, gt.debug.worker_stats(), strict=True)]


def test_memory_of_a_worker_falls():
    """Parameters, gradients and both moments: a fourth on each of four workers, half where a grid halves."""
    held = {}
    for name, shard in {
        "whole": gt.ShardConfig(0, [0, 1, 2, 3]),
        "cut": gt.ShardConfig(0, [0, 1, 2, 3], 0),
        "tensor": gt.ShardConfig([0, None], GRID, [None, 0]),
    }.items():
        gt.register_config(name, gt.SignalConfig(shard))
        before = [s["memory"] for s in gt.debug.worker_stats()]
        model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
        optimizer = adam(model.parameters())
        with gt.signal.context(name):
            model(gt.randn(8, 64)).sum().backward()
        optimizer.step()
        held[name] = [s["memory"] - b for s, b in zip(gt.debug.worker_stats(), before, strict=True)]
        del model, optimizer
    size = 4 * (2 * 64 * 64 + 2 * 64) * 4
    assert all(size <= bytes_ <= size * 1.3 for bytes_ in held["whole"])
    assert all(bytes_ < size / 4 * 1.3 for bytes_ in held["cut"])
    assert all(bytes_ < size / 2 * 1.3 for bytes_ in held["tensor"])


def test_cut_parameters_are_gathered_and_their_gradients_reduce_scattered():
    gt.register_config("cut", gt.SignalConfig(gt.ShardConfig(0, [0, 1, 2, 3], 0)))
    model = nn.Linear(8, 8)
    with gt.signal.context("cut"):
        x = gt.randn(8, 8)
        before = gt.debug.worker_stats()
        loss = model(x).square().sum()
    assert between(before, "all_gathers") == [2] * 4  # weight and bias
    before = gt.debug.worker_stats()
    loss.backward()
    assert between(before, "all_reduces") == [0] * 4
    assert between(before, "reduce_scatters") == [2] * 4
    before = gt.debug.worker_stats()
    optimizer = adam(model.parameters())
    optimizer.step()
    assert between(before, "all_gathers") == between(before, "all_reduces") == [0] * 4


def test_gradients_are_summed_once_however_many_backward_passes():
    gt.register_config("rows", gt.SignalConfig(gt.ShardConfig(0, [0, 1, 2, 3])))
    alone = network()
    model = copy.deepcopy(alone)
    (x, y), optimizers = rows(16), (adam(alone.parameters()), adam(model.parameters()))
    placed = under("rows")
    for step in range(3):
        before = gt.debug.worker_stats()
        for k in range(4):
            loss_of(alone, x[k::4], y[k::4]).backward()
            placed(model, x[k::4], y[k::4]).backward()
        if step:
            assert between(before, "all_reduces") == [0] * 4
        if step == 2:  # a read sums what it reads, and the optimiser the rest
            torch.testing.assert_close(model[0].weight.grad.cpu(), alone[0].weight.grad, rtol=1e-9, atol=1e-9)
        nn.utils.clip_grad_norm_(alone.parameters(), 0.01)
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if step:
            assert between(before, "all_reduces")[0] <= 8  # six gradients, and the norm
        for a, b in zip(alone.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(b.detach().cpu(), a.detach(), rtol=1e-9, atol=1e-9)


def test_two_parameters_with_the_same_gradient_accumulate_apart():
    """Autograd hands both the same tensor; one that is written to must not change the other."""
    gt.register_config("two", gt.SignalConfig(gt.ShardConfig(0, [0, 1])))
    plain = [torch.ones(4, requires_grad=True) for _ in range(2)]
    with gt.signal.context("two"):
        cut = [nn.Parameter(gt.ones(4)) for _ in range(2)]
    for a, b in (plain, cut):
        for factor in (1.0, 2.0):
            ((a + b) * factor).sum().backward()
        a.grad.mul_(10)
    assert [p.grad.tolist() for p in cut] == [p.grad.tolist() for p in plain] == [[30.0] * 4, [3.0] * 4]


def test_a_grid_talks_to_other_meshes():
    """Uneven rows from a line to a grid, between grids, and back."""
    gt.register_config("line", gt.SignalConfig(gt.ShardConfig(0, [0, 1, 2])))
    gt.register_config("grid", gt.SignalConfig(gt.ShardConfig([0, 1], GRID)))
    gt.register_config("rows", gt.SignalConfig(gt.ShardConfig([0, 0], GRID)))
    x = torch.arange(70.0).reshape(10, 7)
    for names in (("line", "grid"), ("grid", "line"), ("rows", "line"), ("grid", "rows"), ("rows", "grid")):
        y = x
        for name in names:
            y = gt.signal.tensor(y, name)
        assert torch.equal(y.cpu(), x), names
        with gt.signal.context(names[1]):
            assert torch.equal((gt.signal.tensor(x, names[0]) * 2 + y).sum(0).cpu(), (x * 3).sum(0)), names


def test_checkpoint_of_a_grid(tmp_path):
    gt.register_config("grid", gt.SignalConfig(gt.ShardConfig([0, 1], GRID)))
    x = torch.arange(40.0).reshape(8, 5)
    y = gt.signal.tensor(x, "grid")
    gt.checkpoint(tmp_path)
    gt.restart(tmp_path)
    assert torch.equal(y.cpu(), x)
    assert gt.debug.placement(y) == ((0, 1, 2, 3), "S(0), S(1)")
