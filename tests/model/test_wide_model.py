"""The model a user holds: doors, lanes, moving, copying, sharing."""

import copy
import gc
import pickle
import weakref

import pytest
import torch
from torch import nn

import wide_compiler
from wide_compiler import oracle

N = 4


class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.fc1, self.norm, self.fc2 = nn.Linear(5, width), nn.BatchNorm1d(width), nn.Linear(width, 3)

    def forward(self, x, scale=None, *, shift=0.0):
        h = self.fc2(torch.relu(self.norm(self.fc1(x))))
        return {"y": h if scale is None else h * scale, "shifted": h + shift}


@pytest.fixture
def models():
    return [Net() for _ in range(N)]


@pytest.fixture
def wide(models):
    return wide_compiler.compile(models, torch.randn(2, 5))


def test_the_four_doors_agree(models, wide):
    for model in models:
        model.eval()
    wide.eval()
    xs = [torch.randn(6, 5) for _ in range(N)]
    expected = [model(x)["y"] for model, x in zip(models, xs, strict=True)]
    by_each = [out["y"] for out in wide.each(xs)]
    by_stack = wide.stacked(torch.stack(xs))["y"]
    by_pack = wide_compiler.unpack(wide(wide_compiler.pack(xs)), N)
    by_share = wide.shared(xs[0])["y"]
    for i in range(N):
        torch.testing.assert_close(by_each[i], expected[i])
        torch.testing.assert_close(by_stack[i], expected[i])
        torch.testing.assert_close(by_pack[i]["y"], expected[i])
        torch.testing.assert_close(by_share[i], models[i](xs[0])["y"])


def test_keywords_and_plain_numbers(models, wide):
    for model in models:
        model.eval()
    wide.eval()
    x, scale = torch.randn(6, 5), torch.randn(6, 1)
    for shift in (1.0, 2.0):
        out = wide.shared(x, scale, shift=shift)
        for i, model in enumerate(models):
            torch.testing.assert_close(out["y"][i], model(x, scale, shift=shift)["y"])
            torch.testing.assert_close(out["shifted"][i], model(x, scale, shift=shift)["shifted"])


def test_train_and_eval_are_two_programs(models):
    for model in models:
        model.double()
    x = torch.randn(6, 5).double()
    wide = wide_compiler.compile(models, x)
    for mode in (True, False, True):
        wide.train(mode)
        for model in models:
            model.train(mode)
        oracle.compare(models, wide, shared_input=((x,), {}), gradients=True, learning_rate=0.1).check(
            1e-4, 1e-6
        )


def test_names_are_the_members_own(models, wide):
    assert set(wide.state_dict()) == set(models[0].state_dict())
    assert wide.fc1.weight.shape == (N, 8, 5)
    assert [name for name, _ in wide.named_parameters()] == [name for name, _ in models[0].named_parameters()]


def test_lanes_in_and_out(models, wide):
    x = torch.randn(6, 5)
    for i, model in enumerate(models):
        lane = wide.lane(i)
        assert type(lane) is Net
        assert all(
            torch.equal(a, b)
            for a, b in zip(lane.state_dict().values(), model.state_dict().values(), strict=True)
        )
    other = Net()
    wide.load_lane(2, other.state_dict())
    wide.eval(), other.eval()
    torch.testing.assert_close(wide.shared(x)["y"][2], other(x)["y"])
    wide.lane(0).fc1.weight.data.zero_()
    assert wide.fc1.weight[0].abs().sum() > 0


def test_weights_changed_in_place_are_seen(models, wide):
    wide.eval()
    x = torch.randn(6, 5)
    wide.shared(x)
    with torch.no_grad():
        wide.fc2.bias[1] += 1.0
        wide.fc2.weight.data[3].zero_()
    out = wide.shared(x)["y"]
    torch.testing.assert_close(out[1], wide.lane(1)(x)["y"])
    torch.testing.assert_close(out[3], wide.lane(3)(x)["y"])


@pytest.mark.parametrize(
    "clone", [copy.deepcopy, lambda w: pickle.loads(pickle.dumps(w))], ids=["deepcopy", "pickle"]
)
def test_copies_are_independent(clone, models, wide):
    wide.eval()
    x = torch.randn(6, 5)
    before = wide.shared(x)["y"]
    other = clone(wide)
    torch.testing.assert_close(other.shared(x)["y"], before)
    with torch.no_grad():
        other.fc1.weight.zero_()
    torch.testing.assert_close(wide.shared(x)["y"], before)
    assert not torch.allclose(other.shared(x)["y"], before)
    other.train().shared(x)["y"].sum().backward()
    assert all(p.grad is None for p in wide.parameters())


def test_dtype_follows(models, wide):
    wide.double().eval()
    doubles = [copy.deepcopy(m).double().eval() for m in models]
    inputs = [((torch.randn(6, 5).double(),), {}) for _ in range(N)]
    oracle.compare(doubles, wide, inputs).check(rtol=1e-12)
    assert wide.explain(measure=False).coverage == 1.0


class Plain(nn.Module):
    """Tensors that are neither parameters nor buffers: `float()` and the like leave them as they are."""

    def __init__(self, lane):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.scale = torch.tensor([(lane + 1) / 3] * 4)
        self.table = [torch.arange(4.0) * lane / 7]
        self.third = torch.tensor(1 / 3)  # equal in all lanes
        self.order = torch.tensor([lane, 1, 2])

    def forward(self, x):
        return (self.fc(x) * self.scale + self.table[0] * self.third)[:, self.order]


CONVERSIONS = {
    "double": lambda m: m.double(),
    "half and back": lambda m: m.half().double(),
    "bfloat16 and back": lambda m: m.to(torch.bfloat16).float(),
    "device and dtype": lambda m: m.to("cpu", torch.float64),
}


@pytest.mark.parametrize("convert", CONVERSIONS.values(), ids=CONVERSIONS)
@pytest.mark.parametrize("separate", [False, True])
def test_conversions_leave_plain_tensors_as_they_are(convert, separate):
    models = [Plain(lane) for lane in range(N)]
    wide = wide_compiler.compile(copy.deepcopy(models), torch.randn(2, 4))
    if separate:
        wide.separate_members()
    wide, models = convert(wide), [convert(m) for m in models]
    inputs = [((torch.randn(5, 4, dtype=m.fc.weight.dtype),), {}) for m in models]
    oracle.compare(models, wide, inputs, gradients=True).check(rtol=1e-6, atol=1e-7)
    for lane, model in zip(wide.lanes(), models, strict=True):
        for name in ("scale", "third", "order"):
            assert getattr(lane, name).dtype == getattr(model, name).dtype
            assert torch.equal(getattr(lane, name), getattr(model, name))
        assert torch.equal(lane.table[0], model.table[0])
    assert wide.explain(measure=False).coverage == 1.0


def test_autocast_equals_the_loop(models, wide):
    wide.eval()
    x = torch.randn(6, 5)
    with torch.autocast("cpu", torch.bfloat16):
        out = wide.shared(x)["y"]
        for i, model in enumerate(models):
            expected = model.eval()(x)["y"]
            assert out.dtype == expected.dtype
            torch.testing.assert_close(out[i], expected, rtol=2e-2, atol=2e-2)
    assert wide.shared(x)["y"].dtype == torch.float32


@pytest.mark.parametrize("chunk", [1, 3, 4, 9])
def test_chunks_give_the_same(chunk, models):
    for model in models:
        model.double()
    wide = wide_compiler.compile(models, torch.randn(2, 5).double(), chunk_lanes=chunk)
    inputs = [((torch.randn(6, 5).double(),), {}) for _ in range(N)]
    oracle.compare(models, wide, inputs, gradients=True, learning_rate=0.1).check(rtol=1e-9)


def test_views_follow_the_wide_model(models, tmp_path):
    wide = wide_compiler.compile(models, torch.randn(2, 5), views=True)
    optimizer = torch.optim.SGD(wide.parameters(), lr=0.1)
    wide.shared(torch.randn(6, 5))["y"].square().sum().backward()
    optimizer.step()
    for i, model in enumerate(models):
        assert torch.equal(model.fc1.weight, wide.fc1.weight[i])
        assert torch.equal(model.norm.running_mean, wide.norm.running_mean[i])
        assert model.fc1.weight.data_ptr() == wide.fc1.weight[i].data_ptr()
    torch.save(models[0].state_dict(), tmp_path / "one.pt")
    torch.save(copy.deepcopy(Net()).state_dict(), tmp_path / "plain.pt")
    assert (tmp_path / "one.pt").stat().st_size <= 1.1 * (tmp_path / "plain.pt").stat().st_size
    wide.double()
    assert models[0].fc1.weight.dtype == torch.float64
    assert torch.equal(models[3].fc2.bias, wide.fc2.bias[3])
    wide.load_state_dict(copy.deepcopy(wide.state_dict()), assign=True)
    with torch.no_grad():
        wide.fc2.bias.add_(1)
    assert torch.equal(models[3].fc2.bias, wide.fc2.bias[3])


def test_a_shared_trunk_runs_once_and_sums_gradients():
    trunk = nn.Sequential(nn.Linear(5, 8), nn.Tanh())
    models = [nn.Sequential(trunk, nn.Linear(8, 3)) for _ in range(N)]
    wide = wide_compiler.compile(models, torch.randn(2, 5))
    assert wide.get_submodule("0.0").weight.shape == (8, 5)
    x = torch.randn(6, 5)
    out = wide.shared(x)
    hows = [row.how for row in wide.explain(measure=False).rows]
    assert hows == ["shared", "shared", "rule"]
    out.sum().backward()
    sum(model(x).sum() for model in models).backward()
    torch.testing.assert_close(wide.get_submodule("0.0").weight.grad, trunk[0].weight.grad)
    torch.testing.assert_close(out, torch.stack([model(x) for model in models]))


def test_equal_buffers_are_shared_until_they_differ():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)
            self.register_buffer("mask", torch.ones(4, 4).tril())

        def forward(self, x):
            return self.fc(x) @ self.mask

    models = [Masked() for _ in range(N)]
    wide = wide_compiler.compile(models, torch.randn(2, 4))
    assert wide.mask.shape == (4, 4)
    other = Masked()
    other.mask.fill_(2.0)
    wide.load_lane(1, other)
    assert wide.mask.shape == (N, 4, 4)
    x = torch.randn(3, 4)
    torch.testing.assert_close(wide.shared(x)[1], other(x))
    torch.testing.assert_close(wide.shared(x)[0], models[0](x))


def test_explain_and_summary(wide):
    explanation = wide.explain()
    assert explanation.coverage == 1.0 and all(row.ms is not None for row in explanation.rows)
    assert {row.path for row in explanation.rows} >= {"fc1", "norm", "fc2"}
    assert "fc1" in str(explanation) and "linear" in str(explanation)
    assert f"{N} lanes of Net" in wide.summary()


FACTOR = 1.0


class Scaled(nn.Linear):
    def forward(self, x):
        return super().forward(x) * FACTOR


def test_a_value_that_never_settles_is_named_as_the_reason_for_the_loop(monkeypatch):
    monkeypatch.setattr("wide_compiler.model.program_cache.MAX_CAPTURES", 3)
    members = [Scaled(4, 2) for _ in range(2)]
    wide = wide_compiler.compile(members, torch.randn(1, 4))
    for factor in (2.0, 3.0, 4.0):
        monkeypatch.setitem(globals(), "FACTOR", factor)
        inputs = torch.randn(3, 4)
        torch.testing.assert_close(wide.shared(inputs), torch.stack([m(inputs) for m in members]))
    why = wide.explain(measure=False).why
    assert "3 captures" in why and "values that its Python reads" in why


def test_no_graph_break(wide):
    wide.eval()
    compiled = torch.compile(wide, fullgraph=True, backend="eager")
    for batch in (2, 6):
        packed = torch.randn(batch, N * 5)
        torch.testing.assert_close(compiled(packed)["y"], wide(packed)["y"])


def test_the_lane_graph_alone_compiles_whole(wide):
    wide.eval()
    x = torch.randn(N, 6, 5)
    expected = wide.stacked(x)["y"]
    graph = wide.programs.latest.graph
    arguments = graph.arguments(wide.states(), [x], N)
    out = torch.compile(graph.module, fullgraph=True, backend="eager")(*arguments)
    torch.testing.assert_close(out[0], expected)


def test_a_thousand_lanes_hold_the_stacked_weights_and_little_more():
    models = [nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)) for _ in range(1000)]
    references = [weakref.ref(m[0].weight) for m in models]
    wide = wide_compiler.compile(models, torch.randn(1, 16))
    x = torch.randn(3, 16)
    torch.testing.assert_close(wide.shared(x)[777], models[777](x))
    del models
    gc.collect()
    assert not any(reference() is not None for reference in references)
    held = sum(p.numel() for p in wide.parameters())
    assert held == 1000 * (16 * 32 + 32 + 32 * 16 + 16)
    assert len(wide.skeletons.variants) == 1


class Made(nn.Module):
    """Makes a tensor on the default device."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        return self.linear(x), torch.zeros(2)


def test_another_default_device():
    models, x = [Made() for _ in range(3)], torch.randn(4, 3)
    wide = wide_compiler.compile(models, x)
    assert wide.shared(x)[1].device.type == "cpu"
    for _ in range(2):
        with torch.device("meta"):
            assert wide.shared(x)[1].device == models[0](x)[1].device == torch.device("meta")
        assert wide.shared(x)[1].device.type == "cpu"


def test_a_backward_hook_of_one_member_is_called():
    models, seen = [nn.Linear(3, 2) for _ in range(3)], []
    models[2].register_full_backward_hook(lambda *args: seen.append(1))
    wide = wide_compiler.compile(models, torch.randn(2, 3))
    assert "backward hook" in wide.explain(measure=False).why
    wide.shared(torch.randn(2, 3).requires_grad_()).sum().backward()
    assert seen == [1]
