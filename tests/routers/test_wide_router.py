"""Towers run together equal towers run in sequence: outputs, gradients, buffers, one optimiser step."""

import copy
import threading

import pytest
import torch
from torch import nn

from measure.clocks import HeldClock, NoClock
from routers.towers import (
    AT_ONCE,
    Attention,
    Conv,
    Mlp,
    Signed,
    assert_equal_to_sequence,
    collective,
    in_sequence,
)
from wide_compiler import WideConfig
from wide_compiler.measure import use_clock
from wide_compiler.routers import BaseTower, WideRouter
from wide_compiler.routers.fused_lanes import Fused

KINDS = {
    "mlp": (Mlp, (4, 6)),
    "conv": (Conv, (4, 3, 5, 5)),
    "attention": (Attention, (2, 5, 8)),
    "inverse pairs": (lambda name: Signed(name, sign=(-1) ** int(name)), (4, 6)),
}


def double(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@pytest.mark.parametrize(("n", "training"), [(8, False), (64, True)], ids=["8 eval", "64 train"])
@pytest.mark.parametrize("kind", KINDS)
def test_aligned_towers_run_as_one_group_and_equal_sequence(kind, n, training):
    make, shape = KINDS[kind]
    router = collective(*[make(str(i)) for i in range(n)]).train(training)
    assert_equal_to_sequence(router, double(*shape))
    (row,) = router.explain().rows
    assert row.how == "together" and len(row.towers) == n and row.coverage == 1.0


def test_mixed_signatures_run_as_one_group_each():
    towers = [Mlp(f"small{i}") for i in range(4)]
    towers += [Mlp(f"big{i}", hidden=16) for i in range(3)] + [Signed("one")]
    router = collective(*[towers[i] for i in (0, 4, 7, 1, 5, 2, 6, 3)])
    assert_equal_to_sequence(router, double(4, 6))
    rows = {len(row.towers): row for row in router.explain().rows}
    assert {n: row.how for n, row in rows.items()} == {4: "together", 3: "together", 1: "alone"}
    assert rows[1].towers == ("one",)
    assert router.explain().together == 7
    assert {frozenset(names) for names in router.analyze_structure()} == {
        frozenset({"small0", "small1", "small2", "small3"}),
        frozenset({"big0", "big1", "big2"}),
        frozenset({"one"}),
    }


def test_weights_changed_from_outside_are_seen():
    router = collective(*[Mlp(str(i)) for i in range(8)])
    x = double(4, 6)

    def check():
        with torch.no_grad():
            got, (expected, _) = router.wide_forward(x), in_sequence(router, x)
            assert router.explain().together == 8
            for name in expected:
                torch.testing.assert_close(got[name], expected[name])

    check()
    weight = router["3"][0].weight
    with torch.no_grad():
        weight.mul_(2)
    check()
    weight.data.mul_(0.5)  # past the version counter
    weight.data.add_(1.0)
    check()
    weight.data = double(*weight.shape)
    check()
    router["5"][2].bias = nn.Parameter(double(6))
    check()
    router["1"].load_state_dict(router["2"].state_dict())
    check()
    nn.init.zeros_(router["7"][0].bias)
    check()
    router["6"].load_state_dict({k: v + 1 for k, v in router["6"].state_dict().items()}, assign=True)
    check()


def test_saved_and_loaded_through_the_towers_own_keys(tmp_path):
    router, other = (collective(*[Conv(str(i)) for i in range(3)]) for _ in range(2))
    x = double(4, 3, 5, 5)
    router.wide_forward(x)
    assert set(router.state_dict()) == {f"{i}.{k}" for i in range(3) for k in router["0"].state_dict()}
    torch.save(router.state_dict(), tmp_path / "router.pt")
    other.load_state_dict(torch.load(tmp_path / "router.pt"))
    router.eval(), other.eval()
    for name, out in other.wide_forward(x).items():
        torch.testing.assert_close(out, router.wide_forward(x)[name])
    torch.save(router["1"].state_dict(), tmp_path / "tower.pt")
    alone = Conv("alone").double().eval()
    alone.load_state_dict(torch.load(tmp_path / "tower.pt"))
    torch.testing.assert_close(alone(x), router.wide_forward(x)["1"])


def test_training_the_router_trains_the_towers():
    router = collective(*[Conv(str(i)) for i in range(4)])
    towers = copy.deepcopy(nn.ModuleList(router._towers().values()))
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (router, towers)]
    for step in range(5):
        x = torch.randn(4, 3, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        for outputs, optimizer in zip(
            (router.wide_forward(x).values(), [tower(x) for tower in towers]), optimizers, strict=True
        ):
            optimizer.zero_grad()
            sum(out.square().mean() for out in outputs).backward()
            optimizer.step()
    for own, alone in zip(router._towers().values(), towers, strict=True):
        for a, b in zip(own.state_dict().values(), alone.state_dict().values(), strict=True):
            torch.testing.assert_close(a, b)
    assert router.explain().together == 4


def test_some_towers_only():
    router = collective(*[Signed(str(i), sign=i) for i in range(6)], Mlp("mlp"))
    x = double(4, 6)
    expected, _ = in_sequence(router, x)
    for names in (["4", "1", "2"], ["5"], ["mlp", "0"], [str(i) for i in range(6)]):
        got = router.wide_forward(x, tower_names=names)
        assert list(got) == [name for name in router.tower_names if name in names]
        for name, out in got.items():
            torch.testing.assert_close(out, expected[name])
        row = router.explain().rows[-1]
        assert row.how == ("together" if len(names) >= 3 else "alone")
    group = router.formation().groups["0", "1", "2", "3", "4", "5"]
    assert len(group.programs.captures) == 1  # one graph serves any of its towers


def test_a_mask_reaches_every_tower():
    router = collective(*[Attention(str(i)) for i in range(4)])
    x, mask = double(2, 5, 8), torch.zeros(2, 5, dtype=torch.bool)
    mask[:, 3:] = True
    assert_equal_to_sequence(router, x, mask=mask)
    assert router.explain().together == 4
    masked = router.wide_forward(x, mask=mask)["0"]
    assert not torch.allclose(masked, router.wide_forward(x)["0"])


@pytest.mark.parametrize(("seconds", "how"), [(0.9, "together"), (0.97, "loop")])
def test_measured_groups_say_what_was_measured(seconds, how, tmp_path, monkeypatch):
    monkeypatch.setenv("WIDE_COMPILER_CACHE", str(tmp_path))
    times = {"together": seconds, "loop": 1.0, "wide": 0.5}
    held = HeldClock(lambda label: times.get(label, 2.0))
    for clock, why in ((held, "measured"), (NoClock(), "remembered")):
        router = collective(*[Mlp(str(i)) for i in range(16)], config=WideConfig())
        with use_clock(clock):
            assert_equal_to_sequence(router, double(4, 6))
        (row,) = router.explain().rows
        assert (row.how, row.why) == (how, why) and set(row.ms) == {"together", "loop"}


class Dropping(BaseTower):
    """Draws in every way a tower usually does: masks, noise, recurrent dropout, attention dropout."""

    def __init__(self, name, noise=0.1):
        super().__init__(name)
        self.fc, self.drop = nn.Linear(6, 6), nn.Dropout(0.5)
        self.rnn = nn.GRU(6, 6, 2, dropout=0.5, batch_first=True)
        self.attention = nn.MultiheadAttention(6, 2, dropout=0.5, batch_first=True)
        self.noise = noise

    def forward(self, x):
        h = self.drop(self.fc(x + self.noise * torch.randn_like(x)))
        h = self.rnn(h)[0]
        return self.attention(h, h, h, need_weights=False)[0] * torch.rand(6, dtype=x.dtype, device=x.device)


@pytest.mark.parametrize(("seconds", "how"), [(0.5, "together"), (1.5, "loop")])
def test_towers_that_draw_are_compared_and_timed(seconds, how, tmp_path, monkeypatch):
    monkeypatch.setenv("WIDE_COMPILER_CACHE", str(tmp_path))
    times = {"together": seconds, "loop": 1.0, "wide": 0.5}
    router = collective(*[Dropping(str(i)) for i in range(4)], config=WideConfig())
    with use_clock(HeldClock(lambda label: times.get(label, 2.0))):
        router.wide_forward(double(3, 5, 6))
    (row,) = router.explain().rows
    assert (row.how, row.why) == (how, "measured")
    assert all(p.grad is None for p in router.parameters())


def test_towers_that_draw_are_refused_where_they_are_wrong(tmp_path, monkeypatch):
    monkeypatch.setenv("WIDE_COMPILER_CACHE", str(tmp_path))
    run = Fused.__call__
    monkeypatch.setattr(Fused, "__call__", lambda self, tensors: [1.1 * out for out in run(self, tensors)])
    router = collective(*[Dropping(str(i)) for i in range(4)], config=WideConfig())
    with use_clock(HeldClock(lambda label: 0.5 if label == "together" else 1.0)):
        router.wide_forward(double(3, 5, 6))
    (row,) = router.explain().rows
    assert row.how == "loop" and "together: is off by" in row.why


def test_measuring_leaves_nothing_behind():
    router = collective(*[Conv(str(i)) for i in range(4)], config=WideConfig(tune_seconds=0.1))
    x, state = double(4, 3, 5, 5), torch.get_rng_state()
    assert_equal_to_sequence(router, x, step=False)
    assert torch.equal(state, torch.get_rng_state())
    assert router["0"][1].num_batches_tracked == 1
    assert all(p.grad is None for p in router.parameters())


def test_forced_into_sequence():
    router = collective(*[Mlp(str(i)) for i in range(4)], config=WideConfig(strategy="loop"))
    assert_equal_to_sequence(router, double(4, 6))
    (row,) = router.explain().rows
    assert (row.how, row.why) == ("loop", "set by the configuration")


class Named(BaseTower):
    """Computes with its own name."""

    def __init__(self, name):
        super().__init__(name)
        self.fc = nn.Linear(6, 6)

    def forward(self, x):
        return self.fc(x) * float(len(self.name))


def test_a_tower_that_reads_its_name_computes_with_its_own():
    router = collective(*[Named("x" * i) for i in (1, 2, 3, 4)])
    assert_equal_to_sequence(router, double(4, 6))
    assert router.explain().together == 4


class Branching(BaseTower):
    def __init__(self, name, sign):
        super().__init__(name)
        self.fc, self.sign = nn.Linear(6, 6), sign

    def forward(self, x):
        return torch.relu(self.fc(x)) if self.sign > 0 else -self.fc(x).sigmoid() + 1


def test_towers_that_branch_on_their_python_run_as_a_group_for_each_branch():
    router = collective(*[Branching(str(i), (-1) ** i) for i in range(6)], Branching("odd", 2))
    assert_equal_to_sequence(router, double(4, 6))
    rows = router.explain().rows
    assert sorted((row.how, len(row.towers)) for row in rows) == [
        ("loop", 1),
        ("together", 3),
        ("together", 3),
    ]
    got = router.wide_forward(double(4, 6), tower_names=["0", "2", "1"])
    assert list(got) == ["0", "1", "2"] and router.explain().together == 2


class Counting(BaseTower):
    def __init__(self, name):
        super().__init__(name)
        self.fc, self.calls = nn.Linear(6, 6), 0

    def forward(self, x):
        self.calls += 1
        return self.fc(x)


class InPlace(BaseTower):
    def __init__(self, name):
        super().__init__(name)
        self.fc = nn.Linear(6, 6)

    def forward(self, x):
        return self.fc(x.mul_(2))


def test_what_cannot_be_fused_runs_in_sequence_and_says_why():
    router = collective(*[Counting(str(i)) for i in range(3)])
    for _ in range(3):
        router.wide_forward(double(4, 6))
    assert [router[str(i)].calls for i in range(3)] == [3, 3, 3]
    (row,) = router.explain().rows
    assert row.how == "loop" and "its forward changes Counting.calls" in row.why

    router = collective(*[InPlace(str(i)) for i in range(3)])
    x = double(4, 6)
    expected, _ = in_sequence(router, x.clone())
    for name, out in router.wide_forward(x.clone()).items():
        torch.testing.assert_close(out, expected[name])
    assert "writes into its input" in router.explain().rows[0].why

    seen = []
    router = collective(*[Mlp(str(i)) for i in range(3)])
    router["1"][0].register_forward_hook(lambda module, args, out: seen.append(out))
    router.wide_forward(double(4, 6))
    assert len(seen) == 1 and "forward hook" in router.explain().rows[0].why


def test_a_gradient_hook_on_a_parameter_is_called_once():
    router = collective(*[Mlp(str(i)) for i in range(3)], config=WideConfig())
    seen = []
    router["1"][0].weight.register_hook(seen.append)
    assert_equal_to_sequence(router, double(4, 6))
    assert len(seen) == 1


def test_one_tower_under_two_names():
    shared = Conv("shared")
    router = WideRouter("twice", config=AT_ONCE)
    router.attach("a", shared.double()).attach("b", shared).attach("c", Conv("c").double())
    x = double(4, 3, 5, 5)
    tower = copy.deepcopy(shared)
    expected = [tower(x), tower(x)]
    got = router.wide_forward(x)
    torch.testing.assert_close(got["a"], expected[0])
    torch.testing.assert_close(got["b"], expected[1])
    torch.testing.assert_close(shared[1].running_mean, tower[1].running_mean)
    assert "one buffer shared by several" in router.explain().rows[0].why


def test_structured_outputs_and_python_arguments():
    class Two(BaseTower):
        def __init__(self, name, scale):
            super().__init__(name)
            self.fc, self.scale = nn.Linear(6, 4), scale

        def forward(self, x, extra=None, flip=False):
            h = self.fc(x["a"]) * self.scale + (0 if extra is None else extra)
            return {"out": -h if flip else h, "pair": (h.sum(-1), self.scale)}

    router = collective(*[Two(str(i), 1.0 + i) for i in range(3)])
    x, extra = {"a": double(4, 6)}, double(4, 4)
    expected, _ = in_sequence(router, x, extra=extra, flip=True)
    for _ in range(2):
        got = router.wide_forward(x, extra=extra, flip=True)
        for name, out in got.items():
            torch.testing.assert_close(out["out"], expected[name]["out"])
            assert out["pair"][1] == expected[name]["pair"][1]
    assert router.explain().together == 3


def test_in_inference_mode_and_under_autocast():
    router = collective(*[Mlp(str(i)) for i in range(4)])
    x = double(4, 6)
    with torch.inference_mode():
        got = router.wide_forward(x)
        assert router.explain().together == 4
        for name, tower in router.towers.items():
            torch.testing.assert_close(got[name], tower(x))
    assert_equal_to_sequence(router, x)
    router.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = router.wide_forward(x.float())
        assert router.explain().together == 4 and got["0"].dtype == torch.bfloat16
        for name, tower in router.towers.items():
            torch.testing.assert_close(got[name], tower(x.float()), rtol=0.05, atol=0.02)


def test_under_a_transform_the_towers_run_by_themselves():
    router = collective(*[Mlp(str(i)) for i in range(3)])
    x = double(5, 4, 6)
    router.wide_forward(x[0])
    got = torch.func.vmap(lambda row: router.wide_forward(row)["1"])(x)
    torch.testing.assert_close(got, torch.stack([router["1"](row) for row in x]))
    swapped = {name: p + 1 for name, p in router.named_parameters()}
    got = torch.func.functional_call(router, swapped, (x[0],))
    expected = torch.func.functional_call(
        router["2"], {k[2:]: v for k, v in swapped.items() if k[0] == "2"}, (x[0],)
    )
    torch.testing.assert_close(got["2"], expected)


def test_a_group_called_by_itself_sees_changes_too():
    router = collective(*[Mlp(str(i)) for i in range(3)]).prepare_for_compile()
    (group,) = router.objects["_vmap_groups"].values()
    x = double(4, 6)
    with torch.no_grad():
        for change in (
            lambda: None,
            lambda: router["1"].eval(),
            lambda: setattr(router["1"][0].weight, "data", double(10, 6)),
        ):
            change()
            for tower, out in zip(router.towers.values(), group(x), strict=True):
                torch.testing.assert_close(out, tower(x))


def test_towers_that_run_in_sequence_are_not_watched(monkeypatch):
    router = collective(*[Mlp(str(i)) for i in range(3)], config=WideConfig(strategy="loop"))
    x = double(4, 6)
    router.wide_forward(x)
    monkeypatch.setattr(router, "_formation", lambda towers: pytest.fail("looked at anew"))
    for name, out in router.wide_forward(x).items():
        torch.testing.assert_close(out, router[name](x))
    monkeypatch.undo()
    router.attach("new", Mlp("new").double())
    assert list(router.wide_forward(x)) == ["0", "1", "2", "new"]


class NamedAndSigned(Named):
    def __init__(self, name, sign):
        super().__init__(name)
        self.sign = sign

    def forward(self, x):
        return super().forward(x) * self.sign


def test_names_count_beside_other_differences():
    router = collective(*[NamedAndSigned("x" * i, (-1) ** i) for i in (1, 2, 3, 4)])
    assert_equal_to_sequence(router, double(4, 6))
    assert router.explain().together == 4


class Locked(BaseTower):
    def __init__(self, name):
        super().__init__(name)
        self.fc, self.lock = nn.Linear(6, 6), threading.Lock()

    def forward(self, x):
        with self.lock:
            return self.fc(x)


def test_towers_that_cannot_be_copied_run_in_sequence():
    router = WideRouter("locked", config=AT_ONCE)
    for i in range(3):
        router.attach(str(i), Locked(str(i)))
    router.prepare_for_compile()
    x = torch.randn(4, 6)
    for name, out in router.wide_forward(x).items():
        torch.testing.assert_close(out, router[name](x))
    (row,) = router.explain().rows
    assert row.how == "loop" and "cannot be copied" in row.why
