"""Every pattern of the table: the jitted function shows what plain Python shows, on three calls in a row."""

import pytest

from wide_compiler.xcs import Config, jit
from xcs import oracle
from xcs.patterns import PATTERNS

RTOL = 1e-9


def three_calls(pattern, function):
    pattern.reset()
    seen = []
    for i in range(3):
        pattern.between(i)
        seen.append(oracle.observe(function, pattern.arguments(), world=None))
        seen[-1].world = pattern.world()
    pattern.between(2)
    return seen


def rungs(function):
    return {rung for counts in function.stats().values() for rung in counts if rung != "plain"}


@pytest.mark.parametrize("measure", [False, True], ids=["forced", "measured"])
@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda p: p.function.__name__)
def test_pattern(pattern, measure):
    fast = jit(pattern.function, config=Config(measure=measure))
    plain = three_calls(pattern, pattern.function)
    for expected, got in zip(plain, three_calls(pattern, fast), strict=True):
        oracle.compare(expected, got, rtol=RTOL)
    if not measure and pattern.rung != "plain":
        assert pattern.rung in rungs(fast), str(fast.explain())
    if pattern.rung == "plain":
        assert not rungs(fast), str(fast.explain())


def test_the_table_is_large_and_half_of_it_is_fast():
    assert len(PATTERNS) >= 60
    assert len({p.name for p in PATTERNS}) == len(PATTERNS)
    assert sum(p.rung != "plain" for p in PATTERNS) >= len(PATTERNS) / 2
