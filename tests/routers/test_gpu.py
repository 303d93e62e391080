"""Towers on a GPU: together they equal themselves in sequence, also when they move there after preparing."""

import pytest
import torch

from routers.test_wide_router import KINDS
from routers.towers import assert_equal_to_sequence, collective
from wide_compiler import WideConfig

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WIDE_COMPILER_CACHE", str(tmp_path))


def x_for(shape):
    return torch.randn(*shape, dtype=torch.float64, device="cuda")


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("kind", KINDS)
def test_together_equals_sequence(kind, training):
    make, shape = KINDS[kind]
    router = collective(*[make(str(i)) for i in range(8)]).cuda().train(training)
    assert_equal_to_sequence(router, x_for(shape))
    (row,) = router.explain().rows
    assert row.how == "together" and len(row.towers) == 8


def test_towers_that_move_after_preparing():
    make, shape = KINDS["mlp"]
    router = collective(*[make(str(i)) for i in range(4)]).prepare_for_compile()
    router.cuda()
    assert_equal_to_sequence(router, x_for(shape))
    router.prepare_for_compile()
    assert_equal_to_sequence(router, x_for(shape))
    assert router.explain().together == 4


def test_measured_groups_are_right():
    make, shape = KINDS["conv"]
    config = WideConfig(tune_seconds=0.2)
    router = collective(*[make(str(i)) for i in range(6)], config=config).cuda()
    for _ in range(3):
        assert_equal_to_sequence(router, x_for(shape))
