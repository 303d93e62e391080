"""Experts' rows in one product for all lanes: values and gradients, lanes with groups of their own."""

import torch
from torch import nn

import wide_compiler
from wide_compiler import oracle
from wide_compiler.primitives.matmul import lane_grouped_mm


class Experts(nn.Module):
    """Rows sorted by expert, as transformers' mixtures do: `histc` counts them, offsets cut them."""

    def __init__(self):
        super().__init__()
        self.gate, self.weight = nn.Linear(8, 4), nn.Parameter(torch.randn(4, 8, 16))

    def forward(self, x):
        choice = self.gate(x).argmax(-1)
        order = choice.argsort()
        counts = torch.histc(choice.float(), bins=4, min=0, max=3)
        ends = counts.cumsum(0).to(torch.int32)
        out = torch.ops.aten._grouped_mm.default(x[order], self.weight, ends)
        return torch.zeros_like(out).index_copy(0, order, out)


def test_lanes_with_groups_of_their_own():
    torch.manual_seed(0)
    models = [Experts().bfloat16() for _ in range(3)]
    x = torch.randn(16, 8, dtype=torch.bfloat16)
    wide = wide_compiler.compile(models, x)
    assert {row.how for row in wide.explain(measure=False).rows} <= {"rule", "shared"}
    oracle.compare(models, wide, shared_input=((x,), {}), gradients=True).check(rtol=3e-2)


def test_gradients_in_single_precision():
    op, ends = torch.ops.aten._grouped_mm.default, torch.tensor([[1, 2, 6], [0, 5, 6]], dtype=torch.int32)
    x, weight = torch.randn(2, 6, 8, requires_grad=True), torch.randn(2, 3, 8, 16, requires_grad=True)
    together = lane_grouped_mm(op, x, weight, ends)
    alone = torch.stack([op(x[lane], weight[lane], ends[lane]) for lane in range(2)])
    torch.testing.assert_close(together, alone)
    for mine, theirs in zip(
        *(torch.autograd.grad(y.square().sum(), (x, weight)) for y in (together, alone)), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


def test_rows_that_belong_to_no_group_are_zeros():
    x, weight = torch.randn(2, 6, 8), torch.randn(2, 3, 8, 16)
    ends = torch.tensor([[1, 2, 4], [0, 5, 5]], dtype=torch.int32)
    out = lane_grouped_mm(torch.ops.aten._grouped_mm.default, x, weight, ends)
    for lane, last in enumerate((4, 5)):
        start = 0
        for group, end in enumerate(ends[lane].tolist()):
            torch.testing.assert_close(out[lane, start:end], x[lane, start:end] @ weight[lane, group])
            start = end
        assert not out[lane, last:].any()
