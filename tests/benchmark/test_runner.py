"""Measuring: every row is held against the loop, and no mistake goes unseen."""

from dataclasses import replace

import pytest
import torch

from wide_compiler.benchmark import MODELS, PRESETS, PRIMITIVE_CASES, BenchmarkRow, Options, find, plan, run
from wide_compiler.benchmark.primitive_cases import CUDA_ONLY, strategies_on
from wide_compiler.benchmark.problem import Problem
from wide_compiler.primitives import WideLinear

SHORT = {"preset": PRESETS["ci"], "seconds": 0.001, "lanes": (2,), "batch": 2}


def rows_of(name: str, **changes) -> list[BenchmarkRow]:
    options = Options(**{**SHORT, **changes})
    return list(run(plan(find(name), options), options))


def test_a_row_for_every_strategy():
    rows = rows_of("embedding", lanes=(2, 3))
    strategies = PRIMITIVE_CASES["embedding"].primitive.STRATEGIES
    assert len(strategies) > 2
    assert [(row.n, row.strategy) for row in rows] == [(n, s) for n in (2, 3) for s in strategies]
    for row in rows:
        assert row.ok and row.error == 0.0 and row.batch == 2 and row.mode == "infer"
        assert set(row.ms) == {"loop", "ours"} and row.speedup > 0


@pytest.mark.parametrize("train", [False, True])
def test_a_model_in_both_modes(train):
    (row,) = rows_of("mlp", train=train)
    assert row.ok, row.why
    assert row.mode == ("train" if train else "infer") and row.kind == "model"
    assert row.strategy
    assert row.error < 1e-5 and 0 < row.loop_error < 1e-5


@pytest.mark.parametrize("name", ["batchnorm2d", "attention", "gru", "embeddingbag"])
def test_layers_train_as_the_loop_does(name):
    for row in rows_of(f"primitive:{name}", train=True):
        assert row.ok, (row.strategy, row.why)


def test_strategies_of_another_device_are_not_measured():
    primitive = PRIMITIVE_CASES["linear"].primitive
    assert [row.strategy for row in rows_of("linear")] == strategies_on(primitive, torch.device("cpu"))
    assert "tensor_core" in primitive.STRATEGIES
    assert strategies_on(primitive, torch.device("cuda")) == list(primitive.STRATEGIES)
    known = {s for case in PRIMITIVE_CASES.values() for s in case.primitive.STRATEGIES}
    assert known >= CUDA_ONLY


def test_dropout_is_compared_where_it_keeps():
    (row,) = rows_of("dropout", batch=32)
    assert row.ok and row.ran


@pytest.mark.parametrize("train", [False, True])
def test_a_wrong_kernel_is_seen(monkeypatch, train):
    right = WideLinear.kernel
    swapped = staticmethod(lambda x, w, b, strategy: right(x, w.flip(0), b))
    monkeypatch.setattr(WideLinear, "kernel", swapped)
    for row in rows_of("linear", train=train):
        assert row.wrong and row.error > 1e-2 and "differs from the loop" in row.why
        assert row.ran  # wrong or not, it is timed


def test_a_wrong_gradient_is_seen(monkeypatch):
    right = WideLinear.kernel
    monkeypatch.setattr(WideLinear, "kernel", staticmethod(lambda x, w, b, strategy: right(x, w, b.detach())))
    for row in rows_of("linear", train=True):
        assert row.wrong


def test_a_strategy_that_raises_is_noted_and_the_others_go_on(monkeypatch):
    right = WideLinear.kernel

    def picky(x, w, b, strategy):
        if strategy == "sequential":
            raise RuntimeError("not here\nand more of it")
        return right(x, w, b, strategy)

    monkeypatch.setattr(WideLinear, "kernel", staticmethod(picky))
    rows = {row.strategy: row for row in rows_of("linear")}
    assert rows["einsum"].ok
    failed = rows["sequential"]
    assert failed.why == "RuntimeError: not here" and not failed.ran and not failed.wrong


def test_tolerance_follows_the_loops_own_precision():
    """A loop that rounds (as TF32 does) cannot be met more exactly than it is itself."""
    case = MODELS["mlp"]
    rounding = case.make

    def make():
        member = rounding()
        member.register_forward_hook(
            lambda m, a, y: y.to(torch.bfloat16).to(y) if y.dtype == torch.float32 else y
        )
        return member

    options = Options(**SHORT)
    (row,) = run(plan([replace(case, make=make)], options), options)
    assert row.loop_error > 1e-4 and row.tolerance > 1e-3 and row.ok


def test_what_has_no_parameters_is_not_trained():
    options = Options(**SHORT, train=True)
    assert plan(find("dropout"), options) == []
    assert len(plan(find("all"), options)) == len(PRIMITIVE_CASES) - 1


def test_problems_repeat_and_leave_the_generator_alone():
    torch.manual_seed(5)
    wanted = torch.rand(1)
    torch.manual_seed(5)
    first, second = (Problem.of(MODELS["mlp"], 2, 3, torch.device("cpu"), False) for _ in range(2))
    assert torch.equal(torch.rand(1), wanted)
    assert torch.equal(first.x, second.x)
    assert torch.equal(first.members[1].fc1.weight, second.members[1].fc1.weight)
    assert not torch.equal(first.members[0].fc1.weight, first.members[1].fc1.weight)


def test_tell_hears_what_is_done():
    heard = []
    options = Options(**SHORT)
    list(run(plan(find("prelu"), options), options, heard.append))
    assert heard[0].startswith("prelu N=2") and heard[-1].endswith("timing")
