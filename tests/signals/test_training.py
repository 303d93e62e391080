"""Unmodified torch.nn and torch.optim under signals: equal to one process, and done by the intended
workers."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wide_compiler.signals as gt
from signals.placed import same_training, signal, work

pytestmark = pytest.mark.usefixtures("workers")


def mlp():
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4)).double()


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4 * 3 * 3, 3)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)
        return self.head(x.flatten(1))


class Transformer(nn.Module):
    """Token and position embeddings, one encoder layer, tied output weights."""

    def __init__(self, tied=True):
        super().__init__()
        self.tokens = nn.Embedding(11, 8)
        self.positions = nn.Parameter(torch.randn(5, 8) * 0.1)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.out = nn.Linear(8, 11, bias=False)
        if tied:
            self.out.weight = self.tokens.weight

    def forward(self, ids):
        return self.out(self.layer(self.tokens(ids) + self.positions))


def regression(model, x, y):
    return F.mse_loss(model(x), y)


def classification(model, x, y):
    return F.cross_entropy(model(x).flatten(0, -2), y.flatten())


def sgd(params):
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)


def adam(params):
    return torch.optim.Adam(params, lr=1e-2)


def adamw(params):
    return torch.optim.AdamW(params, lr=1e-2)


def under(name, forward, backward=None):
    def placed(model, *data):
        with gt.signal.context(name, backward=backward):
            return forward(model, *data)

    return placed


def rows(n=12):
    return torch.randn(n, 6, dtype=torch.float64), torch.randn(n, 4, dtype=torch.float64)


def images(n=8):
    return torch.randn(n, 2, 6, 6, dtype=torch.float64), torch.randint(0, 3, (n,))


def tokens(n=4):
    return torch.randint(0, 11, (n, 5)), torch.randint(0, 11, (n, 5))


CASES = {
    "mlp": (mlp, regression, rows, 1e-9),
    "cnn": (lambda: Cnn().double(), classification, images, 1e-9),
    "transformer": (lambda: Transformer().double(), classification, tokens, 1e-9),
}


@pytest.mark.parametrize("optimizer", [sgd, adam, adamw])
@pytest.mark.parametrize("case", CASES)
def test_data_parallel(case, optimizer):
    make, loss, data, tolerance = CASES[case]
    signal("dp", [0, 1, 2, 3])
    done = same_training(make(), loss, data(), optimizer, under("dp", loss), tolerance=tolerance)
    counts = [sum(d.values()) for d in done]
    assert min(counts) > 20 * 10 and max(counts) - min(counts) < 100, counts


def test_one_worker_and_no_signal():
    done = same_training(mlp(), regression, rows(), sgd)
    assert sum(done[0].values()) > 200
    assert not any(done[1:])


def test_two_of_four_workers():
    signal("pair", [1, 3])
    done = same_training(mlp(), regression, rows(), sgd, under("pair", regression))
    assert done[1]["aten.addmm.default"] == done[3]["aten.addmm.default"] == 40
    assert not done[2]
    assert not done[0]["aten.addmm.default"]


def test_uneven_shards():
    signal("three", [0, 1, 2])
    x, y = rows(100)
    done = same_training(mlp(), regression, (x, y), sgd, under("three", regression))
    assert [d["aten.addmm.default"] for d in done] == [40, 40, 40, 0]


def test_backward_on_other_workers():
    signal("forward", [0, 1], backward="backward")
    signal("backward", [2, 3])
    done = same_training(mlp(), regression, rows(), sgd, under("forward", regression))
    assert [d["aten.addmm.default"] for d in done] == [40, 40, 0, 0]
    assert [d["aten.tanh_backward.default"] for d in done] == [0, 0, 20, 20]


def test_backward_named_by_the_context():
    signal("forward", [0, 1])
    signal("elsewhere", [3])
    done = same_training(mlp(), regression, rows(), sgd, under("forward", regression, "elsewhere"))
    assert [d["aten.tanh_backward.default"] for d in done] == [0, 0, 0, 20]


def test_pipeline():
    """The spec's two stages, each with its backward on the other's workers."""
    signal("stage_1", [0, 1], backward="stage_1_backward")
    signal("stage_1_backward", [2, 3])
    signal("stage_2", [2, 3], backward="stage_2_backward")
    signal("stage_2_backward", [0, 1])

    def staged(model, x, y):
        with gt.signal.context("stage_1"):
            hidden = model[1](model[0](x))
        with gt.signal.context("stage_2"):
            return F.mse_loss(model[2](hidden), y)

    done = same_training(mlp(), regression, rows(), sgd, staged)
    assert [d["aten.addmm.default"] for d in done] == [20, 20, 20, 20]
    assert [d["aten.tanh.default"] for d in done] == [20, 20, 0, 0]
    assert [d["aten.tanh_backward.default"] for d in done] == [0, 0, 20, 20]
    assert [d["aten.mse_loss.default"] for d in done] == [0, 0, 20, 20]
    assert [d["aten.mse_loss_backward.default"] for d in done] == [20, 20, 0, 0]


def test_hybrid():
    signal("layer1_data_parallel", [0, 1, 2, 3])
    signal("layer2_model_parallel", [0, 1], axis=1)

    def hybrid(model, x, y):
        with gt.signal.context("layer1_data_parallel"):
            hidden = model[1](model[0](x))
        with gt.signal.context("layer2_model_parallel"):
            return F.mse_loss(model[2](hidden), y)

    done = same_training(mlp(), regression, rows(), sgd, hybrid)
    assert [d["aten.addmm.default"] for d in done] == [40, 40, 20, 20]


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
