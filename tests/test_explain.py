"""One explanation for all doors: rows, coverage, counts, and one table."""

import json

import pytest
import torch
from torch import nn

import wide_compiler
import wide_compiler.signals as gt
from wide_compiler import Explanation, WideConfig
from wide_compiler.explain import Row
from wide_compiler.model.chooser import Tuned
from wide_compiler.model.plan_builder import CallPlan
from wide_compiler.routers import CompileRouter, WideRouter
from wide_compiler.xcs import jit, vmap

AT_ONCE = WideConfig(tune_seconds=0)


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        return sum(head(x) for head in self.heads)


def model():
    wide = wide_compiler.compile([nn.Linear(4, 2) for _ in range(3)], torch.randn(5, 4), config=AT_ONCE)
    return wide.explain(measure=False)


def router(config=AT_ONCE):
    towers = WideRouter("towers", config=config)
    for i in range(3):
        towers.attach(str(i), nn.Linear(4, 4))
        towers.register_tower(str(i))
    towers(torch.randn(5, 4))
    return towers.explain()


def plan():
    compiler = CompileRouter.from_module(Heads(), torch.randn(5, 4), config=AT_ONCE)
    compiler.compile()(torch.randn(5, 4))
    return compiler.explain()


def function():
    @jit
    def run(xs):
        return [x + 1 for x in xs]

    run([1, 2])
    return run.explain()


def mapped():
    fast = vmap(lambda x: x + 1)
    fast(torch.arange(3.0))
    return fast.explain()


def signals():
    gt.clear_configs()
    gt.register_config("compiled", gt.SignalConfig(shard=gt.ShardConfig(axis=0, workers=[0]), compile=True))
    try:
        with gt.signal.context("compiled"):
            for _ in range(3):
                (gt.ones(4) + 1).sum().item()
        return gt.debug.explain()
    finally:
        gt.shutdown()
        gt.clear_configs()


@pytest.mark.parametrize("door", [model, router, plan, function, mapped, signals])
def test_every_door_gives_one(door):
    explanation = door()
    assert isinstance(explanation, Explanation)
    assert explanation.rows and 0 <= explanation.coverage <= 1 and explanation.recaptures == 0
    assert sum(explanation.counts.values()) == sum(row.size for row in explanation.rows)
    said = str(explanation)
    for row in explanation.rows:
        assert isinstance(row, Row) and row.path in said and row.how in said and row.why in said


@pytest.mark.parametrize("door", [model, router, plan])
def test_what_runs_as_lanes_is_covered(door):
    assert door().coverage == 1.0


def test_the_fallback_is_called_loop():
    loop = router(WideConfig(strategy="loop"))
    assert loop.counts == {"loop": 3} and loop.coverage == 0.0 and loop.together == 0
    wide = wide_compiler.compile(
        [nn.Linear(4, 2) for _ in range(3)], torch.randn(5, 4), config=WideConfig(strategy="loop")
    )
    wide.shared(torch.randn(5, 4))
    assert wide.explain(measure=False).way == "loop"


def test_a_faster_way_that_does_not_run_has_its_reason():
    ms = {"wide": 1.0, "loop": 5.0, "chunks of 2": 0.97, "wide, WideLinear: sequential": 0.5}
    lines = str(Tuned(len, None, CallPlan(), "measured", ms=ms)).splitlines()
    assert lines[0] == "wide (measured)"
    reasons = {line.split("ms  ")[1].split("  ")[0]: line.count("(") for line in lines[1:]}
    assert reasons == {"wide, WideLinear: sequential": 1, "chunks of 2": 1, "wide": 0, "loop": 0}
    assert "first rounds" in lines[1] and "less than 5% faster" in lines[2]


def test_what_an_explanation_says_to_programs():
    told = json.loads(json.dumps(router().as_dict()))
    assert told["name"] == "towers" and told["rows"][0]["how"] == "together"
    assert [row["how"] for row in told["rows"][0]["rows"]] == ["rule"]


def test_rows_and_reasons_are_shown_whole():
    long = "because " * 40
    said = str(Explanation([Row("line 3", "[x for x in xs]", "loop", long.strip(), 1.5)], name="f"))
    assert said.splitlines()[0] == "f: 0 of 1 wide"
    assert "[x for x in xs]" in said and long.strip() in said and "1.500" in said


def test_columns_without_content_are_left_out():
    assert "ms" not in str(Explanation([Row("a", "linear", "rule")])).splitlines()[1].split()


def test_a_reason_for_all_stands_on_top():
    explanation = Explanation([], "it has no source", "f")
    assert str(explanation) == "f: loop, because it has no source" and explanation.coverage == 0.0


def test_changes_that_were_followed_are_counted():
    said = str(Explanation([Row("a", "linear", "rule")], name="4 lanes", recaptures=2))
    assert said.startswith("4 lanes: 1 of 1 wide, captured anew 2 times")


def test_a_row_by_its_path():
    rows = [Row("a", "linear", "rule"), Row("b", "relu", "vmap", "no rule")]
    assert Explanation(rows)["b"].why == "no rule"
    with pytest.raises(KeyError):
        Explanation(rows)["c"]
