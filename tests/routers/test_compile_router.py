"""CompileRouter on models it has never seen: what it gives is what the model gives, by the plan it shows."""

import copy

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from measure.clocks import HeldClock, NoClock
from routers.models import (
    Branched,
    Chain,
    Crossed,
    Features,
    Inception,
    Mixture,
    NestedRouters,
    OnValues,
    Siamese,
    Transformer,
    Unwritten,
)
from routers.towers import AT_ONCE
from wide_compiler import _tree
from wide_compiler.measure import use_clock
from wide_compiler.routers import CompileRouter, RouterError, planned_model
from wide_compiler.routers.verdict import Verdict


def double(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def tokens():
    return torch.randint(0, 11, (3, 5))


# The model, its arguments, and the groups to be found.
EXPERTS = tuple(f"experts.{i}" for i in range(4))
QKV = [tuple(f"blocks.{i}.attention.{p}" for p in "kqv") for i in range(2)]
TOWERS = tuple(f"{r}.tower_{i}" for r in ("first", "second") for i in range(3))
MODELS = {
    "mixture": (Mixture, lambda: (double(5, 6),), [EXPERTS]),
    "branched": (Branched, lambda: (double(4, 3, 5, 5),), [("left", "middle", "right")]),
    "features": (Features, lambda: (double(4, 5),), [tuple(f"encoders.f{i}" for i in range(5))]),
    "inception": (
        Inception,
        lambda: (double(2, 6, 5, 5),),
        [("branch1x1", "branch3x3_1", "branch5x5_1", "branch_pool")],
    ),
    "transformer": (Transformer, lambda: (tokens(),), QKV),
    "nested routers": (NestedRouters, lambda: (double(4, 6),), [TOWERS]),
    "siamese": (Siamese, lambda: (double(4, 6), double(4, 6)), [("encoder", "encoder")]),
    "crossed": (Crossed, lambda: (double(4, 6),), [("a1", "b1"), ("a2", "b2")]),
}


def assert_same(model, planned, arguments, gradients=True):
    """Outputs, gradients and buffers of `planned` (made of `model`) equal those of a copy of the model."""
    alone = copy.deepcopy(model)
    expected = _tree.flatten(alone(*arguments))[0]
    got = _tree.flatten(planned(*arguments))[0]
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)
    if gradients:
        for outputs in (got, expected):
            sum((o * torch.linspace(1, 2, o.numel()).to(o).view_as(o)).sum() for o in outputs).backward()
        for (path, mine), theirs in zip(model.named_parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-8, atol=1e-9, msg=path)
    for mine, theirs in zip(model.buffers(), alone.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs)
    model.zero_grad()


@pytest.mark.parametrize(("name", "training"), [*((name, True) for name in MODELS), ("inception", False)])
def test_original_and_compiled_are_equal_and_the_groups_run_together(name, training):
    make, arguments, groups = MODELS[name]
    model = make().double().train(training)
    compiler = CompileRouter.from_module(model, config=AT_ONCE)
    planned = compiler.compile()
    for _ in range(2):
        assert_same(model, planned, arguments())
    plan = compiler.explain()
    assert not plan.why and plan.settled
    assert sorted(tuple(sorted(group.paths)) for group in plan.groups) == sorted(groups)
    assert all(group.how == "together" for group in plan.groups), plan
    assert plan.together == sum(map(len, groups))
    with torch.no_grad():
        assert_same(model, planned, arguments(), gradients=False)


@pytest.mark.parametrize("name", ["branched", "siamese"])
def test_through_torch_compile_it_is_one_graph(name):
    torch._dynamo.reset()
    make, arguments, groups = MODELS[name]
    model = make().double()
    counter = CompileCounterWithBackend("aot_eager")
    compiler = CompileRouter.from_module(model, config=AT_ONCE)
    compiled = compiler.compile(backend=counter, fullgraph=True)
    for _ in range(5):
        assert_same(model, compiled, arguments())
    assert counter.frame_count == 1
    assert compiler.plan.together == sum(map(len, groups))


@pytest.mark.parametrize("make", [Chain, Unwritten], ids=["chain", "written in between"])
def test_branches_that_depend_on_each_other_are_not_grouped(make):
    model, x = make().double(), double(4, 6)
    compiler = CompileRouter.from_module(model, x, config=AT_ONCE)
    assert not compiler.plan.groups
    assert compiler.compile() is model
    assert any("depend" in declined.why for declined in compiler.plan.declined)


def test_a_model_that_cannot_be_captured_comes_back_as_it_is():
    model = OnValues().double()
    compiler = CompileRouter.from_module(model, double(4, 6))
    assert compiler.compile() is model and "data-dependent" in compiler.plan.why
    lazy = CompileRouter.from_module(model).compile()
    for x in (double(4, 6).abs(), -double(4, 6).abs()):
        torch.testing.assert_close(lazy(x), model(x))


def test_without_a_sample_the_plan_is_a_guess_until_the_first_call():
    model = Mixture().double()
    compiler = CompileRouter.from_module(model, config=AT_ONCE)
    plan = compiler.compile_towers()
    assert not plan.settled and [group.paths for group in plan.groups] == [EXPERTS]
    compiler.compile()(double(4, 6))
    assert compiler.plan.settled and compiler.plan.groups[0].how == "together"
    assert compiler.plan.parameters == sum(p.numel() for p in model.experts.parameters())


def test_what_is_printed(capsys):
    compiler = CompileRouter.from_module(Transformer().double(), tokens(), config=AT_ONCE)
    compiler.print_tree()
    tree = capsys.readouterr().out
    assert "q: Linear  [group 1]" in tree and "mlp: Sequential\n" in tree
    compiler.print_stages()
    stages = capsys.readouterr().out
    assert "3 x Linear: blocks.0.attention.q" in stages and "loop: blocks.0, blocks.1: each depends" in stages
    assert "blocks.0.attention.q" in str(compiler.plan)


def test_the_planned_model_is_the_model_to_whoever_holds_it():
    model = Branched().double()
    planned = CompileRouter.from_module(model, config=AT_ONCE).compile()
    x = double(4, 3, 5, 5)
    planned(x)
    assert list(planned.state_dict()) == list(model.state_dict())
    assert [id(p) for p in planned.parameters()] == [id(p) for p in model.parameters()]
    planned.eval()
    assert not model.training and not model.left.training
    assert_same(model, planned, (x,))
    planned.train()
    torch.optim.SGD(planned.parameters(), lr=0.1)
    planned.float()
    assert model.left[0].weight.dtype == torch.float32
    torch.testing.assert_close(planned.eval()(x.float()), model(x.float()))
    planned.load_state_dict({k: v + 1 for k, v in model.state_dict().items()})
    torch.testing.assert_close(planned(x.float()), model(x.float()))


def replaced(model):
    model.experts[1] = nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 6)).double()


def another_kind(model):
    model.experts[1] = nn.Sequential(nn.Linear(6, 3), nn.GELU(), nn.Linear(3, 6)).double()


def one_less(model):
    del model.experts[3]


def frozen(model):
    model.experts[2].requires_grad_(False)


def another_gelu(model):
    model.experts[2][1].approximate = "tanh"


@pytest.mark.parametrize(
    ("change", "eager"),
    [
        *((change, True) for change in (replaced, another_kind, one_less, frozen, another_gelu)),
        *((change, False) for change in (another_kind, one_less)),
    ],
)
def test_changes_are_seen_by_the_next_call(change, eager):
    torch._dynamo.reset()
    model, x = Mixture().double(), double(4, 6)
    compiler = CompileRouter.from_module(model, config=AT_ONCE)
    planned = compiler.compile() if eager else compiler.compile(backend="aot_eager")
    torch.testing.assert_close(planned(x), model(x))
    change(model)
    torch.testing.assert_close(planned(x), model(x))


AS_IT_IS = Verdict(False, "for the test")


@pytest.mark.parametrize("as_it_is", [False, True])
@pytest.mark.parametrize("change", [replaced, another_kind, one_less, frozen, another_gelu])
def test_changes_are_seen_by_a_call_that_takes_the_short_way(change, as_it_is, monkeypatch):
    if as_it_is:
        monkeypatch.setattr(planned_model, "judge_model", lambda *args: AS_IT_IS)
    model, x = Mixture().double(), double(4, 6)
    compiler = CompileRouter.from_module(model, config=AT_ONCE)
    planned = compiler.compile()
    planned(x)
    settle, long_ways = planned.settle, []
    vars(planned)["settle"] = lambda call: long_ways.append(call) or settle(call)
    for _ in range(3):
        assert_same(model, planned, (x,))
    assert not long_ways and compiler.plan.together == (0 if as_it_is else 4)
    change(model)
    assert_same(model, planned, (x,))
    assert bool(long_ways) != as_it_is
    other = double(7, 6)
    for arguments in ((other,), (x,), (other,)):
        assert_same(model, planned, arguments)
    torch.testing.assert_close(
        torch.func.vmap(lambda scale: planned(x) * scale)(torch.ones(2)), torch.stack([model(x)] * 2)
    )
    with torch.no_grad():
        assert not planned(x).requires_grad
    model.float()
    assert planned(x.float()).dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(planned(x.float()), model(x.float()), rtol=0.05, atol=0.02)


class Dropped(Mixture):
    """Drops inside its experts and after them."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5)) for _ in range(4))

    def forward(self, x):
        return nn.functional.dropout(super().forward(x), 0.5, self.training)


def held(groups, whole):
    """A clock by which groups take `groups` seconds together, then the rewritten model `whole`; in sequence
    both take 1."""
    times, together = {"loop": 1.0, "wide": 0.9}, iter([groups, whole])
    return HeldClock(lambda label: next(together) if label == "together" else times.get(label, 2.0))


@pytest.mark.parametrize("kind", [Mixture, Dropped])
@pytest.mark.parametrize(("whole", "together"), [(0.9, 4), (0.97, 0), (1.5, 0)])
def test_the_rewritten_model_runs_where_it_is_faster(kind, whole, together, tmp_path, monkeypatch):
    monkeypatch.setenv("WIDE_COMPILER_CACHE", str(tmp_path))
    for clock, why in ((held(0.5, whole), "measured"), (NoClock(), "remembered")):
        model = kind().double()
        with use_clock(clock):
            compiler = CompileRouter.from_module(model, double(4, 6))
        assert set(compiler.plan.ms) == {"together", "loop"}
        assert compiler.plan.together == together
        assert compiler.plan.why == ("" if together else f"{why}: the loop takes less time")
        if kind is Mixture:
            assert_same(model, compiler.compile(), (double(4, 6),))
        model.eval()
        assert_same(model, compiler.compile(), (double(4, 6),))


def test_what_the_user_gave_runs_where_no_group_is_joined(tmp_path, monkeypatch):
    monkeypatch.setenv("WIDE_COMPILER_CACHE", str(tmp_path))
    model, x = Mixture().double(), double(4, 6)
    with use_clock(held(2.0, 0.1)) as clock:
        compiler = CompileRouter.from_module(model, x)
    assert compiler.plan.why == "no group of modules is faster together" and not compiler.plan.together
    assert clock.tried.count("together") == 1  # the whole model was not timed
    assert_same(model, compiler.compile(), (x,))


def test_batch_sizes_and_keywords():
    class Model(Mixture):
        def forward(self, x, scale=1.0, extra=None):
            return super().forward(x) * scale + (0 if extra is None else extra)

    model = Model().double()
    planned = CompileRouter.from_module(model, config=AT_ONCE).compile()
    for batch in (2, 3, 7):
        x = double(batch, 6)
        torch.testing.assert_close(planned(x, scale=0.5), model(x, scale=0.5))
        torch.testing.assert_close(planned(x, extra=x), model(x, extra=x))


def test_a_negative_zero_is_another_argument():
    class Model(Mixture):
        def forward(self, x, scale):
            return super().forward(x) + 1 / torch.tensor(scale, dtype=x.dtype)

    model, x = Model().double(), double(4, 6)
    planned = CompileRouter.from_module(model, config=AT_ONCE).compile()
    for scale in (0.0, 0.0, -0.0, 0.0):
        torch.testing.assert_close(planned(x, scale), model(x, scale))


def test_no_module():
    with pytest.raises(RouterError, match=r"takes a torch.nn.Module, got int"):
        CompileRouter.from_module(3)


class Teacher(nn.Module):
    """Two alike branches, one of them without gradients; dropout, so that numbers cannot be compared."""

    def __init__(self, rate):
        super().__init__()
        self.drop = nn.Dropout(rate)
        self.teacher, self.student = (nn.Sequential(nn.Linear(6, 8), nn.Tanh()) for _ in range(2))
        self.heads = nn.ModuleList(nn.Linear(8, 3) for _ in range(3))

    def forward(self, x):
        with torch.no_grad():
            target = self.teacher(x)
        h = self.drop(self.student(x)) - target
        return sum(head(h) for head in self.heads)


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_a_branch_without_gradients_stays_apart(rate):
    model = Teacher(rate).double()
    compiler = CompileRouter.from_module(model, config=AT_ONCE)
    planned = compiler.compile()
    planned(double(4, 6)).square().sum().backward()
    assert [group.paths for group in compiler.plan.groups] == [("heads.0", "heads.1", "heads.2")]
    assert compiler.plan.together == 3
    assert model.teacher[0].weight.grad is None and model.student[0].weight.grad is not None
    assert any("no gradients are recorded" in declined.why for declined in compiler.plan.declined)
    model.zero_grad()
    if not rate:
        assert_same(model, planned, (double(4, 6),))


def test_a_copy_runs_its_own_model():
    model = Mixture().double()
    planned = CompileRouter.from_module(model, config=AT_ONCE).compile()
    x = double(4, 6)
    planned(x)
    clone = copy.deepcopy(planned)
    with torch.no_grad():
        for p in clone.parameters():
            p.add_(1)
    torch.testing.assert_close(clone(x), clone.original(x))
    torch.testing.assert_close(planned(x), model(x))
    assert not torch.allclose(clone(x), planned(x))


class Sampled(nn.Module):
    """A gate that asks for values, as mixtures have: no graph can hold it."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6))

    def forward(self, x):
        return x @ self.weight if x.abs().sum() > 3.0 else x * 2


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.last = Sampled(), Sampled()
        self.heads = nn.ModuleList([nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(4)])

    def forward(self, x):
        h = self.gate(x)
        return self.last(sum(head(h) for head in self.heads))


@pytest.mark.parametrize("training", [False, True])
def test_a_part_that_no_graph_can_hold_runs_as_python_between_the_others(training):
    model = Gated().double().train(training)
    x = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    router = CompileRouter.from_module(model, x, config=AT_ONCE)
    joined = router.compile()
    for scale in (1.0, 0.01, 5.0):  # both branches of the gate
        got, expected = joined(x * scale), model(x * scale)
        torch.testing.assert_close(got, expected)
        leaves = [x, *model.parameters()]
        mine, theirs = (
            torch.autograd.grad(y.square().sum(), leaves, allow_unused=True) for y in (got, expected)
        )
        torch.testing.assert_close(mine, theirs)
    assert [group.paths for group in router.plan.groups] == [tuple(f"heads.{i}" for i in range(4))]
    assert {row.paths for row in router.plan.declined} >= {("gate",), ("last",)}
    assert not router.plan.why


class Lopsided(nn.Module):
    """As a residual block: the short cut is as its last layer, but waits for nothing."""

    def __init__(self):
        super().__init__()
        self.first, self.last, self.short = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.end = nn.Linear(6, 6)

    def forward(self, x):
        return self.end(self.last(self.first(x).relu()) + self.short(x))


def test_calls_of_several_depths_are_joined_and_the_rest_has_a_true_reason():
    model = Lopsided().double()
    x = torch.randn(3, 6, dtype=torch.float64)
    router = CompileRouter.from_module(model, x, config=AT_ONCE)
    torch.testing.assert_close(router.compile()(x), model(x))
    (group,) = router.plan.groups
    assert "short" in group.paths and len(group.paths) == 2
    left = {path for row in router.plan.declined for path in row.paths}
    assert left == {"first", "last", "short", "end"} - set(group.paths)
    assert {row.why for row in router.plan.declined} == {
        "joining it would make two groups depend on each other"
    }


class Chosen(nn.Module):
    """Gives as many rows as its values say."""

    def forward(self, x):
        return x[: 2 + int(x[0, 0] > 0)]


class Ragged(nn.Module):
    def __init__(self):
        super().__init__()
        self.choose, self.norm = Chosen(), nn.BatchNorm1d(6)
        self.heads = nn.ModuleList([nn.Linear(6, 6) for _ in range(3)])

    def forward(self, x):
        h = self.choose(self.norm(x))
        return sum(head(h) for head in self.heads) / h.shape[0]


def test_python_that_gives_other_shapes_runs_the_whole_model_as_it_is():
    model = Ragged().double()
    other = copy.deepcopy(model)
    x = torch.randn(5, 6, dtype=torch.float64)
    x[0, 0] = x[:, 0].max() + 1
    router = CompileRouter.from_module(model, x, config=AT_ONCE)
    joined = router.compile()
    model.load_state_dict(other.state_dict())
    for batch in (x, -x, x, -x):
        torch.testing.assert_close(joined(batch), other(batch))
        torch.testing.assert_close(model.norm.running_mean, other.norm.running_mean)
    assert "shape depends on values" in router.plan.why


class Fused(nn.Module):
    """As HRNet's fusing layers: one branch reads what was computed from what the other reads."""

    def __init__(self):
        super().__init__()
        self.stem, self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        h = self.stem(x).tanh()
        return self.a(h) + self.b(h.exp().tanh())


def test_inputs_of_which_one_was_computed_from_the_other_are_measured_apart():
    model = Fused().double()
    x = torch.randn(3, 6, dtype=torch.float64)
    router = CompileRouter.from_module(model, x)
    y = router.compile()(x)
    assert "raises" not in router.plan.why
    mine, theirs = (torch.autograd.grad(o.sum(), list(model.parameters())) for o in (y, model(x)))
    torch.testing.assert_close(mine, theirs)
