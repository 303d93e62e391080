"""Every example runs, as a user would run it."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


# What an example needs beyond the library, and those that draw no picture.
NEEDS = {"optuna_search": "optuna", "lora_search": "peft", "cross_validation": "sklearn",
         "population_on_ray": "ray"}  # fmt: skip
TEXT_ONLY = {"branches_of_any_model", "quick_start", "signals_from_yaml"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path, tmp_path, monkeypatch, capfd):
    if path.stem in NEEDS:
        pytest.importorskip(NEEDS[path.stem])
    monkeypatch.chdir(tmp_path)
    if re.search("wide_compiler.(signals|xcs)", path.read_text()):  # starts processes, or reads its text
        subprocess.run([sys.executable, path, "--quick"], check=True, timeout=600)
    else:  # here: importing PyTorch takes longer than most of them
        monkeypatch.setattr(sys, "argv", [str(path), "--quick"])
        runpy.run_path(str(path), run_name="__main__")
    assert capfd.readouterr().out.strip()
    pictures = [picture.name for picture in tmp_path.glob("*.png")]
    assert pictures == ([] if path.stem in TEXT_ONLY else [f"{path.stem}.png"])
