"""Strategies put into a finished lane graph, and kernels that take in what follows them."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wide_compiler
from wide_compiler.model.strategy_sites import CHAINS, JOINED, channels_last_weights, sites, with_strategies
from wide_compiler.primitives.chain import wide_chain, wide_linear_activation
from wide_compiler.primitives.conv import CONV_STRATEGIES
from wide_compiler.primitives.conv_norm import wide_conv_norm
from wide_compiler.primitives.joined_linear import joined_linear
from wide_compiler.primitives.linear import LINEAR_STRATEGIES, wide_linear
from wide_compiler.widen.builder import StrategyChoice

N = 3


class Net(nn.Module):
    """Convolutions followed by all kinds of things."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x):
        y = self.conv(x)
        if self.kind == "relu":
            return F.relu(y)
        if self.kind == "norm":
            return self.norm(y)
        if self.kind == "norm relu":
            return F.relu(self.norm(y))
        if self.kind == "residual":
            return F.relu(self.norm(y) + x)
        if self.kind == "residual first":
            return F.relu(x + y)
        if self.kind == "no relu":
            return self.norm(y) + x
        if self.kind == "read twice":
            return F.relu(y) + y
        if self.kind == "itself":
            return F.relu(y + y)
        if self.kind == "broadcast":
            return F.relu(y + x.mean((2, 3), keepdim=True))
        return F.relu(torch.add(y, x, alpha=2))


FUSED = {"relu", "norm", "norm relu", "residual", "residual first", "no relu"}
KINDS = [*sorted(FUSED), "read twice", "itself", "broadcast", "alpha"]


def graph_of(wide, strategies, choices):
    """The latest lane graph with other strategies at all sites, as if this were a GPU."""
    graph = wide.programs.latest.graph
    for node in graph.module.graph.nodes:
        if "site" in node.meta:
            node.args = tuple(
                StrategyChoice.of(arg, arg.primitive, choices) if isinstance(arg, StrategyChoice) else arg
                for arg in node.args
            )
    return with_strategies(graph, dict.fromkeys(sites(graph), strategies), gradients=False)


def targets(graph):
    return [node.target for node in graph.module.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("training", [False, True])
def test_what_follows_a_convolution(kind, training):
    models = [Net(kind).double().train(training) for _ in range(N)]
    x = torch.randn(N, 2, 4, 5, 5, dtype=torch.float64)
    wide = wide_compiler.compile(models, x[0])
    fused = graph_of(wide, "implicit_gemm", CONV_STRATEGIES)
    (got,) = fused(wide.states(), [x], N)
    torch.testing.assert_close(got, torch.stack([m(a) for m, a in zip(models, x, strict=True)]))
    learns = training and kind in ("norm", "norm relu", "residual", "no relu")
    assert (wide_conv_norm in targets(fused)) == (kind in FUSED and not learns)
    if kind in FUSED and not learns:
        assert len(targets(fused)) == 1
    assert channels_last_weights(fused) == {"conv.weight"}


def test_with_gradients_nothing_is_taken_in():
    models = [Net("norm relu").double().eval() for _ in range(N)]
    wide = wide_compiler.compile(models, torch.randn(2, 4, 5, 5, dtype=torch.float64))
    graph = graph_of(wide, "implicit_gemm", CONV_STRATEGIES)
    assert wide_conv_norm in targets(graph)
    plain = with_strategies(wide.programs.latest.graph, {}, gradients=True)
    assert wide_conv_norm not in targets(plain)


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.GELU(), nn.Tanh(), nn.Sigmoid(), nn.SiLU()], ids=str)
def test_linear_layers_and_their_activations(activation):
    models = [nn.Sequential(nn.Linear(4, 5), activation, nn.Linear(5, 3)).double() for _ in range(N)]
    x = torch.randn(N, 2, 4, dtype=torch.float64)
    wide = wide_compiler.compile(models, x[0])
    expected = torch.stack([m(a) for m, a in zip(models, x, strict=True)])
    fused = graph_of(wide, "tensor_core", LINEAR_STRATEGIES)
    assert wide_linear_activation in targets(fused)
    torch.testing.assert_close(fused(wide.states(), [x], N)[0], expected)
    chain = with_strategies(wide.programs.latest.graph, {CHAINS: "fused"})
    assert targets(chain) == [wide_chain]
    torch.testing.assert_close(chain(wide.states(), [x], N)[0], expected)


def test_chains_end_where_somebody_else_reads():
    class Skip(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c, self.d = (nn.Linear(4, 4) for _ in range(4))

        def forward(self, x):
            h = F.relu(self.b(F.gelu(self.a(x), approximate="tanh")))
            return self.d(torch.tanh(self.c(h))) + h

    models = [Skip().double() for _ in range(N)]
    x = torch.randn(N, 2, 4, dtype=torch.float64)
    wide = wide_compiler.compile(models, x[0])
    chain = with_strategies(wide.programs.latest.graph, {CHAINS: "fused"})
    assert targets(chain).count(wide_chain) == 1
    got = chain(wide.states(), [x], N)[0]
    torch.testing.assert_close(got, torch.stack([m(a) for m, a in zip(models, x, strict=True)]))
    rows = {row.path: row.strategy for row in chain.rows}
    assert (rows["a"], rows["c"], rows["d"]) == ("einsum", "chain", "chain")


def test_strategies_that_a_site_has_not():
    wide = wide_compiler.compile([nn.Linear(4, 5) for _ in range(N)], torch.randn(2, 4))
    graph = wide.programs.latest.graph
    (site,) = sites(graph)
    with pytest.raises(KeyError, match="cannot run as 'grouped'"):
        with_strategies(graph, {site: "grouped"})
    with pytest.raises(KeyError):
        with_strategies(graph, {"no such site": "einsum"})


class Heads(nn.Module):
    """Three heads of casts of one input, one of many outputs, and one that reads another."""

    def __init__(self, bias):
        super().__init__()
        self.actor, self.critic = nn.Linear(8, 3, bias=bias), nn.Linear(8, 1, bias=bias)
        self.other, self.large = nn.Linear(8, 2, bias=bias), nn.Linear(8, 300, bias=bias)
        self.after = nn.Linear(3, 2, bias=bias)

    def forward(self, x):
        actor = self.actor(x.double())
        parts = [
            actor,
            self.critic(x.double()),
            self.after(actor),
            self.other(x.double()),
            self.large(x.double()),
        ]
        return torch.cat(parts, -1)


@pytest.mark.parametrize("bias", [True, False])
def test_linear_layers_of_one_input_are_joined(bias):
    members = [Heads(bias).double() for _ in range(N)]
    x = torch.randn(N, 5, 8)
    wide = wide_compiler.compile(members, x[0])
    wide.stacked(x)
    graph = wide.programs.latest.graph
    assert sites(graph, cuda=True)[JOINED].choices == ("apart", "joined")
    assert JOINED not in sites(graph)
    joined = with_strategies(graph, {JOINED: "joined"})
    targets = [node.target for node in joined.module.graph.nodes]
    assert targets.count(joined_linear) == 1 and targets.count(wide_linear) == 2
    assert [row.strategy for row in joined.rows].count("joined") == 3
    leaves = [p.requires_grad_() for p in wide.parameters()]
    states = dict(wide.named_parameters())
    results = []
    for one in (graph, joined):
        (y,) = one(states, [x], N)
        results.append((y, *torch.autograd.grad(y.square().sum(), leaves)))
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want)


def test_a_linear_layer_alone_has_nothing_to_join():
    wide = wide_compiler.compile([nn.Linear(4, 4) for _ in range(N)], torch.randn(2, 4))
    wide.stacked(torch.randn(N, 2, 4))
    assert JOINED not in sites(wide.programs.latest.graph, cuda=True)
