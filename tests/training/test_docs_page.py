"""docs/training.md: its code runs, from top to bottom, and its figures are those of the result files."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "training.md").read_text()


def test_the_code_runs():
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) >= 8
    names: dict = {}
    for block in blocks:
        exec(compile(block, "docs/training.md", "exec"), names)


def test_population_figures():
    found = json.loads((ROOT / "benchmarks" / "results" / "population_cpu.json").read_text())
    assert len(found["rows"]) == 10 and found["lanes"] == 64
    assert found["median"]["population"] < found["median"]["random_search"]
    for figure in (*found["median"].values(), f"{found['ahead']} of 10"):
        assert (f"{figure:.4f}" if isinstance(figure, float) else figure) in PAGE


def test_training_figures():
    found = json.loads((ROOT / "benchmarks" / "results" / "training_cpu.json").read_text())
    for row in found["rows"]:
        start = f"| {row['workload']} | {row['n']} "
        (line,) = [text for text in PAGE.splitlines() if text.startswith(start)]
        for candidate in ("vmap", "wide, one setting", "wide", "wide, all by lane", "wide, TrainStep"):
            ratio = row["x_loop"].get(candidate)
            assert ("fails" if ratio is None else f"{ratio:.1f}x") in line
