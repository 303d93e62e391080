"""The workloads: the sizes that are compared, and a case for every primitive."""

import pytest
import torch

from wide_compiler.benchmark import MODELS, PRESETS, PRIMITIVE_CASES, choices, find
from wide_compiler.primitives import PRIMITIVES

CPU = torch.device("cpu")

# name: parameters of one member, its input, lanes to quote
QUOTED = {
    "mlp": (16_576, (32, 64), {100, 1000}),
    "deep_mlp": (33_280, (32, 64), {20}),
    "big_mlp": (8_393_728, (256, 1024), {32}),
    "resblock": (74_112, (8, 64, 16, 16), {20}),
    "convnet": (66_570, (32, 3, 32, 32), {64}),
    "resnet18": (11_181_642, (8, 3, 64, 64), {10}),
    "gpt": (3_717_632, (4, 128), {8}),
    "block": (789_760, (8, 128, 256), {32}),
    "lstm": (100_618, (4, 32, 64), {32}),
    "gru": (75_786, (4, 32, 64), {32}),
}


def test_the_models_are_those_that_are_quoted():
    assert list(MODELS) == list(QUOTED)


@pytest.mark.parametrize("name", QUOTED)
def test_sizes(name):
    workload, (parameters, shape, lanes) = MODELS[name], QUOTED[name]
    assert sum(p.numel() for p in workload.make().parameters()) == parameters
    assert tuple(workload.inputs(workload.batch, CPU).shape) == shape
    assert workload.n in lanes and lanes <= set(workload.sweep)


@pytest.mark.parametrize("name", [*MODELS, *PRIMITIVE_CASES])
def test_every_member_runs(name):
    for workload in find(name):
        with torch.no_grad():
            output = workload.call(workload.make().eval(), workload.inputs(2, CPU))
        assert output.shape[0] == 2 and output.is_floating_point()


def test_every_primitive_with_strategies_has_a_case():
    assert {case.primitive for case in PRIMITIVE_CASES.values()} == {p for p in PRIMITIVES if p.STRATEGIES}
    assert {"linear", "conv2d", "attention", "batchnorm1d", "lstm"} <= set(PRIMITIVE_CASES)


def test_presets_ask_for_less_and_less():
    for workload in [*MODELS.values(), *PRIMITIVE_CASES.values()]:
        full, quick, ci = (PRESETS[name].lanes(workload) for name in ("full", "quick", "ci"))
        assert len(full) > len(quick) >= len(ci) and max(quick) >= max(ci)
        assert PRESETS["ci"].batch(workload) <= PRESETS["full"].batch(workload) == workload.batch


def test_names_and_groups():
    assert find("all") == list(PRIMITIVE_CASES.values())
    assert find("models") == list(MODELS.values())
    assert [w.name for w in find("batchnorm")] == ["batchnorm1d", "batchnorm2d", "batchnorm3d"]
    assert [w.kind for w in find("lstm")] == ["primitive", "model"]
    assert [w.kind for w in find("model:lstm")] == ["model"]
    assert all(find(name) for name in choices())
    for unknown in ("perceptron", "model:linear", ""):
        with pytest.raises(KeyError):
            find(unknown)
