"""The page of patterns is made from the table and the measured file, and lists every pattern."""

import subprocess
import sys
from pathlib import Path

from xcs.patterns import PATTERNS

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_what_the_command_makes():
    command = [sys.executable, ROOT / "benchmarks" / "xcs_page.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_every_pattern_is_on_it():
    text = (ROOT / "docs" / "xcs_patterns.md").read_text()
    assert all(f"| {p.name} |" in text for p in PATTERNS)
