"""Every example runs, as a user would run it."""

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
def test_example(path, tmp_path):
    if path.stem in NEEDS:
        pytest.importorskip(NEEDS[path.stem])
    command = [sys.executable, path, "--quick"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout.strip()
    pictures = [picture.name for picture in tmp_path.glob("*.png")]
    assert pictures == ([] if path.stem in TEXT_ONLY else [f"{path.stem}.png"])
