"""Random programs give the values of plain PyTorch, and every worker took part."""

import pytest

from signals.fuzz import run_many


@pytest.mark.usefixtures("workers")
def test_random_programs():
    steps, instructions = run_many(0, 200)
    assert steps > 1000
    assert min(instructions) > 500, instructions
