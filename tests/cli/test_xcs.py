"""`wide_compiler xcs explain`, as a user meets it."""

import pytest
from typer.testing import CliRunner

from wide_compiler.cli import app

TEXT = """
import time

def waits(xs):
    out = []
    for x in xs:
        time.sleep(0.1)
        out.append(x)
    for x in xs:
        if x:
            break
    return [x * 2 for x in xs]

def nothing():
    return 1

def produces():
    yield 1

class Model:
    def many(self, xs):
        return [x + 1 for x in xs]

number = 3
"""


@pytest.fixture
def explain(tmp_path):
    path = tmp_path / "model_to_explain.py"
    path.write_text(TEXT)

    def call(target):
        command = ["xcs", "explain", target.replace("FILE", str(path))]
        return CliRunner().invoke(app, command, env={"COLUMNS": "200", "TERM": "dumb"})

    return call


def test_sites_and_reasons_by_line(explain):
    result = explain("FILE:waits")
    assert result.exit_code == 0, result.output
    assert "for x in xs:" in result.output and "[x * 2 for x in xs]" in result.output
    assert "no: it fills no list" in result.output or "no: it has a break statement" in result.output
    assert result.output.count(" yes ") == 2


def test_methods_and_functions_without_loops(explain):
    assert "[x + 1 for x in xs]" in explain("FILE:Model.many").output
    assert "no loops" in explain("FILE:nothing").output
    assert "loop, because" in explain("FILE:produces").output


@pytest.mark.parametrize(
    "target, words",
    [
        ("FILE:missing", "has no"),
        ("nowhere.py:f", "there is no file"),
        ("FILE", "FILE:FUNC"),
        ("FILE:number", "not a f"),
    ],
)
def test_bad_targets_are_usage_errors(explain, target, words):
    result = explain(target)
    assert result.exit_code == 2
    assert words in " ".join(result.output.split())
