"""Every block of Python on the page about fit runs, in order, as it is written there."""

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
    assert (tmp_path / "run").is_dir() and len(BLOCKS) == 7
    if skipped:
        pytest.skip(f"not installed: {', '.join(skipped)}")
