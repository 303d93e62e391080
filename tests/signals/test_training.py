"""Training under signals, beside the matrix: one worker, float32, backward named by a context, both axes."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import wide_compiler.signals as gt
from nightly import one_of
from signals.placed import same_training, signal, work

pytestmark = pytest.mark.usefixtures("workers")


def mlp():
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4)).double()


def regression(model, x, y):
    return F.mse_loss(model(x), y)


def sgd(params):
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)


def adam(params):
    return torch.optim.Adam(params, lr=1e-2)


def under(name, forward, backward=None):
    def placed(model, *data):
        with gt.signal.context(name, backward=backward):
            return forward(model, *data)

    return placed


def rows(n=12):
    return torch.randn(n, 6, dtype=torch.float64), torch.randn(n, 4, dtype=torch.float64)


def test_one_worker_and_no_signal():
    done = same_training(mlp(), regression, rows(), sgd)
    assert sum(done[0].values()) > 200
    assert not any(done[1:])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers(kind):
    signal("rows", [0, 2])

    def forward(model, x, y):
        return F.mse_loss(model(x)[0][:, -1], y)

    x = torch.randn(6, 5, 3, dtype=torch.float64)
    data = x, torch.randn(6, 8, dtype=torch.float64)
    model = kind(3, 4, num_layers=2, bidirectional=True, batch_first=True).double()
    done = same_training(model, forward, data, sgd, under("rows", forward))
    assert not done[1] and min(sum(done[0].values()), sum(done[2].values())) > 1000
    assert model._flat_weight_refs[0]() is model.weight_ih_l0


@pytest.mark.parametrize("kind", one_of(3, [nn.LSTM, nn.GRU, nn.RNN]))
@pytest.mark.parametrize("lengths", [[5, 3, 2, 4, 1, 5], torch.tensor([5, 5, 4, 2, 2, 1])])
def test_sequences_of_different_lengths(kind, lengths):
    signal("rows", [0, 2])

    def forward(model, x, y):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        padded, counts = pad_packed_sequence(model(packed)[0], batch_first=True)
        assert counts.tolist() == torch.as_tensor(lengths).tolist()
        return F.mse_loss(padded.sum(1), y)

    x = torch.randn(6, 5, 3, dtype=torch.float64)
    data = x, torch.randn(6, 8, dtype=torch.float64)
    model = kind(3, 4, num_layers=2, bidirectional=True, batch_first=True).double()
    done = same_training(model, forward, data, sgd, under("rows", forward))
    assert not done[1] and min(sum(done[0].values()), sum(done[2].values())) > 1000


def test_backward_named_by_the_context():
    signal("forward", [0, 1])
    signal("elsewhere", [3])
    done = same_training(mlp(), regression, rows(), sgd, under("forward", regression, "elsewhere"))
    assert [d["aten.tanh_backward.default"] for d in done] == [0, 0, 0, 20]


@pytest.mark.parametrize("axis", [0, 1])
def test_model_parallel(axis):
    """Parameters made inside a context are sharded by it; the first is cut along `axis`."""
    signal("mp", [0, 1], axis=axis)
    alone = mlp()
    x, y = rows()
    expected = [p.detach().clone() for p in alone.parameters()]
    with gt.signal.context("mp"):
        model = mlp()
    assert gt.debug.placement(model[0].weight) == ((0, 1), f"S({axis})")
    model.load_state_dict(alone.state_dict())
    assert gt.debug.placement(model[0].weight) == ((0, 1), f"S({axis})")
    ours, theirs = sgd(model.parameters()), sgd(alone.parameters())
    with gt.signal.context("mp"):
        gx, gy = gt.tensor(x), gt.tensor(y)
    with work() as done:
        for _ in range(20):
            losses = []
            for m, opt, a, b in ((model, ours, gx, gy), (alone, theirs, x, y)):
                with gt.signal.context("mp") if m is model else torch.enable_grad():
                    loss = regression(m, a, b)
                opt.zero_grad()
                loss.backward()
                opt.step()
                losses.append(loss.item())
            assert losses[0] == pytest.approx(losses[1], rel=1e-9)
    assert gt.debug.placement(model[0].weight.grad) == ((0, 1), f"S({axis})")
    for p, q, start in zip(model.parameters(), alone.parameters(), expected, strict=True):
        torch.testing.assert_close(p.detach().cpu(), q.detach(), rtol=1e-9, atol=1e-9)
        assert not torch.equal(start, q)
    assert [d["aten.addmm.default"] for d in done] == [40, 40, 0, 0]


def test_float32_within_the_promised_tolerances():
    signal("dp", [0, 1, 2, 3])
    data = tuple(t.float() for t in rows(16))
    same_training(mlp().float(), regression, data, sgd, under("dp", regression), tolerance=1e-5)
    same_training(mlp().float(), regression, data, adam, under("dp", regression), tolerance=1e-3)


def test_plain_parameters_move_by_themselves():
    """A model made outside any context and never adopted: the first context that calls it takes it."""
    signal("dp", [0, 1, 2])
    torch.manual_seed(3)
    model, x = nn.Linear(4, 2), torch.randn(6, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weight = model.weight
    expected = model(x).detach()
    with gt.signal.context("dp"):
        out = model(gt.tensor(x))
    assert model.weight is weight and isinstance(weight, gt.SignalTensor)
    torch.testing.assert_close(out.detach().cpu(), expected)
    assert gt.debug.placement(weight) == ((0, 1, 2), "R")
    out.sum().backward()
    optimizer.step()
    assert gt.debug.placement(weight.grad) == ((0, 1, 2), "R")
