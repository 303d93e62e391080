"""The walked-through changes of CONTRIBUTING.md work as they are written."""

import re
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
import yaml
from torch import nn

import wide_compiler
from wide_compiler import oracle
from wide_compiler.primitives import linear
from wide_compiler.widen import RULES

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "CONTRIBUTING.md"
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


def test_a_page(tmp_path):
    """A new page needs a line under `nav:` and nothing else. Built without the slow API reference."""
    pytest.importorskip("mkdocs")
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    (tmp_path / "docs" / "new.md").write_text("# New\n\nSee [Start](start.md).\n")
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    config["plugins"] = []

    def build() -> subprocess.CompletedProcess[str]:
        (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(config))
        command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    forgotten = build()
    assert forgotten.returncode == 1 and "new.md" in forgotten.stderr
    config["nav"].append({"New": "new.md"})
    done = build()
    assert done.returncode == 0, done.stderr


def test_the_commands_that_the_pages_name_are_there():
    pages = [PAGE, ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for page in pages:
        text = page.read_text()
        assert {*re.findall(r"(?:`|^)make ([a-z-]+)", text, flags=re.MULTILINE)} <= targets, page
        for path in re.findall(r"-m pytest (?:-q )?(tests[\w/.]*)", text):
            assert (ROOT / path).exists(), f"{page}: {path}"
