"""Modules of the user's own: registered ones stay one node, unknown ones run per lane."""

import pytest
import torch
from torch import nn

import wide_compiler
from wide_compiler import UnsupportedError, oracle

N = 3


class Scale(nn.Module):
    """A member: x * weight, and a branch on values that no tracer can follow."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6))

    def forward(self, x):
        return x * self.weight if float(x.detach().sum()) > -1e9 else x


class WideScale(nn.Module):
    """N of them: [N, B, 6] in and out."""

    built_from = None

    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight)

    @classmethod
    def from_modules(cls, modules):
        WideScale.built_from = list(modules)
        return cls(torch.stack([m.weight.detach() for m in modules]))

    def forward(self, x):
        assert x.shape[0] == self.weight.shape[0]
        return x * self.weight.unsqueeze(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.scale, self.out = nn.Linear(4, 6), Scale(), nn.Linear(6, 2)

    def forward(self, x):
        return self.out(self.scale(self.fc(x)))


@pytest.fixture
def registered():
    wide_compiler.register("Scale", WideScale)
    yield
    wide_compiler.REGISTRY.unregister("Scale")


def rows(wide):
    return {row.op: row for row in wide.explain(measure=False).rows}


def test_a_registered_module_stays_one_node_and_gets_its_instances(registered):
    models = [Net().double() for _ in range(N)]
    wide = wide_compiler.compile(models, torch.randn(2, 4).double())
    assert rows(wide)["Scale"].how == "rule" and rows(wide)["Scale"].strategy == "registered"
    assert isinstance(wide.get_submodule("scale"), WideScale)
    inputs = [((torch.randn(5, 4).double(),), {}) for _ in range(N)]
    oracle.compare(models, wide, inputs).check(rtol=1e-9)
    wide.each([a[0] for a, _ in inputs])[0].sum().backward()
    assert wide.get_submodule("scale").weight.grad is not None


def test_the_registered_class_receives_the_members_own_instances(registered):
    models = [Net() for _ in range(N)]
    seen = []
    original = WideScale.from_modules.__func__
    WideScale.from_modules = classmethod(
        lambda cls, modules: (seen.append(list(modules)), original(cls, modules))[1]
    )
    try:
        wide_compiler.compile(models, torch.randn(2, 4))
    finally:
        WideScale.from_modules = classmethod(original)
    assert any(len(s) == N and all(a is m.scale for a, m in zip(s, models, strict=True)) for s in seen)


def test_a_lane_can_be_taken_out_and_put_back(registered):
    models = [Net() for _ in range(N)]
    wide = wide_compiler.compile(models, torch.randn(2, 4))
    x = torch.randn(5, 4)
    torch.testing.assert_close(wide.lane(1)(x), models[1](x))
    fresh = Net()
    wide.load_lane(2, fresh)
    torch.testing.assert_close(wide.shared(x)[2], fresh(x))


def test_an_unregistered_module_with_a_branch_on_values_runs_per_lane():
    models = [Net().double() for _ in range(N)]
    wide = wide_compiler.compile(models, torch.randn(2, 4).double())
    assert rows(wide)["Scale"].how == "loop" and "export" in rows(wide)["Scale"].why
    assert [r.how for r in wide.explain(measure=False).rows].count("rule") == 2
    for batch in (2, 1, 5):
        inputs = [((torch.randn(batch, 4).double(),), {}) for _ in range(N)]
        oracle.compare(models, wide, inputs, gradients=True, learning_rate=0.1).check(rtol=1e-9)


def test_a_module_that_leaves_torch_runs_per_lane():
    class Numpy(nn.Module):
        def forward(self, x):
            return torch.from_numpy(x.detach().numpy() * 2.0)

    models = [nn.Sequential(nn.Linear(4, 6), Numpy(), nn.Linear(6, 2)) for _ in range(N)]
    wide = wide_compiler.compile(models, torch.randn(2, 4))
    assert rows(wide)["Numpy"].how == "loop"
    oracle.compare(models, wide, shared_input=((torch.randn(5, 4),), {})).check(rtol=1e-5)


def test_without_passthrough_the_unknown_module_is_refused_by_name():
    config = wide_compiler.WideConfig(fallback_passthrough=False)
    with pytest.raises(UnsupportedError, match=r"scale.*Scale.*register"):
        wide_compiler.compile([Net() for _ in range(N)], torch.randn(2, 4), config=config)


def test_a_graph_pass_transforms_the_captured_graph():
    def relu_to_tanh(graph):
        for node in graph.nodes:
            if node.target is torch.ops.aten.relu.default:
                node.target = torch.ops.aten.tanh.default

    models = [nn.Sequential(nn.Linear(4, 6), nn.ReLU()) for _ in range(N)]
    wide = wide_compiler.compile(models, torch.randn(2, 4), graph_passes=[relu_to_tanh])
    x = torch.randn(5, 4)
    torch.testing.assert_close(wide.shared(x), torch.stack([m[0](x).tanh() for m in models]))
