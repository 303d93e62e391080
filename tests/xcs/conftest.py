"""What several tests of xcs share."""

import pytest

from wide_compiler.xcs import choice
from wide_compiler.xcs.costs import Costs
from wide_compiler.xcs.parallel import computing
from wide_compiler.xcs.rungs import NUMPY_LANES, TORCH_VMAP
from wide_compiler.xcs.schedule import Schedule
from wide_compiler.xcs.site import Site


@pytest.fixture
def eager(monkeypatch):
    """A site is looked at, and analysed, at every call, and its plain loop is known to take a millisecond."""
    monkeypatch.setattr(Site, "may_analyse", lambda self: True)
    monkeypatch.setattr(Schedule, "rest", lambda self, looked, plain: None)
    monkeypatch.setattr(choice, "TIMINGS", 0)
    monkeypatch.setattr(choice, "LONG", 1e9)
    monkeypatch.setattr(Costs, "plain_item", 1e-3)


@pytest.fixture
def eager_threads(eager, monkeypatch):
    """Items that compute go to threads however short they are, win there, and go nowhere else."""
    monkeypatch.setattr(computing, "TRIAL", 0.0)
    monkeypatch.setattr(computing, "SEVERAL", 0.0)
    monkeypatch.setattr(computing, "cores", lambda: 2)
    monkeypatch.setattr(computing, "beats", lambda seconds, plain: True)
    monkeypatch.setattr(computing, "pays", lambda work: True)
    for rung in (NUMPY_LANES, TORCH_VMAP):
        monkeypatch.setattr(rung, "worth_a_try", lambda work, seconds: False)
