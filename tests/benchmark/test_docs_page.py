"""benchmarks/report.py: result files become a page."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from wide_compiler.benchmark import BenchmarkRow, document, write

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "report.py"


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("benchmarks_report", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_page_of_all_result_files(script, tmp_path):
    pytest.importorskip("matplotlib")
    rows = [
        BenchmarkRow(
            "mlp", "model", n, 8, "infer", "cpu", "einsum", {"loop": n * 1.0, "ours": 1.0, "vmap": 0.5}
        )
        for n in (2, 4, 8)
    ]
    for row in rows:
        row.ok, row.error, row.tolerance, row.errors = True, 1e-7, 1e-4, {"vmap": 1e-7}
    rows[1].failures = {"jax": "ValueError: no"}
    results, docs = tmp_path / "results", tmp_path / "docs"
    write(
        results / "mlp_cpu.json", document(rows, torch.device("cpu"), "wide_compiler benchmark mlp", "full")
    )
    (results / "other.json").write_text(json.dumps({"contenders": {}}))
    page = script.write(results, docs).read_text()
    assert page.count("\n## ") == 1 and "## mlp cpu" in page
    assert (
        "| mlp | infer | 8 | 8 | 8.000 | 1.000 | 8 | einsum | vmap | 0.500 | 0.5 | 1e-07 | 0e+00 | ok |"
        in page
    )
    assert "wide_compiler benchmark mlp" in page and torch.__version__ in page
    assert "- mlp, faster than the loop: from N=2 on" in page
    assert "- mlp, jax: ValueError: no" in page
    assert "(assets/benchmark_mlp_cpu.png)" in page and (docs / "assets/benchmark_mlp_cpu.png").exists()
