"""What torch.export gives of one member, what it cannot look into, and what must not be frozen."""

import copy
import types

import pytest
import torch
from torch import nn

import wide_compiler
from wide_compiler import _tree, oracle
from wide_compiler.capture import OPAQUE, CaptureFailed, export_member, observe_member

N = 3
x = torch.randn(2, 4)


def capture(model, *args, kept=None, **kwargs):
    leaves, spec = _tree.flatten((args, kwargs))
    free = [{0} for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return export_member(model, leaves, spec, kept or {}, free, observe_member(model, args, kwargs))


def targets(captured):
    return [str(n.target).removeprefix("aten.") for n in captured.graph.nodes if n.op == "call_function"]


def test_layers_stay_whole_ops_and_states_have_their_canonical_names():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    captured = capture(model, x)
    assert targets(captured).count("linear.default") == 2
    assert "0.weight" in captured.states.values() and "2.weight" not in captured.states.values()
    assert captured.writes == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert capture(model.eval(), x).writes == set()
    assert not captured.constants and not captured.scalars and len(captured.inputs) == 1


def test_keywords_plain_arguments_and_structured_outputs():
    class Rich(nn.Module):
        def forward(self, x, *, scale, mode):
            return {"y": x * scale, "mode": mode, "more": (x + 1, None)}

    captured = capture(Rich(), x, scale=2.0, mode="up")
    out = _tree.unflatten(captured.out_statics, captured.out_spec)
    assert out["mode"] == "up" and out["more"][1] is None
    assert len(next(n for n in reversed(captured.graph.nodes) if n.op == "output").args[0]) == 2


class Branch(nn.Module):
    """A branch on values, which no graph can hold."""

    def __init__(self, norm=False, counts=False):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4) if norm else nn.Identity()
        self.count = 0 if counts else None

    def forward(self, x):
        if self.count is not None:
            self.count += 1
        h = self.norm(self.fc(x))
        return h.relu() if h.sum() > 0 else h * 0.1


def around(make):
    return [nn.Sequential(nn.Linear(4, 4), make(), nn.Linear(4, 4)) for _ in range(N)]


def test_a_branch_on_values_runs_per_lane_inside_a_larger_model():
    models = around(Branch)
    assert targets(capture(models[0], x)).count(str(OPAQUE)) == 1
    wide = wide_compiler.compile(models, x)
    rows = wide.explain(measure=False).rows
    assert [(row.path, row.how) for row in rows] == [("0", "rule"), ("1", "loop"), ("2", "rule")]
    assert rows[1].op == "Branch" and "torch.export cannot trace it" in rows[1].why
    for batch in (2, 5):
        inputs = [((torch.randn(batch, 4) * 3,), {}) for _ in range(N)]
        oracle.compare(models, wide, inputs, gradients=True, learning_rate=0.1).check(rtol=1e-5)


def test_buffers_inside_a_module_kept_whole_move_once_per_call():
    models = around(lambda: Branch(norm=True))
    wide = wide_compiler.compile(models, x)
    assert all(lane[1].norm.num_batches_tracked == 0 for lane in wide.lanes())
    wide.shared(x)
    for lane, model in zip(wide.lanes(), copy.deepcopy(models), strict=True):
        model(x)
        assert torch.allclose(lane[1].norm.running_mean, model[1].norm.running_mean)
        assert lane[1].norm.num_batches_tracked == 1


def test_a_counter_inside_a_module_kept_whole_is_each_lanes_own():
    models = around(lambda: Branch(counts=True))
    wide = wide_compiler.compile(models, x)
    assert [lane[1].count for lane in wide.lanes()] == [0] * N
    for _ in range(3):
        wide.shared(x)
    assert [lane[1].count for lane in wide.lanes()] == [3] * N
    assert [model[1].count for model in models] == [0] * N


class Some(nn.Module):
    def forward(self, x):
        return x[x[:, 0] > 0]


class Total(nn.Module):
    def forward(self, x):
        return x.sum(0)


def test_a_module_whose_output_size_depends_on_values():
    models = [nn.Sequential(nn.Linear(4, 4), Some(), Total()) for _ in range(N)]
    wide = wide_compiler.compile(models, torch.randn(6, 4))
    for _ in range(2):
        inputs = [((torch.randn(6, 4),), {}) for _ in range(N)]
        oracle.compare(models, wide, inputs).check(rtol=1e-5)


class Round(torch.autograd.Function):
    """Straight-through, with a gradient that no rule of an op would give."""

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 7.0


class Rounded(nn.Module):
    def forward(self, x):
        return Round.apply(x * 3)


def test_a_custom_autograd_function_keeps_its_own_backward():
    models = around(Rounded)
    wide = wide_compiler.compile(models, x)
    inputs = [((torch.randn(5, 4),), {}) for _ in range(N)]
    oracle.compare(models, wide, inputs, gradients=True, learning_rate=0.1).check(rtol=1e-5)
    wide.shared(x).sum().backward()
    assert wide.get_parameter("0.weight").grad.abs().sum() > 0
    (row,) = [row for row in wide.explain(measure=False).rows if row.op == "Round"]
    assert row.how == "vmap" and "backward" in row.why


COUNTS = {
    "plain": lambda m: setattr(m, "plain", m.plain + 1),
    "list": lambda m: m.list.__setitem__(0, m.list[0] + 1),
    "private": lambda m: m._private.append(1),
    "dict": lambda m: m.dict.update(n=m.dict["n"] + 1),
    "nested": lambda m: setattr(m.nested, "n", m.nested.n + 1),
    "tuple": lambda m: setattr(m, "pair", (m.pair[0] + 1, "calls")),
    # A buffer, in a model that runs as a loop because of something else.
    "buffer": lambda m: (m.steps.add_(1.0), setattr(m, "ticks", m.ticks + 1)),
}


class Counter(nn.Module):
    """Its output depends on how often it ran; `where` says how it keeps count."""

    def __init__(self, where):
        super().__init__()
        self.fc, self.where, self.plain, self.ticks, self.pair = nn.Linear(4, 4), where, 0, 0, (0, "calls")
        self.list, self._private, self.dict, self.nested = [0], [], {"n": 0}, types.SimpleNamespace(n=0)
        self.register_buffer("steps", torch.zeros(()))

    def step(self):
        COUNTS[self.where](self)
        python = (
            self.plain + self.list[0] + len(self._private) + self.dict["n"] + self.nested.n + self.pair[0]
        )
        return python + self.steps

    def forward(self, x):
        return self.fc(x) * self.step()


@pytest.mark.parametrize("where", COUNTS)
def test_a_forward_that_counts_is_not_frozen(where):
    models = [Counter(where) for _ in range(N)]
    wide = wide_compiler.compile(models, x)
    loop = copy.deepcopy(models)
    for _ in range(3):
        expected = torch.stack([model(x) for model in loop])
        assert torch.allclose(wide.shared(x), expected, atol=1e-6)
    assert [lane.step() for lane in wide.lanes()] == [4] * N
    assert [model.plain for model in models] == [0] * N


def test_a_counter_is_named_as_the_reason_for_the_loop():
    wide = wide_compiler.compile([Counter("plain") for _ in range(N)], x)
    explanation = wide.explain(measure=False)
    assert [row.how for row in explanation.rows] == ["loop"] and "plain" in explanation.why
    with pytest.raises(CaptureFailed, match="plain"):
        capture(Counter("plain"), x)


class Asks(nn.Module):
    """Asks for values where `ask`: no graph can hold that."""

    def __init__(self, ask=True):
        super().__init__()
        self.fc, self.ask = nn.Linear(4, 4), ask

    def forward(self, x):
        if self.ask and x.sum() > 1e9:
            return x
        return self.fc(x).tanh()


def test_parts_of_one_class_that_cannot_be_traced_cost_one_capture_together(monkeypatch):
    exports = []
    export = wide_compiler.capture.member_export._export
    monkeypatch.setattr(
        "wide_compiler.capture.member_export._export", lambda *args: (exports.append(1), export(*args))[1]
    )

    def make():
        return nn.Sequential(*[Asks(i % 3 != 1) for i in range(9)], nn.Linear(4, 2))

    models, x = [make() for _ in range(3)], torch.randn(2, 4)
    wide = wide_compiler.compile(models, x)
    assert len(exports) <= 3
    looped = {row.path for row in wide.explain(measure=False).rows if row.how == "loop"}
    assert looped == {str(i) for i in range(9) if i % 3 != 1}  # those of the class that can be traced are
    oracle.compare(models, wide, shared_input=((x,), {}), gradients=True).check(rtol=1e-5)


def test_modules_of_a_suspected_class_inside_each_other():
    class Nested(Asks):
        def __init__(self, inner=None):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            x = super().forward(x)
            return x if self.inner is None else self.inner(x) + x

    models = [nn.Sequential(Nested(Nested()), Nested(), Nested(Nested(Nested()))) for _ in range(2)]
    x = torch.randn(2, 4)
    wide = wide_compiler.compile(models, x)
    oracle.compare(models, wide, shared_input=((x,), {}), gradients=True).check(rtol=1e-5)
