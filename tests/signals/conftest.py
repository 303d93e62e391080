"""Four local workers for all tests here; signals are forgotten after each test."""

import pytest

import wide_compiler.signals as gt
from signals.placed import signal
from signals.soak import gone
from wide_compiler.signals import runtime


@pytest.fixture
def workers():
    """Four workers, started once (again only if a test has ended them)."""
    gt.cpu_workers(4)
    yield
    gt.clear_configs()


@pytest.fixture
def two():
    """Two workers of this test's own."""
    gt.shutdown()
    gt.clear_configs()
    gt.cpu_workers(2)
    signal("dp", [0, 1])
    pids = list(runtime.engine().pool.pids)
    yield pids
    gt.shutdown()
    gt.clear_configs()
    assert gone(pids)


@pytest.fixture(scope="session", autouse=True)
def _no_worker_is_left():
    yield
    gt.shutdown()
