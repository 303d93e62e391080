"""Single ops against the loop: the expressions in ops.txt, with three lanes and one, one input for all lanes
and one per lane, at the batch they were captured at and at another. In an expression

    x [B, 3, 4] float and y [B, 3] in 0..3 are the inputs
    h [B, 3, 4] = x * m.w + m.v, wide even where x is not
    m.s [], m.v [4], m.w [3, 4], m.q [4, 4] are parameters, m.c [4] a positive buffer; all differ by lane
    m.i [2] indices, m.b [4] mask: buffers equal in all lanes; m.j [2], m.e [3, 4] likewise, differing by lane
"""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wide_compiler
from nightly import NIGHTLY, one_of
from wide_compiler import oracle

LINES = (Path(__file__).parent / "ops.txt").read_text().splitlines()
EXPRESSIONS = [line for line in LINES if line and not line.startswith("#")]

# Shapes or choices that are a matter of values: lane by lane, the node or the whole model.
MAY_LOOP = set(
    """
(h * 0).relu().median()
F.ctc_loss(h.transpose(0, 1).log_softmax(-1), y[:, :1].clamp(min=1), 3 + 0 * y[:, 0], 1 + 0 * y[:, 0])
F.one_hot(y)
h.masked_select(m.b)
h[:, m.e]
h[h > 0].sum()
h[..., m.b]
put(h.clone(), (Ellipsis, m.b), 0.0)
h[x > 0].sum()
torch.bincount(y.flatten(), minlength=4) * m.s
torch.linalg.lstsq(m.q, h[0].T).solution
torch.nonzero(m.e).sum() * m.s
torch.unique(y).float().mean() * m.s
""".strip().splitlines()
)
# Rare enough to run as vmap of the op, or of its decomposition; everything else must have a rule of its own.
MAY_VMAP = MAY_LOOP | set(
    """
torch.searchsorted(h.sort(-1).values, x)
torch.trapezoid(h, dim=1)
m.s.flatten() + 0
h.repeat_interleave(torch.tensor([1, 0, 2]), dim=1)
h.fliplr()
h.flipud()
h.hsplit([1])
torch.dstack([h, x])
torch.column_stack([m.v, m.q])
torch.kron(m.w, m.q)
torch.atleast_2d(h[0, 0])
h.diagonal_scatter(x[:, :, 0], 0, 1, 2)
put(h.clone(), (slice(None), m.j), m.s)
torch.linalg.solve(m.q, h.mT)
torch.addbmm(m.w[:, :3], h, x.mT)
torch.linalg.solve(m.q, x[0, 0])
torch.addr(m.w, m.w[:, 0], m.v)
torch.linalg.solve_triangular(m.q.tril() + 5 * torch.eye(4, dtype=h.dtype), h.mT, upper=False)
torch.fft.fftshift(h)
torch.tensordot(h, m.q, 1)
torch.fft.fftshift(h, dim=1)
torch.tensordot(h, x, ([0, 1], [0, 1]))
torch.linalg.multi_dot([h[0], m.q, m.q])
F.triplet_margin_loss(h, x, h.flip(1))
F.cosine_embedding_loss(h[:, 0], x[:, 0], x[:, 1, 0].sign())
torch.isin(y, torch.tensor([1, 2])) * m.s
h.nanmedian()
h.median()
torch.renorm(h, 2, 1, 1.5)
torch.cartesian_prod(m.v, m.c)
torch.block_diag(m.w, m.q)
torch.chain_matmul(m.w, m.q)
torch.linalg.matrix_rank(m.q)
F.embedding(y, m.q, scale_grad_by_freq=True)
F.max_unpool1d(*F.max_pool1d(h, 2, return_indices=True), 2)
F.multi_margin_loss(h[:, 0], y[:, 0])
h.clone().renorm_(2, 1, 1.5)
torch.diagflat(m.v)
put(h.clone(), (slice(None), m.i), x[:, :2])
torch.linalg.tensorsolve(m.q, m.v)
F.max_unpool3d(*F.max_pool3d(h.reshape(1, 1, -1, 2, 2), (1, 2, 2), return_indices=True), (1, 2, 2))
F.multi_margin_loss(h[:, 0], y[:, 0], weight=m.c, p=2, margin=0.7)
""".strip().splitlines()
)


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
@pytest.mark.parametrize("lanes", one_of(2, [3, 1]))
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_op(expression, lanes):
    models = [Op(expression, lane) for lane in range(lanes)]
    config = wide_compiler.WideConfig(measure=NIGHTLY)  # by day the lane graph, whatever the clock says
    wide = wide_compiler.compile(models, inputs(2), config=config)
    fell_back = {}
    for batch in (2, 5):
        own, shared = [inputs(batch) for _ in range(lanes)], inputs(batch)
        for run in (lambda: wide.each(*map(list, zip(*own, strict=True))), lambda: wide.shared(*shared)):  # noqa: B023
            run()
            fell_back |= {r.op: r.how for r in wide.explain(measure=False).rows if r.how in ("vmap", "loop")}
        for call in ({"inputs": [(a, {}) for a in own]}, {"shared_input": (shared, {})}):
            oracle.compare(models, wide, **call, gradients=True, learning_rate=0.1).check(rtol=1e-8)
    assert not fell_back or expression in MAY_VMAP, f"has no rule: {fell_back}"
    assert "loop" not in fell_back.values() or expression in MAY_LOOP, f"ran lane by lane: {fell_back}"
