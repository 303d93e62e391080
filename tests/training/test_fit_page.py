"""Every block of Python on the page about fit runs, in order, as it is written there."""

import json
import logging
import re
import warnings
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "fit.md"
EXTRAS = ("optuna", "lightning", "accelerate")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    names = {}
    skipped = []
    for block in BLOCKS:
        needed = [extra for extra in EXTRAS if re.search(rf"^(import|from) {extra}\b", block, re.MULTILINE)]
        try:
            for extra in needed:
                __import__(extra)
        except ModuleNotFoundError as missing:
            skipped.append(missing.name)
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Lightning's advice about workers
            exec(compile(block, str(PAGE), "exec"), names)
    printed = capsys.readouterr().out
    assert "6 lanes, 5 epochs" in printed and "\n18\n" in printed and "cross validation: " in printed
    assert (tmp_path / "run").is_dir() and len(BLOCKS) == 8
    if skipped:
        pytest.skip(f"not installed: {', '.join(skipped)}")


def test_the_figures():
    root = PAGE.parents[1]
    found = json.loads((root / "benchmarks" / "results" / "optuna_study_cpu.json").read_text())
    rows = {"trial by trial": found["processor_seconds"]["trial by trial"]}
    rows["16 lanes"] = found["processor_seconds"]["lanes"]
    page = PAGE.read_text()
    for name, seconds in rows.items():
        assert f"| {name} | " + " | ".join(f"{s:.1f}" for s in seconds) + " |" in page
    assert "| ratio | " + " | ".join(f"{ratio:.2f}x" for ratio in found["processor_ratios"]) + " |" in page
    best = found["best_trial"]
    assert best["lanes"] == best["trial by trial"] and f"trial {best['lanes']} the best" in page
    for value in found["best_value"].values():
        assert f"{value:.6f}" in page
