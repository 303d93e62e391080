"""How much of a program is looked at: helpers that name each other many times are looked at once for each
kind of arguments, and whatever there is, looking comes to an end."""

import importlib

import numpy as np
import pytest

from wide_compiler.xcs import Config, jit
from wide_compiler.xcs.proof import analysis
from xcs import oracle

NOW = Config(measure=False)
NUMBERS = [0.5 * i + 1.0 for i in range(9)]
SEEN = []
LEVELS = 10


def taken(fast, rung="numpy lanes"):
    return sum(counts.get(rung, 0) for counts in fast.stats().values())


@pytest.fixture
def looked(monkeypatch):
    """The texts that were looked at, each time."""
    found, own = [], analysis.Analyzer.run

    def counting(self, frame, env):
        found.append(frame.node)
        return own(self, frame, env)

    monkeypatch.setattr(analysis.Analyzer, "run", counting)
    return found


def test_helpers_that_are_named_twice_are_not_looked_at_twice(tmp_path, monkeypatch, looked):
    lines = ["def g0(x):\n    return x + 1.0"]
    for i in range(1, LEVELS + 1):
        lines.append(f"def g{i}(x):\n    return g{i - 1}(x) - 0.4 * g{i - 1}(x * 0.5)")
    (tmp_path / "many_levels.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    helper = getattr(importlib.import_module("many_levels"), f"g{LEVELS}")
    fast = jit(lambda xs: [helper(x) for x in xs], config=NOW)
    assert oracle.same(fast(NUMBERS[:2]), [helper(x) for x in NUMBERS[:2]], rtol=1e-9)
    assert len(looked) <= 2 * (LEVELS + 1)
    assert any(row.effect == "PURE" and row.strategy for row in fast.explain().rows)


def opened(path, mode):
    with open(path, mode) as file:
        return file.read()


def pair(x):
    return [x, x]


def twice_read(paths):
    return [opened(path, "r") + opened(path, "r") for path in paths]


def read_and_written(paths):
    return [opened(path, "r") + opened(path, "w+") for path in paths]


def own_lists(xs):
    return [np.exp(join(pair(x), pair(x))) for x in xs]


def join(a, b):
    a.append(1.0)
    return a[0] + a[-1] + b[1]


def joined_with_others(xs):
    return [np.exp(join(pair(x), pair(x)) + join(SEEN, pair(x))) for x in xs]


def scaled(x, by):
    return x * by


def either_array(xs):
    y = np.ones(3)
    return [scaled(scaled(x, y), 2.0).sum() + scaled(x, 2.0) for x in xs]


def test_other_arguments_are_looked_at_anew(tmp_path):
    paths = [str(tmp_path / str(i)) for i in range(8)]
    for path in paths:
        with open(path, "w") as file:
            file.write("text")
    fast = jit(twice_read, config=NOW)
    assert fast(paths) == ["texttext"] * 8 and taken(fast, "threads") == 1
    fast = jit(read_and_written, config=NOW)
    assert fast(paths) == ["text"] * 8 and "for writing" in str(fast.explain())
    fast = jit(own_lists, config=NOW)
    assert oracle.same(fast(NUMBERS), own_lists(NUMBERS), rtol=1e-9) and taken(fast) == 1
    fast = jit(joined_with_others, config=NOW)
    fast(NUMBERS)
    assert len(SEEN) == len(NUMBERS) and "side effect on an object from outside" in str(fast.explain())
    SEEN.clear()
    fast = jit(either_array, config=NOW)
    assert oracle.same(fast(NUMBERS), either_array(NUMBERS), rtol=1e-9) and taken(fast) == 1


def test_looking_comes_to_an_end(monkeypatch):
    def run(xs):
        return [scaled(x, 2.0) + scaled(x * x, 3.0) for x in xs]

    fast = jit(run, config=NOW)
    assert fast(NUMBERS) == run(NUMBERS) and taken(fast) == 1
    monkeypatch.setattr(analysis, "MOST_STEPS", 8)
    fast = jit(run, config=NOW)
    assert fast(NUMBERS) == run(NUMBERS) and taken(fast) == 0
    assert "expressions to analyse" in str(fast.explain())
