"""Random small architectures against the loop: whatever is stacked on whatever, wide equals the loop."""

import copy
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import wide_compiler
from fn import Fn
from nightly import count
from wide_compiler import oracle

EXAMPLES = count(8, 100)
nodes: Counter[str] = Counter()  # how the nodes of all examples ran


class Scale(nn.Module):
    """Parameters of two ranks, one of them a number, and a buffer that counts."""

    def __init__(self, width):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.rand(()) + 0.5), nn.Parameter(torch.randn(width))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.calls += 1
        return x * self.scale + self.shift


# A piece is (maker of the layer, shape that comes out); shapes are the member's, without batch.


def anywhere(shape):
    """Pieces for any rank; the last dim is the features'."""
    *rest, width = shape
    activations = (
        nn.ReLU,
        nn.GELU,
        nn.Tanh,
        nn.SiLU,
        nn.ELU,
        nn.Softplus,
        nn.LeakyReLU,
        nn.Hardswish,
        nn.PReLU,
    )
    pieces = [(make, shape) for make in activations]
    pieces += [(lambda w=out: nn.Linear(width, w), (*shape[:-1], out)) for out in (1, 3, 6)]
    pieces += [
        (lambda: nn.LayerNorm(width), shape),
        (lambda: nn.RMSNorm(shape), shape),
        (lambda: Scale(width), shape),
        (lambda: Fn(lambda m, x: x + m.b(m.a(x).cos()), a=nn.Linear(width, 4), b=nn.Linear(4, width)), shape),
        (lambda: Fn(lambda m, x: x * m.gate(x).sigmoid(), gate=nn.Linear(width, width, bias=False)), shape),
        (lambda: Fn(lambda m, x: x.softmax(-1) - x.mean(-1, keepdim=True)), shape),
        (lambda: Fn(lambda m, x: torch.cat([x, m.a(x)], -1), a=nn.Linear(width, 2)), (*rest, width + 2)),
        (lambda: Fn(lambda m, x: F.normalize(x, dim=-1) + x.std() + x.amax()), shape),
        (lambda: Fn(lambda m, x: x.flip(1) + x.roll(1, -1).cumsum(-1)), shape),
    ]  # fmt: skip
    return pieces


def on_vectors(shape):
    (width,) = shape
    return [
        (lambda: nn.BatchNorm1d(width), shape),
        (lambda: nn.GroupNorm(1, width), shape),
        (lambda: Fn(lambda m, x: m.up(x).view(x.shape[0], 3, 4), up=nn.Linear(width, 12)), (3, 4)),
        (lambda: Fn(lambda m, x: m.up(x).unflatten(-1, (2, 4, 4)), up=nn.Linear(width, 32)), (2, 4, 4)),
        (lambda: Fn(lambda m, x: torch.einsum("bi,bj->bij", x, m.a(x)), a=nn.Linear(width, 4)), (width, 4)),
        (lambda: nn.Dropout(0.0), shape),
    ]


def on_sequences(shape):
    length, width = shape
    heads = 2 if width % 2 == 0 else 1

    def attend(m, x):
        return x + m.a(x, x, x)[0]

    def causal(m, x):
        q, k, v = m.qkv(x).unflatten(-1, (3, -1)).unbind(-2)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    return [
        (lambda: Fn(attend, a=nn.MultiheadAttention(width, heads, batch_first=True)), shape),
        (lambda: Fn(causal, qkv=nn.Linear(width, 3 * width)), shape),
        (lambda: nn.TransformerEncoderLayer(width, heads, 5, dropout=0.0, batch_first=True), shape),
        (lambda: Fn(lambda m, x: m.rnn(x)[0], rnn=nn.GRU(width, 3, batch_first=True)), (length, 3)),
        (
            lambda: Fn(
                lambda m, x: m.rnn(x)[0], rnn=nn.LSTM(width, 2, 2, batch_first=True, bidirectional=True)
            ),
            (length, 4),
        ),
        (lambda: nn.Conv1d(length, 4, 3, padding=1), (4, width)),
        (lambda: nn.BatchNorm1d(length), shape),
        (lambda: nn.InstanceNorm1d(length), shape),
        (lambda: Fn(lambda m, x: x.transpose(1, 2)), (width, length)),
        (lambda: Fn(lambda m, x: x.mean(1)), (width,)),
        (lambda: Fn(lambda m, x: x.max(1).values + x[:, -1]), (width,)),
        (lambda: nn.Flatten(), (length * width,)),
    ]


def on_images(shape):
    c, h, w = shape
    pieces = [
        (lambda: nn.Conv2d(c, 4, 3, padding=1, stride=2), (4, (h + 1) // 2, (w + 1) // 2)),
        (lambda: nn.Conv2d(c, 2 * c, 3, padding=1, groups=c, bias=False), (2 * c, h, w)),
        (lambda: nn.Conv2d(c, 3, 1, padding=1, padding_mode="replicate"), (3, h + 2, w + 2)),
        (lambda: nn.ConvTranspose2d(c, 3, 2, stride=2), (3, 2 * h, 2 * w)),
        (lambda: nn.BatchNorm2d(c), shape),
        (lambda: nn.GroupNorm(1, c), shape),
        (lambda: nn.InstanceNorm2d(c, affine=True), shape),
        (lambda: nn.AdaptiveAvgPool2d((2, 2)), (c, 2, 2)),
        (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), (c, 2 * h, 2 * w)),
        (lambda: Fn(lambda m, x: x.mean((-1, -2))), (c,)),
        (lambda: Fn(lambda m, x: x.flatten(2).transpose(1, 2)), (h * w, c)),
        (lambda: nn.Flatten(), (c * h * w,)),
    ]
    if min(h, w) >= 2:
        pieces += [
            (lambda: nn.MaxPool2d(2), (c, h // 2, w // 2)),
            (lambda: nn.AvgPool2d(2, 1), (c, h - 1, w - 1)),
        ]
    return pieces


@st.composite
def architectures(draw):
    """(makers of the layers, maker of an input of a batch size)."""
    shape = draw(st.sampled_from([(5,), (3, 4), (4, 6), (3, 4, 4), (1, 5, 3), None]))
    makers, make_input = [], lambda batch, s=shape: torch.randn(batch, *s, dtype=torch.float64)
    if shape is None:
        shape, makers = (3, 4), [lambda: nn.Embedding(7, 4, padding_idx=1)]
        make_input = lambda batch: torch.randint(0, 7, (batch, 3))  # noqa: E731
    for _ in range(draw(st.integers(2, 6))):
        by_rank = {1: on_vectors, 2: on_sequences, 3: on_images}[len(shape)](shape)
        pieces = [p for p in anywhere(shape) + 2 * by_rank if torch.Size(p[1]).numel() <= 400]
        maker, shape = draw(st.sampled_from(pieces))
        makers.append(maker)
    return [*makers, lambda: Scale(shape[-1])], make_input


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(
    architecture=architectures(),
    lanes=st.integers(1, 5),
    batch=st.integers(1, 5),
    train=st.booleans(),
    shared=st.booleans(),
    chunk=st.sampled_from([None, None, 2]),
)
def test_wide_equals_the_loop(architecture, lanes, batch, train, shared, chunk):
    makers, make_input = architecture
    torch.manual_seed(0)
    models = [nn.Sequential(*(make() for make in makers)).double().train(train) for _ in range(lanes)]
    wide = wide_compiler.compile(models, make_input(2), chunk_lanes=chunk)
    inputs = [((make_input(batch),), {}) for _ in range(lanes)]
    call = {"shared_input": inputs[0]} if shared else {"inputs": inputs}
    try:
        copy.deepcopy(models[0])(make_input(batch))
    except ValueError:  # a batch of one value in training, which a norm refuses: so must the wide model
        with pytest.raises(ValueError):
            oracle.compare(models, wide, **call)
        return
    oracle.compare(models, wide, **call, gradients=True, learning_rate=0.1).check(rtol=1e-8)
    nodes.update(wide.explain(measure=False).counts)


def test_nearly_all_nodes_run_by_own_rules():
    if not nodes:
        pytest.skip("counts what the test above has run")
    own = nodes["rule"] + nodes["shared"]
    assert own >= 0.95 * sum(nodes.values()), dict(nodes)
