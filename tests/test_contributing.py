"""The walked-through changes of CONTRIBUTING.md work as they are written."""

import re
import sys
import types
from pathlib import Path

import pytest
import torch
from torch import nn

import wide_compiler
from wide_compiler import oracle
from wide_compiler.primitives import linear
from wide_compiler.widen import RULES

PAGE = Path(__file__).parent.parent / "CONTRIBUTING.md"
RULE, RULE_TEST, STRATEGY = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)


def test_a_rule(monkeypatch):
    wide_compiler.compile(
        [nn.Linear(2, 2)], torch.randn(1, 2)
    )  # the rules that there are register themselves
    before = dict(RULES)
    written = types.ModuleType("written")  # a lane graph finds its functions by their modules
    vars(written).update(nn=nn, torch=torch, wide_compiler=wide_compiler, oracle=oracle)
    monkeypatch.setitem(sys.modules, "written", written)
    try:
        RULES.pop(torch.ops.aten.trace.default, None)
        exec(RULE.replace("from ..", "from wide_compiler."), vars(written))
        exec(RULE_TEST, vars(written))
        written.test_trace_by_its_own_rule()
    finally:
        RULES.clear()
        RULES.update(before)


@pytest.mark.parametrize("bias", [True, False])
def test_a_strategy(monkeypatch, bias):
    space = {}
    exec(STRATEGY, space)
    names = (*linear.LINEAR_STRATEGIES, "block_diagonal")
    monkeypatch.setattr(linear, "LINEAR_STRATEGIES", names)
    monkeypatch.setattr(linear.WideLinear, "STRATEGIES", names)
    monkeypatch.setitem(linear._PRODUCTS, "block_diagonal", space["_block_diagonal"])
    models = [nn.Linear(3, 2, bias=bias).double() for _ in range(4)]
    inputs = [((torch.randn(5, 3, dtype=torch.float64),), {}) for _ in models]
    config = wide_compiler.WideConfig(strategy="block_diagonal")
    wide = wide_compiler.compile(models, inputs[0][0], config=config)
    oracle.compare(models, wide, inputs, gradients=True).check(rtol=1e-9)
    assert wide.explain(measure=False).rows[0].strategy == "block_diagonal"
