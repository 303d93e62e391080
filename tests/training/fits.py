"""The same training twice: by `fit`, and as a loop over ordinary models in plain PyTorch."""

import copy
import itertools

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import wide_compiler
from wide_compiler import WideConfig

N = 4
PLAIN = WideConfig(tune_seconds=0)


class Net(nn.Module):
    def __init__(self, dropout=0.0, width=8):
        super().__init__()
        # Without a bias: in front of a norm its gradient is rounding noise, which Adam would blow up.
        self.up, self.norm = nn.Linear(6, width, bias=False), nn.BatchNorm1d(width)
        self.down = nn.Linear(width, 3)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.down(self.dropout(F.gelu(self.norm(self.up(x)))))


def lane_loss(y, target):
    """`[N, B, 3]` and `[B, 3]` or `[N, B, 3]` -> `[N]`."""
    return (y - target).square().mean((1, 2))


def make_models(n=N, seed=1, **options):
    torch.manual_seed(seed)
    return [Net(**options).double() for _ in range(n)]


_COMPILED = {}


def make_wide(models, config=PLAIN):
    """Compiled once for each architecture: a copy shares what was captured."""
    key = (repr([(model, list(model.state_dict())) for model in models]), str(config))
    if key not in _COMPILED:
        sample = torch.randn(2, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        _COMPILED[key] = wide_compiler.compile(copy.deepcopy(models), sample, config=config)
    wide = copy.deepcopy(_COMPILED[key])
    for lane, model in enumerate(models):
        wide.load_lane(lane, model)
    return wide


def make_set(size=20, seed=2):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 6, dtype=torch.float64, generator=g)
    return TensorDataset(x, (x[:, :3] * 2 + x[:, 3:]).sin())


def loader(size=20, batch_size=6, seed=2, shuffle=True):
    """Shuffled by a generator of its own, so that whoever reads it sees the same order."""
    generator = torch.Generator().manual_seed(seed)
    return DataLoader(make_set(size, seed), batch_size, shuffle=shuffle, generator=generator)


def adam(parameters):
    return torch.optim.Adam(parameters, 1e-2)


def train_alone(model, optimizer, batches, epochs, scheduler=None, clip=None, accumulate=1, schedule="step"):
    """What anybody writes for one model; the losses `[steps]`."""
    losses = []
    for epoch in range(epochs):
        reading = iter(batches(epoch))
        while group := list(itertools.islice(reading, accumulate)):
            optimizer.zero_grad()
            total = 0.0
            for x, y in group:
                loss = (model(x) - y).square().mean() / len(group)
                loss.backward()
                total += loss.item()
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            if scheduler is not None and schedule == "step":
                scheduler.step()
            losses.append(total)
        if scheduler is not None and schedule == "epoch":
            scheduler.step()
    return torch.tensor(losses, dtype=torch.float64)


def check_lanes(wide, models, tolerance=1e-9):
    for lane, model in enumerate(models):
        got = wide.lane(lane).state_dict()
        for name, value in model.state_dict().items():
            torch.testing.assert_close(
                got[name], value, rtol=tolerance, atol=tolerance, msg=f"lane {lane}: {name}"
            )


def everything(wide, optimizer, history):
    """All numbers of a training, to be compared bit by bit."""
    found = {f"model {k}": v for k, v in wide.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        found |= {f"optimizer {index} {k}": torch.as_tensor(v) for k, v in state.items()}
    found |= {"losses": history.losses, "validation": history.validation, "best": history.best}
    found |= {"stopped": str(history), "validated_at": history.validated_at}
    return {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in found.items()}


def same_bits(a, b):
    """The names of what differs."""
    assert a.keys() == b.keys()
    return [
        k
        for k in a
        if not (a[k].equal(b[k]) or _both_nan(a[k], b[k]) if isinstance(a[k], torch.Tensor) else a[k] == b[k])
    ]


def _both_nan(a, b):
    return a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())
