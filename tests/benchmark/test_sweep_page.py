"""benchmarks/sweep.py makes rows; benchmarks/sweep_page.py: the page says what the results file says."""

import importlib.util
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def script_of(name):
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def test_a_row_of_a_small_model(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    sweep = script_of("sweep")
    row = sweep.swept("zoo:mlp_residual", quick=True)
    assert row["verdict"] == "equal", row
    assert row["fused"] == {"eval": "", "train": ""}
    assert row["compile"].keys() == {"eval N", "train N"}


def test_a_row_says_what_is_not_fused(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    row = script_of("sweep").swept("zoo:io_data_dependent_if", quick=True)
    assert row["verdict"] == "equal", row
    assert all(why.startswith("loop: ") for why in row["fused"].values())


def test_the_page_is_made_of_the_results():
    script = script_of("sweep_page")
    assert script.PAGE.read_text() == script.page()
