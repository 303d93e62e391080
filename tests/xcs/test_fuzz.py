"""Random programs: none differs from plain Python, and enough of them left the plain loop."""

import pytest

from nightly import SEED, count
from xcs import fuzz

BATCH = 100


@pytest.mark.parametrize("first", range(SEED, SEED + count(200, 20_000), BATCH))
def test_programs(first):
    outcomes = [fuzz.run(seed) for seed in range(first, first + BATCH)]
    different = [(o.program.seed, o.difference, o.program.text) for o in outcomes if o.difference]
    assert not different
    left = sum(bool(o.rungs) for o in outcomes)
    assert left >= 0.3 * BATCH  # 40% of all: `python benchmarks/xcs_fuzz.py` counts ten thousand


def test_a_wrong_rung_would_be_found(monkeypatch):
    """The fuzzer can fail: a rung that is wrong in the last item shows."""
    from wide_compiler.xcs.lanes import run

    real = run.vectorized

    def wrong(work):
        values = real(work)
        return [*values[:-1], values[0]] if len(values) > 3 else values

    monkeypatch.setattr(run, "vectorized", wrong)
    monkeypatch.setattr("wide_compiler.xcs.choice._verify", lambda *_: None)
    assert any(fuzz.run(seed).difference for seed in range(60))


# Each differed once: a histogram of truths warned twice.
ONCE_DIFFERENT = [1001525]


@pytest.mark.parametrize("seed", ONCE_DIFFERENT)
def test_programs_that_once_differed(seed):
    assert not fuzz.run(seed).difference
