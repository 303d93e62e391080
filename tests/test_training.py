"""Five steps of AdamW on the wide model are five steps on each model alone."""

import copy

import pytest
import torch
from torch import nn

import wide_compiler

N, STEPS = 3, 5


class Mlp(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 4))

    inputs = staticmethod(lambda: torch.randn(8, 6))


class Cnn(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(96, 4)
        )

    inputs = staticmethod(lambda: torch.randn(8, 3, 6, 6))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.encoder(x).mean(1))

    inputs = staticmethod(lambda: torch.randn(8, 5, 8))


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(5, 8, 2, batch_first=True, bidirectional=True), nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])

    inputs = staticmethod(lambda: torch.randn(8, 6, 5))


def loss_of(out, target):
    return nn.functional.cross_entropy(out, target)


@pytest.mark.parametrize("kind", [Mlp, Cnn, Transformer, Lstm])
@pytest.mark.parametrize("shared", [False, True])
def test_adamw(kind, shared):
    models = [kind().double().train() for _ in range(N)]
    batches = [[kind.inputs().double() for _ in range(N)] for _ in range(STEPS)]
    targets = [[torch.randint(0, 4, (8,)) for _ in range(N)] for _ in range(STEPS)]
    if shared:
        batches = [[step[0]] * N for step in batches]
    wide = wide_compiler.compile(models, batches[0][0])
    alone = [copy.deepcopy(model) for model in models]

    optimizer = torch.optim.AdamW(wide.parameters(), lr=1e-2)
    for xs, ys in zip(batches, targets, strict=True):
        optimizer.zero_grad()
        outputs = wide.shared(xs[0]).unbind(0) if shared else wide.each(xs)
        sum(loss_of(out, y) for out, y in zip(outputs, ys, strict=True)).backward()
        optimizer.step()
    assert wide.explain(measure=False).coverage == 1.0

    for lane, model in enumerate(alone):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for xs, ys in zip(batches, targets, strict=True):
            optimizer.zero_grad()
            loss_of(model(xs[lane]), ys[lane]).backward()
            optimizer.step()
        for name, tensor in model.state_dict().items():
            torch.testing.assert_close(wide.state_dict()[name][lane], tensor, rtol=1e-6, atol=1e-6)
        for (name, mine), theirs in zip(
            wide.lane(lane).state_dict().items(), model.state_dict().values(), strict=True
        ):
            torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6, msg=name)


def test_the_models_given_stay_as_they_were():
    models = [Cnn().train() for _ in range(N)]
    before = [copy.deepcopy(model.state_dict()) for model in models]
    wide = wide_compiler.compile(models, Cnn.inputs()[:1])
    wide.shared(Cnn.inputs()).sum().backward()
    for model, old in zip(models, before, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), old.values(), strict=True))
        assert all(p.grad is None for p in model.parameters())


def test_compiling_draws_no_random_numbers():
    models = [nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)) for _ in range(N)]
    sample = torch.randn(2, 4)
    before = torch.get_rng_state()
    wide_compiler.compile(models, sample)
    assert torch.equal(before, torch.get_rng_state())
