"""On a GPU: streams and CUDA graphs as well, all held against the loop."""

import pytest
import torch

from wide_compiler.benchmark import Options, find, plan, run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize(
    ("train", "graphs"),
    [
        (False, {"loop, 16 streams, graph", "vmap compiled, graph"}),
        (True, {"loop, one fused Adam, graph", "vmap compiled, graph"}),
    ],
)
@pytest.mark.parametrize("name", ["mlp", "resblock"])
def test_every_peer_agrees_with_the_loop(name, train, graphs):
    options = Options(lanes=(3,), batch=4, seconds=0.01, peers=True, train=train, device=torch.device("cuda"))
    for row in run(plan(find(name), options), options):
        assert row.ok, row.why
        assert not row.failures
        assert graphs <= set(row.errors)
        assert all(error <= row.tolerance for error in row.errors.values()), row.errors


@pytest.mark.parametrize("train", [False, True])
def test_every_strategy_of_every_layer(train):
    options = Options(lanes=(3,), batch=4, seconds=0.001, train=train, device=torch.device("cuda"))
    wrong = [
        (row.name, row.strategy, row.why) for row in run(plan(find("all"), options), options) if row.wrong
    ]
    assert not wrong
