"""Rows: ratios, the best peer, and where wide begins to pay."""

import pytest

from wide_compiler.benchmark import BenchmarkRow, crossover
from wide_compiler.benchmark.benchmark_row import lines


def row(n: int = 4, loop: float = 2.0, ours: float = 1.0, **changes) -> BenchmarkRow:
    fields = {
        "name": "linear",
        "kind": "primitive",
        "batch": 8,
        "mode": "infer",
        "device": "cpu",
        "strategy": "einsum",
        "error": 0.0,
        "ok": True,
        "tolerance": 1e-4,
        "ms": {"loop": loop, "ours": ours},
    }
    return BenchmarkRow(n=n, **{**fields, **changes})


@pytest.mark.parametrize(
    ("speedups", "first"),
    [
        ({2: 0.5, 4: 1.5, 8: 3.0}, 4),
        ({2: 1.5, 4: 0.9, 8: 3.0}, 8),  # faster once does not count: it must stay so
        ({2: 1.5, 4: 1.1, 8: 3.0}, 2),
        ({2: 1.5, 4: 3.0, 8: 0.9}, None),
        ({2: 1.0}, None),
        ({}, None),
    ],
)
def test_crossover_is_where_wide_stays_faster(speedups, first):
    rows = [row(n, loop=speedup) for n, speedup in speedups.items()]
    assert crossover(reversed(rows)) == first


def test_crossover_skips_rows_that_did_not_run():
    assert crossover([row(2), row(4, ms={"loop": 1.0}), row(8)]) == 2


def test_speedup_and_peers():
    with_peers = row(loop=8.0, ms={"loop": 8.0, "ours": 1.0, "vmap": 2.0, "jax": 0.5})
    with_peers.errors = {"vmap": 1e-6, "jax": 0.3}  # the fast one is wrong
    assert with_peers.speedup == 8.0
    assert (with_peers.best_peer, with_peers.peer_ratio) == ("vmap", 2.0)
    assert row().best_peer is None and row().peer_ratio is None


def test_the_loop_is_the_best_peer_when_all_others_fail():
    assert row(failures={"vmap": "RuntimeError: no"}).best_peer == "loop"


def test_what_did_not_run_is_not_wrong():
    failed = row(ok=False, error=None, ms={"loop": 1.0}, why="RuntimeError: no GPU")
    assert not failed.ran and not failed.wrong and failed.speedup is None
    assert row(ok=False, error=0.3).wrong


def test_lines_join_strategies_of_a_model_but_not_of_a_layer():
    rows = [row(2), row(4), row(2, strategy="sequential")]
    assert [len(line) for line in lines(rows).values()] == [2, 1]
    models = [row(2, kind="model"), row(4, kind="model", strategy="sequential")]
    assert [len(line) for line in lines(models).values()] == [2]
