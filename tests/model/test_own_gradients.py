"""Gradients of parameters and inputs share no memory: a second backward pass adds to each of them once."""

import copy

import pytest
import torch
from torch import nn

import wide_compiler
from wide_compiler import WideConfig

WIDTH = 4


class Sums(nn.Module):
    """Where the batch has one row, gradients reach parameters and inputs by sums and views alone."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.norm = (nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH))
        self.cell, self.rnn = nn.LSTMCell(WIDTH, WIDTH), nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.pair = nn.Bilinear(WIDTH, WIDTH, WIDTH)
        self.u, self.v, self.last = (nn.Parameter(torch.randn(WIDTH)) for _ in range(3))
        self.p, self.q = (nn.Parameter(torch.randn(1, WIDTH)) for _ in range(2))

    def layers(self, x):
        x = self.a(x) + self.b(x) + self.norm(x) + self.cell(x)[0] + self.rnn(x.unsqueeze(1))[0][:, 0]
        return x + self.pair(x, x) + torch.addmm(self.last, x, self.a.weight)

    def forward(self, x, y):
        constants = (self.u + self.v) + (self.p + self.q).expand(x.shape[0], -1)
        return x + y + constants + self.u + self.layers(x.detach()) + torch.where(y > 0, self.u, self.v)


@pytest.mark.parametrize("door", ["shared", "stacked", "each", "packed"])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("batch", [1, 2])
def test_gradients_add_up(door, n, batch):
    torch.manual_seed(0)
    members = [Sums().double() for _ in range(n)]
    rows = 1 if door == "shared" else n
    given = [[torch.randn(batch, WIDTH, dtype=torch.float64) for _ in range(rows)] for _ in "xy"]
    config = WideConfig(tune_seconds=0)
    wide = wide_compiler.compile(copy.deepcopy(members), (given[0][0], given[1][0]), config=config)
    alone = [[x.clone().requires_grad_() for x in column] for column in given]
    join = {"stacked": torch.stack, "packed": wide_compiler.pack, "shared": lambda column: column[0]}.get(
        door
    )
    mine = [[x.clone() for x in column] if join is None else join(column).clone() for column in given]
    leaves = [x.requires_grad_() for column in mine for x in (column if join is None else [column])]
    for _ in range(2):
        for lane, member in enumerate(members):
            member(alone[0][lane % rows], alone[1][lane % rows]).square().sum().backward()
        out = wide(*mine) if door == "packed" else getattr(wide, door)(*mine)
        sum(x.square().sum() for x in (out if door == "each" else [out])).backward()
    for name, p in wide.named_parameters():
        for lane, member in enumerate(members):
            _equal(p.grad[lane], member.get_parameter(name).grad, name)
    want = [x.grad for column in alone for x in column]
    if join is not None:
        want = [join([x.grad for x in column]) for column in alone]
    for x, grad in zip(leaves, want, strict=True):
        _equal(x.grad, grad, "an input")
    memory = [x.grad.untyped_storage().data_ptr() for x in wide.parameters()]
    assert len(set(memory)) == len(memory)
    assert wide.explain(measure=False).coverage == 1.0


def _equal(got, want, what):
    assert (got - want).abs().max() <= 1e-9 * want.abs().max(), what
