"""`wide_compiler doctor`: what works is tried, what is broken is told with a remedy and an exit code."""

import json

import pytest
from typer.testing import CliRunner

from wide_compiler.cli import DOORS, app, doctor


def call(*arguments):
    return CliRunner().invoke(app, ["doctor", *arguments], env={"COLUMNS": "160", "TERM": "dumb"})


def test_names_for_the_help_are_the_checks_there_are():
    assert tuple(doctor.CHECKS) == DOORS


def test_the_doors_of_this_process_work():
    names = ("cache", "compile", "training", "router", "jit")
    result = call("--json", *(word for name in names for word in ("--only", name)))
    told = json.loads(result.stdout)
    assert result.exit_code == 0 and told["ok"]
    assert [(f["name"], f["status"]) for f in told["findings"]] == [(name, "works") for name in names]
    assert "together" in told["findings"][3]["detail"]


def test_two_workers():
    (finding,) = doctor.examine(["signals"])
    assert finding.status == "works" and "workers (0, 1)" in finding.detail


def test_adapters():
    pytest.importorskip("peft")
    (finding,) = doctor.examine(["PEFT"])
    assert finding.status == "works", finding.detail


def test_what_is_broken_has_a_remedy_and_an_exit_code(monkeypatch):
    def broken():
        raise RuntimeError("no such luck\nand more")

    monkeypatch.setitem(doctor.CHECKS, "jit", (broken, "try again"))
    result = call("--only", "jit", "--only", "cache")
    assert result.exit_code == 1
    assert "no such luck" in result.output and "try again" in result.output and "works" in result.output
    told = json.loads(call("--only", "jit", "--json").stdout)
    assert told["ok"] is False and told["findings"][0]["status"] == "broken"


def test_what_differs_from_the_loop_is_broken(monkeypatch):
    from wide_compiler.routers import WideRouter

    forward = WideRouter.forward
    monkeypatch.setattr(WideRouter, "forward", lambda *args: {k: v + 1 for k, v in forward(*args).items()})
    (finding,) = doctor.examine(["router"])
    assert finding.status == "broken" and "differs from the loop by 1" in finding.detail


def test_what_is_not_installed_is_no_failure(monkeypatch):
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    result = call("--only", "PEFT", "--only", "Triton", "--only", "export to ONNX")
    assert result.exit_code == 0, result.output
    assert result.output.count("absent") == 3 and "wide_compiler[peft]" in result.output


def test_an_unknown_door_is_a_usage_error():
    result = call("--only", "nonsense")
    assert result.exit_code == 2 and "nonsense" in result.output and "signals" in result.output
    assert "Traceback" not in result.output
