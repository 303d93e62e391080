"""What several tests of xcs share."""

import pytest

from wide_compiler.xcs.parallel import computing
from wide_compiler.xcs.rungs import NumpyLanes, Threads


@pytest.fixture
def eager_threads(monkeypatch):
    """Items that compute go to threads however short they are, win there, and go nowhere else."""
    monkeypatch.setattr(computing, "TRIAL", 0.0)
    monkeypatch.setattr(computing, "cores", lambda: 2)
    monkeypatch.setattr(computing, "beats", lambda seconds, plain: True)
    monkeypatch.setattr(computing, "pays", lambda work, seconds: True)
    monkeypatch.setattr(Threads, "at_best", lambda self, seconds: 0.0)
    monkeypatch.setattr(NumpyLanes, "worth_a_try", lambda self, work, seconds: False)
