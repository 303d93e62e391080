"""Random programs give the values of plain PyTorch, and every worker took part."""

import pytest

from nightly import SEED, count
from signals.fuzz import run_many


@pytest.mark.usefixtures("workers")
def test_random_programs():
    programs = count(60, 2000)
    steps, instructions = run_many(SEED, programs)
    assert steps > 5 * programs
    assert min(instructions) > 2 * programs, instructions
