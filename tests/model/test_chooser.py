"""The way a call runs is measured; and whichever is taken, the numbers are the loop's."""

import json
import os

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wide_compiler
from measure.clocks import HeldClock, NoClock, prefers
from wide_compiler import WideConfig, oracle
from wide_compiler.measure import store, use_clock

N = 5


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Linear(4 * 16, 3)

    def forward(self, x):
        return self.head(F.relu(self.norm(self.conv(x))).flatten(1))


class Rnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.rnn = nn.Embedding(7, 4), nn.LSTM(4, 5, batch_first=True)

    def forward(self, tokens):
        return self.rnn(self.table(tokens))[0]


MODELS = {
    "mlp": (Mlp, lambda *lead: torch.randn(*lead, 3, 4, dtype=torch.float64)),
    "cnn": (Cnn, lambda *lead: torch.randn(*lead, 3, 2, 6, 6, dtype=torch.float64)),
    "rnn": (Rnn, lambda *lead: torch.randint(0, 7, (*lead, 3, 4))),
}


def members(kind, n=N):
    return [MODELS[kind][0]().double() for _ in range(n)]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WIDE_COMPILER_CACHE", str(tmp_path))


def plans_of(kind):
    with use_clock(prefers("wide")) as clock:
        wide = wide_compiler.compile(members(kind), MODELS[kind][1]())
        wide.stacked(MODELS[kind][1](N))
    return list(dict.fromkeys(clock.tried))


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("shared", [False, True])
def test_every_plan_gives_the_numbers_of_the_loop(kind, shared):
    labels = plans_of(kind)
    assert "loop" in labels and "chunks of 3" in labels and len(labels) >= 5
    ran = set()
    for label in labels:
        for folder in store.default_folder().iterdir():
            folder.unlink()
        with use_clock(prefers(label)):
            models = members(kind)
            sample = MODELS[kind][1]()
            wide = wide_compiler.compile(models, sample)
            if shared:
                report = oracle.compare(
                    models, wide, shared_input=((sample,), {}), gradients=True, learning_rate=0.1
                )
            else:
                inputs = [((MODELS[kind][1](),), {}) for _ in range(N)]
                report = oracle.compare(models, wide, inputs, gradients=True, learning_rate=0.1)
            report.check(1e-9, 1e-9)
            wide.shared(sample) if shared else wide.stacked(MODELS[kind][1](N))
            explanation = wide.explain(measure=False)
            ran.add(str(explanation.tuned.plan))
            assert explanation.way == explanation.tuned.plan.way
    assert {"wide", "loop", "chunks of 3"} <= ran
    assert len(ran) >= 4  # strategies of single sites were among what ran


def test_the_loop_unless_wide_is_clearly_faster():
    times = {"wide": 0.97, "loop": 1.0}
    wide = wide_compiler.compile(members("mlp"), torch.randn(3, 4, dtype=torch.float64))
    with use_clock(HeldClock(lambda label: times.get(label, 3.0))):
        wide.stacked(torch.randn(N, 3, 4, dtype=torch.float64))
    assert wide.explain().way == "loop"
    assert wide.explain().ms["wide"] == 970.0
    assert "runs as: loop (measured)" in str(wide.explain())


def test_strategies_that_are_better_alone_are_taken_together():
    clock = HeldClock(lambda label: 0.9 - 0.1 * label.count("transposed") if "transposed" in label else 1.0)
    wide = wide_compiler.compile(members("mlp"), torch.randn(3, 4, dtype=torch.float64))
    with use_clock(clock):
        wide.stacked(torch.randn(N, 3, 4, dtype=torch.float64))
    rows = [row for row in wide.explain().rows if row.op == "linear.default"]
    assert [row.strategy for row in rows] == ["transposed", "transposed"]


def test_a_plan_that_computes_something_else_is_refused(monkeypatch):
    from wide_compiler.primitives import linear

    monkeypatch.setitem(linear._PRODUCTS, "transposed", lambda x, w, b: linear._einsum(x, w, b) + 1)
    labels = plans_of("mlp")
    assert not any("transposed" in label for label in labels)
    wide = wide_compiler.compile(members("mlp", 2), torch.randn(3, 4, dtype=torch.float64))
    wide.stacked(torch.randn(2, 3, 4, dtype=torch.float64))
    refused = wide.explain().tuned.refused
    assert any("transposed" in label and "is off by" in why for label, why in refused.items())


def answers():
    return [json.loads(file.read_text())["answer"] for file in store.default_folder().glob("*.json")]


def test_choices_are_remembered_and_checked():
    x = torch.randn(N, 3, 4, dtype=torch.float64)
    models = members("mlp")
    with use_clock(prefers("loop")):
        wide_compiler.compile(models, x[0]).stacked(x)
    assert [(answer["name"], answer["provisional"]) for answer in answers()] == [("loop", False)]
    # Another process would find it there: nothing is timed again.
    wide = wide_compiler.compile(models, x[0])
    expected = torch.stack([m(a) for m, a in zip(models, x, strict=True)])
    with use_clock(NoClock()):
        torch.testing.assert_close(wide.stacked(x), expected)
    assert wide.explain().tuned.why == "remembered"
    assert wide.explain().way == "loop"


@pytest.mark.parametrize("later", ["wide", "loop"])
def test_a_choice_made_under_load_is_confirmed_once(later, monkeypatch):
    x = torch.randn(N, 3, 4, dtype=torch.float64)
    models = members("mlp")
    expected = torch.stack([m(a) for m, a in zip(models, x, strict=True)])
    close = HeldClock(lambda label: {"loop": 1.0, "wide": 1.2}.get(label, 4.0), busy="somebody compiles")
    with use_clock(close):
        torch.testing.assert_close(wide_compiler.compile(models, x[0]).stacked(x), expected)
    (answer,) = answers()
    assert answer["name"] == "loop" and answer["provisional"] and answer["under"] == "somebody compiles"
    assert set(answer["recipes"]) == {"loop", "wide"}
    monkeypatch.setattr(os, "getpid", lambda: -1)  # a later process
    for why in ("confirmed", "remembered"):
        wide = wide_compiler.compile(models, x[0])
        clock = prefers(later, busy="still compiling") if why == "confirmed" else NoClock()
        with use_clock(clock):
            torch.testing.assert_close(wide.stacked(x), expected)
        assert (wide.explain().way, wide.explain().tuned.why) == (later, why)
        assert [(answer["name"], answer["provisional"]) for answer in answers()] == [(later, False)]
        if why == "confirmed":
            assert sorted(clock.tried) == ["loop", "wide"]  # the close ones, and nothing else


def test_under_load_a_clear_choice_is_not_provisional():
    x = torch.randn(N, 3, 4, dtype=torch.float64)
    with use_clock(HeldClock(lambda label: 1.0 if label == "wide" else 4.0, busy="somebody compiles")):
        wide_compiler.compile(members("mlp"), x[0]).stacked(x)
    assert [(answer["name"], answer["provisional"]) for answer in answers()] == [("wide", False)]


def test_under_load_the_fastest_compiled_plan_is_looked_at_again_however_slow_it_was(monkeypatch):
    """Compiled plans are timed after the others, perhaps under another load."""
    x, models = torch.randn(N, 3, 4, dtype=torch.float64), members("mlp")
    config = WideConfig(compile=True, backend="eager")
    with use_clock(HeldClock(lambda label: 9.0 if "compiled" in label else 1.0, busy="somebody compiles")):
        wide_compiler.compile(models, x[0], config=config).stacked(x)
    (answer,) = answers()
    assert answer["provisional"] and any("compiled" in label for label in answer["recipes"])
    monkeypatch.setattr(os, "getpid", lambda: -1)  # a later process
    wide = wide_compiler.compile(models, x[0], config=config)
    with use_clock(HeldClock(lambda label: 1.0 if "compiled" in label else 9.0)):
        wide.stacked(x)
    assert wide.explain().tuned.plan.compiled and wide.explain().tuned.why == "confirmed"


def remembered(name, recipe):
    settled = {"plain": ["loop"], "ms": {}, "provisional": False, "process": 0}
    return {"name": name, "recipes": {name: recipe}} | settled


@pytest.mark.parametrize(
    "answer",
    [
        {},
        remembered("chunks of many", {"way": "chunks of many", "taken": {}, "compiled": False}),
        remembered("loop", {"way": "loop", "taken": {"no such site": "einsum"}, "compiled": False}),
        remembered("wide", {"way": "wide", "taken": [], "compiled": False}) | {"ms": None},
        remembered("wide", {"way": "wide", "taken": {}, "compiled": False}) | {"recipes": {}},
    ],
)
def test_answers_that_make_no_sense_are_measured_anew(answer):
    x = torch.randn(N, 3, 4, dtype=torch.float64)
    models = members("mlp")
    wide_compiler.compile(models, x[0]).stacked(x)
    for file in store.default_folder().glob("*.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"answer": answer}))
    wide = wide_compiler.compile(models, x[0])
    torch.testing.assert_close(wide.stacked(x), torch.stack([m(a) for m, a in zip(models, x, strict=True)]))
    assert wide.explain().tuned.why == "measured"


def test_every_shape_mode_and_number_of_lanes_is_measured_by_itself():
    x = torch.randn(N, 3, 4, dtype=torch.float64)
    wide = wide_compiler.compile(members("mlp"), x[0])
    wide.stacked(x)
    assert len(answers()) == 1
    with torch.no_grad():
        wide.stacked(x)
    wide.stacked(x[:, :2])
    wide.shared(x[0])
    assert len(answers()) == 4
    wide_compiler.compile(members("mlp", 2), x[0]).stacked(x[:2])
    assert len(answers()) == 5
    wide.stacked(x[:, :2])
    assert len(answers()) == 5


def test_tuning_can_be_switched_off():
    x = torch.randn(N, 3, 4, dtype=torch.float64)
    wide = wide_compiler.compile(members("mlp"), x[0], config=WideConfig(tune_seconds=0))
    wide.stacked(x)
    assert wide.explain().tuned.why == "tuning is off"
    assert wide.explain().way == "wide"
    assert not answers()
    with pytest.raises(ValueError, match="tune_seconds must not be negative"):
        WideConfig(tune_seconds=-1)


@pytest.mark.parametrize(("strategy", "way"), [("loop", "loop"), ("wide", "wide"), ("sequential", "wide")])
def test_strategies_can_be_forced(strategy, way):
    x = torch.randn(N, 3, 4, dtype=torch.float64)
    models = members("mlp")
    wide = wide_compiler.compile(models, x[0], config=WideConfig(strategy=strategy))
    torch.testing.assert_close(wide.stacked(x), torch.stack([m(a) for m, a in zip(models, x, strict=True)]))
    assert (wide.explain().way, wide.explain().tuned.why) == (way, "set by the configuration")
    if strategy == "sequential":
        assert {row.strategy for row in wide.explain().rows if row.op == "linear.default"} == {"sequential"}


def test_lanes_that_draw_random_numbers_stay_together():
    wide = wide_compiler.compile(
        [nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)) for _ in range(N)], torch.randn(3, 4)
    )
    torch.manual_seed(3)
    with use_clock(prefers("wide")) as clock:
        one = wide.stacked(torch.ones(N, 3, 4))
    assert "loop" not in clock.tried and not any(label.startswith("chunks") for label in clock.tried)
    torch.manual_seed(3)
    assert torch.equal(one, wide.stacked(torch.ones(N, 3, 4)))


def test_measuring_moves_nothing():
    models = members("cnn")
    wide = wide_compiler.compile(models, torch.randn(3, 2, 6, 6, dtype=torch.float64))
    x = torch.randn(N, 3, 2, 6, 6, dtype=torch.float64)
    torch.manual_seed(11)
    out = wide.stacked(x)
    assert torch.equal(torch.rand(2), torch.rand(2, generator=torch.Generator().manual_seed(11)))
    assert all(p.grad is None for p in wide.parameters())
    expected = torch.stack([m(a) for m, a in zip(models, x, strict=True)])
    torch.testing.assert_close(out, expected)
    for lane, model in enumerate(models):  # one call has moved the statistics, and not the many tries
        torch.testing.assert_close(wide.lane(lane).norm.running_mean, model.norm.running_mean)
        assert wide.lane(lane).norm.num_batches_tracked == 1


def test_under_transforms_nothing_is_measured():
    wide = wide_compiler.compile(members("mlp"), torch.randn(3, 4, dtype=torch.float64))
    x = torch.randn(2, N, 3, 4, dtype=torch.float64)
    with use_clock(NoClock()):
        got = torch.func.vmap(wide.stacked)(x)
    with use_clock(prefers("wide")):
        torch.testing.assert_close(got, torch.stack([wide.stacked(a) for a in x]))


def test_a_copy_takes_routes_of_its_own():
    import copy

    x = torch.randn(N, 3, 4, dtype=torch.float64)
    models = members("mlp")
    wide = wide_compiler.compile(models, x[0])
    wide.stacked(x)
    clone = copy.deepcopy(wide)
    with torch.no_grad():
        clone.up.weight.zero_()
    for _ in range(3):
        expected = torch.stack([m(a) for m, a in zip(models, x, strict=True)])
        torch.testing.assert_close(wide.stacked(x), expected)
        assert not torch.allclose(clone.stacked(x), expected)
    assert len(clone.routes) == 1


@pytest.mark.parametrize("seeded", [False, True])
def test_a_model_that_draws_is_compiled_too(seeded, tmp_path, monkeypatch):
    """Compiled code draws from another generator: what it computes of the draws is compared."""
    monkeypatch.setenv("WIDE_COMPILER_CACHE", str(tmp_path))
    models = [nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 2)) for _ in range(3)]
    config = WideConfig(compile=True, tune_seconds=0.2)
    x = torch.randn(3, 64, 8)
    wide = wide_compiler.compile(models, x[0], config=config)
    if seeded:
        wide.seed([1, 2, 3])
    wide.stacked(x).sum().backward()
    tuned = wide.programs.latest.latest
    assert any(plan.endswith(", compiled") for plan in tuned.ms), tuned.refused


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
@pytest.mark.parametrize("train", [False, True])
def test_what_was_compiled_to_be_measured_is_what_runs(kind, train):
    """Measured on copies, run on parameters: torch.compile must not take them for another kind."""
    config = WideConfig(compile=True, backend="aot_eager")
    with use_clock(prefers("wide, compiled")), torch._dynamo.config.patch(error_on_recompile=True):
        wide = wide_compiler.compile(members(kind), MODELS[kind][1](), config=config).train(train)
        with torch.set_grad_enabled(train):
            wide.stacked(MODELS[kind][1](N))
    assert str(wide.programs.latest.latest.plan) == "wide, compiled"
