"""Numbers by lane beside tensors of 16 bits: not rounded before they are used, as a member's are not."""

import pytest
import torch
from torch import nn

import wide_compiler

N = 4


class Scaled(nn.Module):
    def __init__(self, lane):
        super().__init__()
        self.fc, self.number = nn.Linear(8, 8), 2 / 3 + lane / 11
        self.register_buffer("scale", torch.tensor(1 / 3 + lane / 7, dtype=torch.float64))

    def forward(self, x):
        y = self.fc(x)
        written = y.clone()
        written *= self.scale
        return (
            *(y * self.scale, y * self.number + y / self.number, written),
            *(torch.where(y > self.scale, y, self.number), y > self.number),
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_equal_bit_by_bit(dtype):
    members = [Scaled(lane) for lane in range(N)]
    for member in members:
        member.fc.to(dtype)
    x = torch.randn(N, 5, 8).to(dtype)
    wide = wide_compiler.compile(members, x[0])
    each = zip(*(member(row) for member, row in zip(members, x, strict=True)), strict=True)
    for got, want in zip(wide.stacked(x), map(torch.stack, each), strict=True):
        assert got.dtype == want.dtype and torch.equal(got, want)
    assert wide.explain(measure=False).coverage == 1.0
