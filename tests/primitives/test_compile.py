"""Every module, with every strategy, is one graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import wide_compiler.primitives as P
from primitives.loop import DEVICE, N, assert_near, make_members, rand, randint

IMAGE = (2, 4, 5, 5)
OFFSETS = torch.tensor([[0, 3, 3, 7], [0, 0, 5, 6], [0, 1, 2, 9]], device=DEVICE)

CASES: dict[str, tuple[Any, Any, tuple[Any, ...]]] = {
    "linear": (P.WideLinear, lambda: nn.Linear(4, 3), (rand(N, 2, 4),)),
    "conv1d": (P.WideConv1d, lambda: nn.Conv1d(4, 4, 3, groups=2), (rand(N, 2, 4, 5),)),
    "conv2d": (
        P.WideConv2d,
        lambda: nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
        (rand(N, *IMAGE),),
    ),
    "conv3d": (P.WideConv3d, lambda: nn.Conv3d(2, 2, 3, padding="same"), (rand(N, 2, 2, 3, 3, 3),)),
    "conv_transpose1d": (P.WideConvTranspose1d, lambda: nn.ConvTranspose1d(4, 4, 3), (rand(N, 2, 4, 5),)),
    "conv_transpose2d": (P.WideConvTranspose2d, lambda: nn.ConvTranspose2d(4, 4, 3), (rand(N, *IMAGE),)),
    "conv_transpose3d": (
        P.WideConvTranspose3d,
        lambda: nn.ConvTranspose3d(2, 2, 3),
        (rand(N, 2, 2, 3, 3, 3),),
    ),
    "batch_norm1d": (P.WideBatchNorm1d, lambda: nn.BatchNorm1d(4, momentum=None), (rand(N, 2, 4),)),
    "batch_norm2d": (P.WideBatchNorm2d, lambda: nn.BatchNorm2d(4), (rand(N, *IMAGE),)),
    "batch_norm3d": (P.WideBatchNorm3d, lambda: nn.BatchNorm3d(2), (rand(N, 2, 2, 3, 3, 3),)),
    "layer_norm": (P.WideLayerNorm, lambda: nn.LayerNorm(4), (rand(N, 2, 4),)),
    "rms_norm": (P.WideRMSNorm, lambda: nn.RMSNorm(4), (rand(N, 2, 4),)),
    "group_norm": (P.WideGroupNorm, lambda: nn.GroupNorm(2, 4), (rand(N, *IMAGE),)),
    "instance_norm": (
        P.WideInstanceNorm,
        lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
        (rand(N, *IMAGE),),
    ),
    "embedding": (P.WideEmbedding, lambda: nn.Embedding(5, 4, padding_idx=1), (randint(5, N, 6),)),
    "embedding_max_norm": (P.WideEmbedding, lambda: nn.Embedding(5, 4, max_norm=0.5), (randint(5, N, 6),)),
    "embedding_bag": (
        P.WideEmbeddingBag,
        lambda: nn.EmbeddingBag(5, 4, padding_idx=1),
        (randint(5, N, 2, 3),),
    ),
    "embedding_bag_offsets": (P.WideEmbeddingBag, lambda: nn.EmbeddingBag(5, 4), (randint(5, N, 9), OFFSETS)),
    "attention": (P.WideAttention, lambda: nn.MultiheadAttention(4, 2), (rand(N, 3, 2, 4),) * 3),
    "attention_unweighted": (
        P.WideAttention,
        lambda: nn.MultiheadAttention(4, 2, add_bias_kv=True),
        (*(rand(N, 3, 2, 4),) * 3, rand(N, 2, 3), False, rand(N, 3, 3)),
    ),
    "lstm": (P.WideLSTM, lambda: nn.LSTM(4, 3, num_layers=2, bidirectional=True), (rand(N, 3, 2, 4),)),
    "gru": (P.WideGRU, lambda: nn.GRU(4, 3, batch_first=True), (rand(N, 2, 3, 4),)),
    "rnn": (P.WideRNN, lambda: nn.RNN(4, 3), (rand(N, 3, 2, 4), rand(N, 1, 2, 3))),
    "dropout": (P.WideDropout, lambda: nn.Dropout(1.0), (rand(N, 2, 4),)),
    "prelu": (P.WidePReLU, lambda: nn.PReLU(4), (rand(N, *IMAGE),)),
}
RUNS = [(name, s) for name, (wide, _, _) in CASES.items() for s in wide.STRATEGIES]


@pytest.mark.parametrize(("name", "strategy"), RUNS)
def test_fullgraph(name: str, strategy: str) -> None:
    torch._dynamo.reset()
    wide_class, make, inputs = CASES[name]
    members = make_members(make)
    eager = wide_class.from_modules(members, strategy)
    wide = wide_class.from_modules(members, strategy)
    got = torch.compile(wide, fullgraph=True, backend="eager")(*inputs)
    want = eager(*inputs)
    for a, b in zip(tree_leaves(got), tree_leaves(want), strict=True):
        if b is not None:
            assert_near(a, b)
    for (key, a), b in zip(wide.state_dict().items(), eager.state_dict().values(), strict=True):
        assert_near(a, b, key)


def test_every_module_is_covered() -> None:
    modules = {m for m in vars(P).values() if isinstance(m, type) and issubclass(m, P.WideModule)}
    thin = {P.WideModule, P.WideInstanceNorm1d, P.WideInstanceNorm2d, P.WideInstanceNorm3d}
    assert modules - thin == {wide for wide, _, _ in CASES.values()}


def test_a_rate_for_each_lane() -> None:
    torch._dynamo.reset()
    wide = P.WideDropout.from_modules([nn.Dropout(p) for p in (0.0, 1.0)])
    x = rand(2, 5)
    y = torch.compile(wide, fullgraph=True, backend="eager")(x)
    assert torch.equal(y, torch.stack([x[0], torch.zeros_like(x[1])]))


def test_shared_kernels() -> None:
    torch._dynamo.reset()
    run = lambda f: torch.compile(f, fullgraph=True, backend="eager")  # noqa: E731
    x, w = rand(2, 4), rand(N, 3, 4)
    assert_near(run(P.shared_linear)(x, w), P.shared_linear(x, w))
    i, t = randint(5, 6), rand(N, 5, 4)
    assert_near(run(P.shared_embedding)(i, t, 1), P.shared_embedding(i, t, 1))
    x, w = rand(*IMAGE), rand(N, 2, 4, 3, 3)
    assert_near(run(P.shared_conv)(x, w), P.shared_conv(x, w))
