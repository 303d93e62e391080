"""The lane graph is a pure function of (states, inputs): whoever holds the states may run it."""

import pytest
import torch
from torch import nn

import wide_compiler

N = 3


class Net(nn.Module):
    def __init__(self, sign=1.0):
        super().__init__()
        self.fc, self.norm, self.sign = nn.Linear(4, 6), nn.BatchNorm1d(6), sign

    def forward(self, x):
        return self.sign * self.norm(self.fc(x))


def test_a_differentiable_stack_of_the_members_own_parameters_trains_the_members():
    models = [Net((-1.0) ** i).double() for i in range(N)]
    x = torch.randn(5, 4).double()
    graph = wide_compiler.compile(models, x).programs.latest.graph
    names = dict(models[0].named_parameters()).keys()
    states = {name: torch.stack([m.get_parameter(name) for m in models]) for name in names}
    states |= {
        name: torch.stack([m.get_buffer(name) for m in models]) for name, _ in models[0].named_buffers()
    }
    (out,) = graph(states, [x.expand(N, 5, 4)], N)
    out.square().sum().backward()
    gradients = [{k: p.grad.clone() for k, p in m.named_parameters()} for m in models]
    for i, model in enumerate(models):
        model.zero_grad()
        expected = model(x)
        expected.square().sum().backward()
        torch.testing.assert_close(out[i], expected)
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(gradients[i][name], parameter.grad)
        torch.testing.assert_close(states["norm.running_mean"][i], model.norm.running_mean)
    assert graph.writes == {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}


def test_it_runs_for_any_number_of_lanes():
    models = [Net((-1.0) ** i).eval() for i in range(4)]
    x = torch.randn(5, 4)
    wide = wide_compiler.compile(models, x)
    graph = wide.programs.latest.graph
    some = {path: t[1:3] if path in graph.wide_states else t for path, t in wide.tensors().items()}
    (out,) = graph(some, [x.expand(2, 5, 4)], 2, lanes=slice(1, 3))
    torch.testing.assert_close(out, torch.stack([models[1](x), models[2](x)]))


def test_the_code_is_readable():
    code = wide_compiler.compile([Net() for _ in range(N)], torch.randn(2, 4)).programs.latest.graph.code
    assert "wide_linear" in code and "fc_weight" in code and "wide_batch_norm" in code
    assert "fc_weight_1" not in code and "input_0_1" not in code  # no second name for an argument


def test_parameters_whose_names_are_taken_or_meet():
    class Names(nn.Module):
        def __init__(self):
            super().__init__()
            for name in ("n", "rng", "input_0", "torch", "add", "a_b", "class"):
                self.register_parameter(name, nn.Parameter(torch.randn(3)))
            self.a = nn.Module()
            self.a.b = nn.Parameter(torch.randn(3))

        def forward(self, x):
            product = x * self.n + self.rng * self.input_0 + self.torch * self.a_b
            return product - self.a.b + self.add * getattr(self, "class")

    models, x = [Names() for _ in range(N)], torch.randn(2, 3)
    out = wide_compiler.compile(models, x).shared(x)
    torch.testing.assert_close(out, torch.stack([model(x) for model in models]))


@pytest.mark.filterwarnings("ignore")
def test_an_op_run_by_its_decomposition_compiles_without_a_graph_break():
    class Member(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(4, 4))

        def forward(self, x):
            return torch.renorm(x @ self.w, 2, 1, 1.5) + torch.column_stack([x[:, 0], x[:, :3]]) * self.w[0]

    models, x = [Member() for _ in range(3)], torch.randn(5, 4)
    wide = wide_compiler.compile(models, x)
    expected = torch.stack([model(x) for model in models])
    torch.testing.assert_close(wide.shared(x), expected)
    assert {row.op: row.how for row in wide.explain(measure=False).rows}["renorm.default"] == "vmap"
    compiled = torch.compile(wide.shared, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), expected)
