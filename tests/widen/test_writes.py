"""Writes in place: the memory that an op writes is compared at its node, views of it over the whole graph."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import wide_compiler
from fn import Fn
from wide_compiler import oracle
from wide_compiler.widen import walk
from wide_compiler.widen.rules import Rule, find_rule

aten = torch.ops.aten


def after_a_write(self, x):
    y = self.linear(x)
    F.relu_(y)
    return y * 2


def through_a_view(self, x):
    y = self.linear(x)
    y[1:].add_(1)
    return y * 2


def before_a_view(self, x):
    y = F.relu(self.linear(x), inplace=True)
    return y[1:] * 2


def with_an_old_view(self, x):
    y = self.linear(x)
    old = y[1:]
    y.mul_(3)
    return old * 2


def members(function):
    torch.manual_seed(0)
    return [Fn(function, linear=nn.Linear(4, 5)).double() for _ in range(3)]


def check(models, wide):
    inputs = [((torch.randn(2, 4, dtype=torch.float64),), {}) for _ in models]
    oracle.compare(models, wide, inputs, gradients=True).check(rtol=1e-9)


@pytest.mark.parametrize(
    ("function", "compared"),
    [(after_a_write, False), (before_a_view, False), (through_a_view, True), (with_an_old_view, True)],
)
def test_the_whole_graph_is_compared_only_where_views_are_written(function, compared, monkeypatch):
    calls = []
    original = walk.check_whole_graph
    monkeypatch.setattr(walk, "check_whole_graph", lambda *args: calls.append(original(*args)))
    models = members(function)
    wide = wide_compiler.compile(models, torch.randn(2, 4, dtype=torch.float64))
    assert bool(calls) == compared
    assert wide.explain(measure=False).coverage == 1.0
    check(models, wide)


def test_a_rule_that_does_not_write_is_dropped_at_its_node(monkeypatch):
    def wrong(op):
        if op is aten.relu_.default:
            return Rule(lambda b, x: b.call(torch.relu, x))  # the right result, and x stays as it was
        return find_rule(op)

    monkeypatch.setattr("wide_compiler.widen.attempt.find_rule", wrong)
    models = members(after_a_write)
    wide = wide_compiler.compile(models, torch.randn(2, 4, dtype=torch.float64))
    row = next(row for row in wide.explain(measure=False).rows if row.op == "relu_.default")
    assert row.how == "rule" and "what it writes is off by" in row.why
    check(models, wide)
