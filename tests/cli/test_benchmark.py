"""`wide_compiler benchmark`, as a user meets it."""

import json
import sys

import pytest
from typer.testing import CliRunner

from wide_compiler import benchmark
from wide_compiler.benchmark import MODELS, PRESETS, PRIMITIVE_CASES, runner
from wide_compiler.cli import app, benchmark_run
from wide_compiler.cli.benchmark import PRESET_NAMES
from wide_compiler.cli.output_files import PICTURES
from wide_compiler.primitives import WideLinear


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        runner, "interleaved", lambda calls, seconds, cuda, **options: dict.fromkeys(calls, 1e-3)
    )


def call(*arguments: str):
    wide_screen = {"COLUMNS": "220", "TERM": "dumb"}
    command = ["benchmark", *arguments]
    return CliRunner().invoke(app, command, env=wide_screen, prog_name="wide_compiler")


@pytest.fixture
def planned(monkeypatch):
    """Nothing is measured; what would be is noted."""
    seen = []

    def note(points, options, tell):
        seen.append((points, options))
        return []

    monkeypatch.setattr(benchmark_run.benchmark, "run", note)
    return seen


def test_without_a_name_it_lists_everything_with_one_line_each():
    result = call()
    assert result.exit_code == 0
    for workload in [*PRIMITIVE_CASES.values(), *MODELS.values()]:
        assert workload.name in result.output and workload.about in result.output


def test_help_teaches_by_example():
    result = call("-h")
    assert result.exit_code == 0
    assert result.output.count("wide_compiler benchmark") >= 4
    for option in ("--preset", "--top", "--quiet", "--save", "--output", "--batch", "--compile-mode"):
        assert option in result.output
    for option in (
        "--train",
        "--device",
        "--peers",
        "--plot",
        "-p",
        "-t",
        "-q",
        "-s",
        "-o",
        "-n",
        "-b",
        "-c",
    ):
        assert option in result.output


def test_a_primitive_with_every_option_of_the_output():
    result = call("embedding", "-p", "ci", "-n", "2", "-b", "3", "-t", "1", "-q", "-s", "-o", "sub/r.json")
    assert result.exit_code == 0, result.output
    assert sum("embedding" in line and "│" in line for line in result.output.splitlines()) == 1  # the top one
    (saved,) = (p for p in benchmark_run.Path().iterdir() if p.name.startswith("wide_benchmark_embedding_"))
    content = json.loads(saved.read_text())
    assert content == json.loads(benchmark_run.Path("sub/r.json").read_text())
    assert content["preset"] == "ci" and content["complete"]
    assert [row["strategy"] for row in content["rows"]] == list(
        PRIMITIVE_CASES["embedding"].primitive.STRATEGIES
    )
    assert all(row["n"] == 2 and row["batch"] == 3 and row["ok"] for row in content["rows"])


def test_a_model_trains():
    result = call("mlp", "-n", "2", "-b", "2", "--train", "--device", "cpu", "-o", "r.json")
    assert result.exit_code == 0, result.output
    (row,) = json.loads(benchmark_run.Path("r.json").read_text())["rows"]
    assert row["mode"] == "train" and row["device"] == "cpu" and row["ok"]


def test_lanes_without_a_name_are_the_mlp(planned):
    assert call("-n", "4", "-n", "16,64", "-q").exit_code == 0
    assert [str(point) for (point,), _ in planned] == ["mlp N=4", "mlp N=16", "mlp N=64"]


def test_options_reach_the_runner(planned):
    result = call(
        "mlp", "-p", "quick", "-b", "5", "-c", "--compile-mode", "max-autotune", "--train", "--peers"
    )
    assert result.exit_code == 0, result.output
    (point,), options = planned[0]
    assert point.batch == 5 and options.preset is benchmark.PRESETS["quick"]
    assert options.compile and options.compile_mode == "max-autotune" and options.train and options.peers


@pytest.mark.parametrize(
    ("given", "compiled"), [([], False), (["-c"], True), (["--compile-mode", "default"], True)]
)
def test_compile(planned, given, compiled):
    assert call("mlp", *given).exit_code == 0
    assert planned[0][1].compile == compiled


def test_all_is_every_primitive_and_full_is_the_default(planned):
    assert call("all", "-q").exit_code == 0
    points = [point for points, _ in planned for point in points]
    assert {point.workload.name for point in points} == set(PRIMITIVE_CASES)
    assert len(points) == sum(len(case.sweep) for case in PRIMITIVE_CASES.values())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["perceptron"], [*PRIMITIVE_CASES, *MODELS]),
        (["mlp", "-p", "slow"], PRESET_NAMES),
        (["mlp", "--compile-mode", "fastest"], ["reduce-overhead"]),
        (["mlp", "-n", "4,many"], ["'many'"]),
        (["mlp", "-n", "0"], ["'0'"]),
        (["mlp", "--device", "abacus"], ["abacus"]),
        (["dropout", "--train"], ["no parameters"]),
        (["mlp", "--plot", "picture.txt"], PICTURES),
        (["mlp", "-o", "file/r.json"], ["--output"]),
    ],
)
def test_mistakes_are_usage_errors_that_say_what_is_right(planned, arguments, told):
    benchmark_run.Path("file").touch()
    result = call(*arguments)
    assert result.exit_code == 2
    assert all(word in result.output for word in told), result.output
    assert not planned and "Traceback" not in result.output


def test_names_for_the_help_are_the_presets_there_are():
    assert set(PRESET_NAMES) == set(PRESETS)


def test_a_plot_is_written():
    pytest.importorskip("matplotlib")
    result = call("prelu", "-p", "ci", "-q", "--plot", "pictures/prelu.png")
    assert result.exit_code == 0, result.output
    assert benchmark_run.Path("pictures/prelu.png").read_bytes().startswith(b"\x89PNG")


def test_a_plot_without_matplotlib_is_refused_before_anything_is_measured(monkeypatch, planned):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = call("prelu", "--plot", "prelu.png")
    assert result.exit_code == 2 and not planned
    assert "wide_compiler[plots]" in result.output


def test_a_wrong_result_is_exit_code_1(monkeypatch):
    right = WideLinear.kernel
    monkeypatch.setattr(WideLinear, "kernel", staticmethod(lambda x, w, b, strategy: right(x, w, b) + 1))
    result = call("linear", "-p", "ci", "-n", "2")
    assert result.exit_code == 1
    assert "WRONG" in result.output and "differs from the loop" in result.output


def test_peers_that_fail_are_shown_with_their_errors(monkeypatch):
    monkeypatch.setattr("torch.compile", lambda function, **options: function)
    result = call("primitive:lstm", "-n", "2", "-b", "2", "--peers", "--train", "-q")
    assert result.exit_code == 0, result.output
    assert "best peer" in result.output and "fails" in result.output
    assert "RuntimeError: Batching rule not implemented" in result.output


def test_ctrl_c_shows_and_saves_what_is_there(monkeypatch):
    measured = benchmark_run.benchmark.run

    def interrupted(points, options, tell):
        if points[0].n > 2:
            raise KeyboardInterrupt
        return measured(points, options, tell)

    monkeypatch.setattr(benchmark_run.benchmark, "run", interrupted)
    result = call("prelu", "-n", "2,4", "-o", "r.json")
    assert result.exit_code == 130
    assert "Stopped" in result.output and "prelu" in result.output
    content = json.loads(benchmark_run.Path("r.json").read_text())
    assert not content["complete"] and [row["n"] for row in content["rows"]] == [2]
