"""What several tests of xcs share."""

import pytest

from wide_compiler.xcs.costs import Budget, Costs, Schedule


@pytest.fixture
def eager(monkeypatch):
    """A site is looked at, and analysed, at every call, and its plain loop is known to take a millisecond."""
    monkeypatch.setattr(Budget, "affords", lambda self, seconds: True)
    monkeypatch.setattr(Schedule, "rest", lambda self, *_: None)
    monkeypatch.setattr(Costs, "plain_item", 1e-3)
