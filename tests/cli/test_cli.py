"""The command line, as a user meets it."""

import json
import os
import re
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

from wide_compiler.cli import MODEL_NAMES, app, compare_models, demo, demo_train
from wide_compiler.cli.models import MODELS
from wide_compiler.oracle import Difference, Report
from wide_compiler.primitives import PRIMITIVES
from wide_compiler.version import __version__

COMMANDS = ("test", "trace", "info", "demo", "doctor", "benchmark")


def call(*arguments: str):
    wide_screen = {"COLUMNS": "160", "TERM": "dumb"}
    return CliRunner().invoke(app, list(arguments), env=wide_screen, prog_name="wide_compiler")


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_the_commands(arguments):
    result = call(*arguments)
    assert result.exit_code == 0
    assert all(name in result.output for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_teaches_by_example(command):
    result = call(command, "-h")
    assert result.exit_code == 0
    assert result.output.count(f"wide_compiler {command}") >= 2  # the usage line and an example


def test_module_runs_as_a_command():
    command = [sys.executable, "-m", "wide_compiler", "--help"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert "Usage: wide_compiler" in result.stdout


def test_info_lists_versions_primitives_and_presets():
    result = call("info")
    assert result.exit_code == 0
    assert torch.__version__ in result.output
    assert all(primitive.__name__ in result.output for primitive in PRIMITIVES)
    assert all(preset in result.output for preset in ("default", "fast", "safe", "debug"))


def test_info_for_programs(tmp_path, monkeypatch):
    monkeypatch.setenv("GT_CONFIG", "signals.yaml")
    result = call("info", "--json")
    told = json.loads(result.stdout)
    assert told["versions"]["torch"] == torch.__version__ and told["versions"]["wide_compiler"] == __version__
    assert told["settings"]["GT_CONFIG"] == "signals.yaml"
    assert told["cache"]["folder"] == os.environ["WIDE_COMPILER_CACHE"]
    assert {row["name"] for row in told["primitives"]} >= {primitive.__name__ for primitive in PRIMITIVES}
    assert told["presets"]["fast"] == {"compile": True}
    assert isinstance(told["workers"], list) and told["devices"]


def test_trace_and_test_for_programs():
    told = json.loads(call("trace", "-m", "mlp", "-n", "2", "--json").stdout)
    assert told["coverage"] == 1.0 and [row["how"] for row in told["rows"]] == ["rule"] * 3
    assert "wide_linear" in told["graphs"]["lanes"]
    result = call("test", "-m", "mlp", "-n", "2", "--json")
    told = json.loads(result.stdout)
    assert told["ok"] and result.exit_code == 0
    assert [(run["mode"], run["ok"]) for run in told["runs"]] == [("eval", True), ("train", True)]


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("wide_compiler do", {"doctor"}),
        ("wide_compiler trace --mo", {"--model"}),
        ("wide_compiler trace -m re", {"resblock"}),
        ("wide_compiler doctor --only si", {"signals"}),
    ],
)
def test_the_shell_completes_commands_options_and_names(typed, offered):
    complete = {"_WIDE_COMPILER_COMPLETE": "complete_bash", "COMP_WORDS": typed}
    complete["COMP_CWORD"] = str(len(typed.split()) - 1)
    result = CliRunner().invoke(app, [], env=complete, prog_name="wide_compiler")
    assert offered <= set(result.stdout.split())


def test_trace_shows_both_graphs_and_the_table():
    result = call("trace", "-m", "mlp", "-n", "3")
    assert result.exit_code == 0
    assert "aten.linear.default" in result.output  # the member
    assert "wide_linear" in result.output  # the lanes
    assert "of 3 nodes by own rules" in result.output
    assert "= None" not in result.output


@pytest.mark.parametrize("command", ["trace", "test"])
def test_unknown_model_is_a_usage_error_that_lists_the_choices(command):
    result = call(command, "-m", "perceptron")
    assert result.exit_code == 2
    assert "perceptron" in result.output
    assert all(name in result.output for name in MODEL_NAMES)
    assert "Traceback" not in result.output


def test_names_for_the_help_are_the_models_there_are():
    assert tuple(MODELS) == MODEL_NAMES


def test_test_passes_on_mlp():
    result = call("test", "-m", "mlp", "-n", "2")
    assert result.exit_code == 0, result.output
    assert result.output.count("ok") == 2 and "FAIL" not in result.output


def test_test_fails_where_wide_differs_from_the_loop(monkeypatch):
    wrong = Report([Difference("output", "", 1, error=0.5, scale=2.0)])
    monkeypatch.setattr(compare_models.oracle, "compare", lambda *args, **kwargs: wrong)
    result = call("test", "-m", "mlp", "-n", "2")
    assert result.exit_code == 1
    assert "FAIL" in result.output and "2.5e-01" in result.output


def test_test_reports_an_error_and_goes_on(monkeypatch):
    def broken(*args, **kwargs):
        raise RuntimeError("no such luck")

    monkeypatch.setattr(compare_models.wide_compiler, "compile", broken)
    result = call("test", "-m", "mlp", "-n", "2")
    assert result.exit_code == 1
    assert result.output.count("no such luck") == 2  # eval and train


def test_demo_writes_a_picture_and_the_comparison(tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "pictures" / "demo.png"
    result = call("demo", "--lanes", "3", "--steps", "4", "--out", str(picture))
    assert result.exit_code == 0, result.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    difference = re.search(r"largest difference\W+(\S+) of", result.output)
    assert difference and float(difference[1]) < 1e-12
    assert "extrapolated" not in result.output


@pytest.mark.parametrize("name", ["demo.xyz", "file.txt/demo.png"])
def test_demo_refuses_a_picture_it_cannot_write_before_it_trains(tmp_path, monkeypatch, name):
    (tmp_path / "file.txt").touch()
    monkeypatch.setattr(demo, "run", lambda *args: pytest.fail("it trained"))
    result = call("demo", "--out", str(tmp_path / name))
    assert result.exit_code == 2
    assert "--out" in result.output


def test_demo_says_when_the_loop_is_extrapolated(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "LOOP_BUDGET", 0.0)
    result = call("demo", "--lanes", "3", "--steps", "2", "--out", str(tmp_path / "demo.png"))
    assert result.exit_code == 0, result.output
    assert "extrapolated: 1 of 3" in result.output


def test_demo_without_matplotlib_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "wide_compiler.cli.demo_picture", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # what a missing package looks like to `import`
    picture = tmp_path / "demo.png"
    result = call("demo", "--lanes", "2", "--steps", "1", "--out", str(picture))
    assert result.exit_code == 0, result.output
    assert "wide_compiler[plots]" in result.output
    assert not picture.exists()


def test_demo_data_leaves_the_gap_empty():
    data = demo_train.make_data(lanes=5, seed=3)
    assert not ((data.x > demo_train.GAP[0]) & (data.x < demo_train.GAP[1])).any()
    assert data.lane_x.shape == data.lane_y.shape == (5, demo_train.POINTS, 1)
    assert not torch.equal(data.lane_x[0], data.lane_x[1])


def test_demo_trains_every_lane_as_it_would_be_alone():
    data, nets = demo_train.make_data(3, seed=1), demo_train.make_nets(3, seed=1)
    wide = demo_train.train_wide(nets, data, 20, lambda step, losses: None)
    loop = demo_train.train_loop(nets, data, 20, 60.0, lambda lane, loss: None)
    assert demo_train.largest_difference(wide.model, loop.nets, data.x) < 1e-10
    assert (wide.losses[-1] < wide.losses[0]).all()
