"""benchmarks/sweep_page.py: the page says what the results file says."""

import importlib.util
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "sweep_page.py"


def test_the_page_is_made_of_the_results():
    spec = importlib.util.spec_from_file_location("sweep_page", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.PAGE.read_text() == script.page()
