"""Single ops against the loop: the expressions in ops.txt, all lanes and one, one input for all lanes and one per
lane, at the batch they were captured at and at another. In an expression

    x [B, 3, 4] float and y [B, 3] in 0..3 are the inputs
    h [B, 3, 4] = x * m.w + m.v, wide even where x is not
    m.s [], m.v [4], m.w [3, 4], m.q [4, 4] are parameters, m.c [4] a positive buffer; all differ by lane
    m.i [2] indices, m.b [4] mask: buffers equal in all lanes; m.j [2], m.e [3, 4]: the same, differing by lane
"""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wide_compiler
from wide_compiler import oracle

LINES = (Path(__file__).parent / "ops.txt").read_text().splitlines()
EXPRESSIONS = [line for line in LINES if line and not line.startswith("#")]

# Rare enough to run as vmap of the op or lane by lane; everything else must have a rule of its own.
MAY_FALL_BACK: set[str] = set()


class Op(nn.Module):
    def __init__(self, expression, lane):
        super().__init__()
        self.code = compile(expression, expression, "eval")
        for name, shape in {"s": (), "v": (4,), "w": (3, 4), "q": (4, 4)}.items():
            self.register_parameter(name, nn.Parameter(torch.randn(shape, dtype=torch.float64)))
        self.register_buffer("c", torch.rand(4, dtype=torch.float64) + 0.1)
        self.register_buffer("i", torch.tensor([0, 2]))
        self.register_buffer("b", torch.tensor([True, False, True, True]))
        self.register_buffer("j", torch.tensor([[2, 0], [1, 1], [0, 2]][lane]))
        self.register_buffer("e", torch.arange(12).add(lane).remainder(3).eq(0).view(3, 4))

    def forward(self, x, y):
        names = {"m": self, "x": x, "y": y, "h": x * self.w + self.v}
        return eval(self.code, {"torch": torch, "F": F, "put": put}, names)


def put(target, index, value):
    target[index] = value
    return target


def inputs(batch):
    return torch.randn(batch, 3, 4, dtype=torch.float64), torch.randint(0, 4, (batch, 3))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("lanes", [3, 1])
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_op(expression, lanes):
    models = [Op(expression, lane) for lane in range(lanes)]
    wide = wide_compiler.compile(models, inputs(2))
    fell_back = {}
    for batch in (2, 5):
        own, shared = [inputs(batch) for _ in range(lanes)], inputs(batch)
        for run in (lambda: wide.each(*map(list, zip(*own, strict=True))), lambda: wide.shared(*shared)):  # noqa: B023
            run()
            fell_back |= {r.op: r.how for r in wide.explain(measure=False).rows if r.how in ("vmap", "loop")}
        for call in ({"inputs": [(a, {}) for a in own]}, {"shared_input": (shared, {})}):
            oracle.compare(models, wide, **call, gradients=True, learning_rate=0.1).check(rtol=1e-8)
    assert not fell_back or expression in MAY_FALL_BACK, f"ran per lane: {fell_back}"
