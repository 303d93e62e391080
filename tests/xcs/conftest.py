"""What several tests of xcs share."""

import pytest

from wide_compiler.xcs.parallel import processes
from wide_compiler.xcs.rungs import NumpyLanes


@pytest.fixture
def eager_processes(monkeypatch):
    """Work goes to other processes, however little it is, and nowhere else, however long it takes."""
    monkeypatch.setattr(processes, "pays", lambda work, seconds: True)
    monkeypatch.setattr(NumpyLanes, "worth_a_try", lambda self, work, seconds: False)
    monkeypatch.setattr(processes, "cores", lambda: 2)
