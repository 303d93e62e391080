"""Members that switch autocast inside their forward, compiled by torch.compile."""

import pytest
import torch
from torch import nn

import wide_compiler
from wide_compiler.capture.cleanup import enter_autocast
from wide_compiler.widen.autocast_regions import AutocastRegion, with_autocast_regions

N = 3


class Switching(nn.Module):
    """Exact in one part, and inside that rounded again in another."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        h = self.first(x)
        with torch.autocast("cpu", enabled=False):
            exact = self.second(h.float())
            with torch.autocast("cpu", torch.bfloat16):
                rounded = self.third(exact)
            exact = exact + self.second(rounded.float())
        return self.third(exact), exact, rounded


def wide_graph():
    members = [Switching() for _ in range(N)]
    x = torch.randn(N, 5, 8)
    wide = wide_compiler.compile(members, x[0])
    with torch.autocast("cpu", torch.bfloat16):
        wide.stacked(x)
        want = [torch.stack(t) for t in zip(*(m(a) for m, a in zip(members, x, strict=True)), strict=True)]
    program = wide.programs.latest
    states = {**dict(wide.named_parameters()), **dict(wide.named_buffers())}
    return program.graph, program.graph.arguments(states, [x], N), want


def test_the_same_with_regions():
    graph, arguments, want = wide_graph()
    module = with_autocast_regions(graph.module)
    regions = [m for m in module.modules() if isinstance(m, AutocastRegion)]
    assert [region.settings[2] for region in regions] == [False, True]
    assert not any(node.target is enter_autocast for node in module.graph.nodes)
    with torch.autocast("cpu", torch.bfloat16):
        for run in (module, torch.compile(module, backend="aot_eager", fullgraph=True)):
            for got, expected in zip(run(*arguments), want, strict=True):
                assert got.dtype == expected.dtype
                torch.testing.assert_close(got, expected, rtol=2e-2, atol=2e-2)
        assert torch.is_autocast_enabled("cpu")


def test_a_graph_without_regions_stays_itself():
    wide = wide_compiler.compile([nn.Linear(4, 4) for _ in range(N)], torch.randn(2, 4))
    wide.shared(torch.randn(2, 4))
    module = wide.programs.latest.graph.module
    assert with_autocast_regions(module) is module


@pytest.mark.parametrize("gradients", [False, True])
def test_a_compiled_model(gradients, tmp_path, monkeypatch):
    monkeypatch.setenv("WIDE_COMPILER_CACHE", str(tmp_path))
    config = wide_compiler.WideConfig(compile=True, backend="aot_eager", tune_seconds=0.05)
    members = [Switching() for _ in range(N)]
    x = torch.randn(N, 5, 8)
    wide = wide_compiler.compile(members, x[0], config=config)
    with torch.autocast("cpu", torch.bfloat16), torch.set_grad_enabled(gradients):
        got = wide.stacked(x)
        want = [torch.stack(t) for t in zip(*(m(a) for m, a in zip(members, x, strict=True)), strict=True)]
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)
    tuned = wide.programs.latest.latest
    assert any("compiled" in label for label in tuned.ms), tuned.refused
