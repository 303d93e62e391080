"""Common ops on tensors sharded unevenly over three workers: the values of one process, mostly without
gathering."""

from types import SimpleNamespace

import pytest
import torch
from torch.utils._pytree import tree_leaves

import wide_compiler.signals as gt
from signals.common_ops import OPS
from signals.placed import signal

pytestmark = pytest.mark.usefixtures("workers")


def inputs():
    g = torch.Generator().manual_seed(1)
    return {
        "x": torch.randn(7, 4, generator=g),
        "y": torch.randn(7, 4, generator=g),
        "w": torch.randn(4, 5, generator=g),
        "b": torch.randn(7, 3, 4, generator=g),
        "i": torch.randint(0, 7, (7,), generator=g),
        "m": torch.rand(7, 4, generator=g) > 0.4,
    }


def gathers():
    """Ops run on gathered operands, and shards that DTensor itself made whole."""
    stats = gt.debug.worker_stats()[0]
    return stats["ways"].get("gathered", 0) + stats["all_gathers"]


def outcome(name):
    """Run one op both ways: `sharded`, `gathered`, or what went wrong."""
    plain = inputs()
    signal("three", [0, 1, 2])
    with gt.signal.context("three"):
        sharded = {k: gt.tensor(t) for k, t in plain.items()}
    expected = tree_leaves(OPS[name](SimpleNamespace(**plain)))
    before = gathers()
    try:
        got = tree_leaves(OPS[name](SimpleNamespace(**sharded)))
        after = gathers()
        values = [g.cpu() for g in got]
    except (RuntimeError, NotImplementedError) as error:
        return f"failed: {str(error)[:150]}"
    for a, b in zip(values, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5, msg=lambda m: f"{name}: {m}")
    return "gathered" if after > before else "sharded"


def test_the_list():
    outcomes = {name: outcome(name) for name in OPS}
    failed = {n: o for n, o in outcomes.items() if o.startswith("failed")}
    gathered = [n for n, o in outcomes.items() if o == "gathered"]
    total = len(OPS)
    assert total >= 150
    print(f"\n{total} ops; gathered {len(gathered)}: {gathered}; failed {len(failed)}: {failed}")
    assert len(failed) <= 0.05 * total, failed
    assert len(gathered) + len(failed) <= 0.30 * total, (gathered, failed)
