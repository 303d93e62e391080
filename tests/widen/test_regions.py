"""Members that switch autocast inside their forward, or compute parts of it again in the backward pass."""

import functools

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import wide_compiler
from wide_compiler.capture.cleanup import enter_autocast
from wide_compiler.widen.graph_regions import AutocastRegion, with_autocast_regions

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


class Block(nn.Module):
    def __init__(self, rate):
        super().__init__()
        self.up, self.down, self.drop = nn.Linear(8, 64), nn.Linear(64, 8), nn.Dropout(rate)

    def forward(self, x):
        return self.down(self.drop(torch.relu(self.up(x)))).tanh()


class ByItself(Block):
    """As Hugging Face's layers do it."""

    def forward(self, x):
        return checkpoint(functools.partial(Block.forward, self), x, use_reentrant=False)


class Checkpointed(nn.Module):
    def __init__(self, how, rate=0.0):
        super().__init__()
        make = ByItself if how == "by itself" else Block
        self.blocks, self.how = nn.ModuleList(make(rate) for _ in range(3)), how

    def forward(self, x):
        for block in self.blocks:
            x = x + self.run(block, x)
        return x

    def run(self, block, x):
        if self.how == "plain" or isinstance(block, ByItself):
            return block(x)
        if self.how == "closure":
            return checkpoint(lambda x: block(x) * 2 / 2, x, use_reentrant=False)
        return checkpoint(block, x, use_reentrant=self.how == "reentrant")


def kept_bytes(wide, x):
    """What the forward keeps for the backward pass, weights left out; and what both give."""
    weights = {p.untyped_storage().data_ptr() for p in wide.parameters()}
    kept = {}

    def pack(t):
        if t.untyped_storage().data_ptr() not in weights:
            kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = wide.stacked(x)
    return sum(kept.values()), y, torch.autograd.grad(y.square().sum(), list(wide.parameters()))


@pytest.mark.parametrize("how", ["reentrant", "not reentrant", "closure", "by itself"])
@pytest.mark.parametrize("chunk", [None, 2])
def test_what_members_compute_again_lanes_compute_again(how, chunk):
    config = wide_compiler.WideConfig(tune_seconds=0.0, chunk_lanes=chunk)
    members = [Checkpointed(how).double() for _ in range(N)]
    x = torch.randn(N, 32, 8, dtype=torch.float64, requires_grad=True)
    wide = wide_compiler.compile(members, x[0].detach(), config=config)
    kept, y, gradients = kept_bytes(wide, x)
    for member in members:
        member.how = "plain"
        for block in member.blocks:
            block.__class__ = Block
    plain = wide_compiler.compile(members, x[0].detach(), config=config)
    kept_plain, want, wanted = kept_bytes(plain, x)
    torch.testing.assert_close((y, *gradients), (want, *wanted))
    assert kept < kept_plain / 3
    assert wide.programs.latest.captured.checkpointed >= {"blocks.0", "blocks.1", "blocks.2"}
    assert not plain.programs.latest.captured.checkpointed


def test_draws_are_the_same_when_computed_again():
    members = [Checkpointed("not reentrant", rate=0.5) for _ in range(N)]
    x = torch.randn(N, 32, 8)
    wide = wide_compiler.compile(members, x[0])
    y = wide.stacked(x)
    # The gradient of the last block's output weight tells which hidden numbers were dropped in the backward.
    hidden = torch.autograd.grad(y.sum(), wide.blocks[2].down.weight, retain_graph=True)[0]
    again = torch.autograd.grad(y.sum(), wide.blocks[2].down.weight)[0]
    torch.testing.assert_close(hidden, again)
    direction = torch.randn_like(wide.blocks[0].down.bias)
    torch.manual_seed(0)
    (slope,) = torch.autograd.grad(wide.stacked(x).double().sum(), wide.blocks[0].down.bias)
    ends = []
    for sign in (1, -1):
        torch.manual_seed(0)
        with torch.no_grad():
            wide.blocks[0].down.bias += sign * 1e-3 * direction
            ends.append(wide.stacked(x).double().sum())
            wide.blocks[0].down.bias -= sign * 1e-3 * direction
    torch.testing.assert_close(
        (ends[0] - ends[1]) / 2e-3, (slope * direction).sum().double(), rtol=2e-2, atol=1e-2
    )


class Counting(Checkpointed):
    """A block that counts in a buffer is not run twice."""

    def __init__(self):
        super().__init__("not reentrant")
        self.blocks[1].register_buffer("count", torch.zeros(()))
        self.blocks[1].register_forward_pre_hook(count)


def count(block, args):
    block.count += 1


def test_what_writes_is_not_computed_again():
    members = [Counting() for _ in range(N)]
    x = torch.randn(N, 4, 8)
    wide = wide_compiler.compile(members, x[0])
    wide.stacked(x).sum().backward()
    assert [float(wide.lane(i).blocks[1].count) for i in range(N)] == [1.0] * N
