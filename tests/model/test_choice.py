"""The way a call runs is measured; and whichever is taken, the numbers are the loop's."""

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wide_compiler
from wide_compiler import WideConfig, oracle
from wide_compiler.model import choice
from wide_compiler.tuning import store

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


def fastest(monkeypatch, wanted):
    """Let the clock say that the plan `wanted` is the fastest of all, and remember what was tried."""
    tried = []

    def fake(calls, *args, **kwargs):
        for call in calls.values():
            call()
        tried.extend(calls)
        return {label: 1.0 if label == wanted else 2.0 for label in calls}

    monkeypatch.setattr(choice, "interleaved", fake)
    monkeypatch.setattr(choice, "CALLS", 10**9)  # time enough for every plan
    return tried


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WIDE_COMPILER_CACHE", str(tmp_path))


PATIENT = WideConfig(tune_seconds=600.0)  # on a busy machine too, all plans are tried


def plans_of(kind, monkeypatch):
    with monkeypatch.context() as patch:
        tried = fastest(patch, "wide")
        wide = wide_compiler.compile(members(kind), MODELS[kind][1](), config=PATIENT)
        wide.stacked(MODELS[kind][1](N))
    return list(dict.fromkeys(tried))


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("shared", [False, True])
def test_every_plan_gives_the_numbers_of_the_loop(kind, shared, monkeypatch):
    labels = plans_of(kind, monkeypatch)
    assert "loop" in labels and "chunks of 3" in labels and len(labels) >= 5
    ran = set()
    for label in labels:
        for folder in store.default_folder().iterdir():
            folder.unlink()
        with monkeypatch.context() as patch:
            fastest(patch, label)
            models = members(kind)
            sample = MODELS[kind][1]()
            wide = wide_compiler.compile(models, sample, config=PATIENT)
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


def test_the_loop_unless_wide_is_clearly_faster(monkeypatch):
    def fake(calls, *args, **kwargs):
        times = {"wide": 0.97, "loop": 1.0}
        return {label: times.get(label, 3.0) for label in calls}

    monkeypatch.setattr(choice, "interleaved", fake)
    wide = wide_compiler.compile(members("mlp"), torch.randn(3, 4, dtype=torch.float64))
    wide.stacked(torch.randn(N, 3, 4, dtype=torch.float64))
    assert wide.explain().way == "loop"
    assert wide.explain().ms["wide"] == 970.0
    assert "runs as: loop (measured)" in str(wide.explain())


def test_strategies_that_are_better_alone_are_taken_together(monkeypatch):
    def fake(calls, *args, **kwargs):
        slow = dict.fromkeys(calls, 1.0)
        return slow | {
            label: 0.9 - 0.1 * label.count("transposed") for label in calls if "transposed" in label
        }

    monkeypatch.setattr(choice, "interleaved", fake)
    monkeypatch.setattr(choice, "CALLS", 10**9)
    wide = wide_compiler.compile(members("mlp"), torch.randn(3, 4, dtype=torch.float64))
    wide.stacked(torch.randn(N, 3, 4, dtype=torch.float64))
    rows = [row for row in wide.explain().rows if row.op == "linear.default"]
    assert [row.strategy for row in rows] == ["transposed", "transposed"]


def test_a_plan_that_computes_something_else_is_refused(monkeypatch):
    from wide_compiler.primitives import linear

    monkeypatch.setitem(linear._PRODUCTS, "transposed", lambda x, w, b: linear._einsum(x, w, b) + 1)
    labels = plans_of("mlp", monkeypatch)
    assert not any("transposed" in label for label in labels)
    wide = wide_compiler.compile(members("mlp", 2), torch.randn(3, 4, dtype=torch.float64))
    wide.stacked(torch.randn(2, 3, 4, dtype=torch.float64))
    refused = wide.explain().tuned.refused
    assert any("transposed" in label and "differs" in why for label, why in refused.items())


def answers():
    return [json.loads(file.read_text())["answer"] for file in store.default_folder().glob("*.json")]


def test_choices_are_remembered_and_checked(monkeypatch):
    x = torch.randn(N, 3, 4, dtype=torch.float64)
    models = members("mlp")
    with monkeypatch.context() as patch:
        fastest(patch, "loop")
        wide_compiler.compile(models, x[0]).stacked(x)
    assert [answer["way"] for answer in answers()] == ["loop"]
    # Another process would find it there: nothing is timed again.
    monkeypatch.setattr(choice, "interleaved", lambda *a, **k: pytest.fail("timed again"))
    wide = wide_compiler.compile(models, x[0])
    expected = torch.stack([m(a) for m, a in zip(models, x, strict=True)])
    torch.testing.assert_close(wide.stacked(x), expected)
    assert wide.explain().tuned.why == "remembered"
    assert wide.explain().way == "loop"


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"way": "chunks of many", "taken": {}, "compiled": False, "ms": {}},
        {"way": "loop", "taken": {"no such site": "einsum"}, "compiled": False, "ms": {}},
        {"way": "wide", "taken": [], "compiled": False, "ms": None},
    ],
)
def test_answers_that_make_no_sense_are_measured_anew(answer, monkeypatch):
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
    assert (wide.explain().way, wide.explain().tuned.why) == (way, "as asked for")
    if strategy == "sequential":
        assert {row.strategy for row in wide.explain().rows if row.op == "linear.default"} == {"sequential"}


def test_lanes_that_draw_random_numbers_stay_together(monkeypatch):
    tried = fastest(monkeypatch, "wide")
    wide = wide_compiler.compile(
        [nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)) for _ in range(N)], torch.randn(3, 4)
    )
    torch.manual_seed(3)
    one = wide.stacked(torch.ones(N, 3, 4))
    assert "loop" not in tried and not any(label.startswith("chunks") for label in tried)
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


def test_under_transforms_nothing_is_measured(monkeypatch):
    monkeypatch.setattr(choice, "interleaved", lambda *a, **k: pytest.fail("measured"))
    wide = wide_compiler.compile(members("mlp"), torch.randn(3, 4, dtype=torch.float64))
    x = torch.randn(2, N, 3, 4, dtype=torch.float64)
    got = torch.func.vmap(wide.stacked)(x)
    with monkeypatch.context() as patch:
        fastest(patch, "wide")
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
    assert len(clone.routes.by_look) == 1
