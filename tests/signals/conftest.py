"""Four local workers for all tests here; signals are forgotten after each test."""

import pytest

import wide_compiler.signals as gt


@pytest.fixture
def workers():
    """Four workers, started once (again only if a test has ended them)."""
    gt.cpu_workers(4)
    yield
    gt.clear_configs()


@pytest.fixture(scope="session", autouse=True)
def _no_worker_is_left():
    yield
    gt.shutdown()
