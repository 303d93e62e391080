"""While signals' workers run (other tests keep theirs), a hook watches all modules, and a site with hooks
declines: these tests run without it."""

import pytest
from torch.nn.modules import module

from wide_compiler.xcs.parallel import processes
from wide_compiler.xcs.rungs import NumpyLanes


@pytest.fixture(autouse=True)
def no_global_hooks(monkeypatch):
    monkeypatch.setattr(module, "_global_forward_pre_hooks", type(module._global_forward_pre_hooks)())


@pytest.fixture
def eager_processes(monkeypatch):
    """Work goes to other processes, however little it is, and nowhere else, however long it takes."""
    monkeypatch.setattr(processes, "pays", lambda work, seconds: True)
    monkeypatch.setattr(NumpyLanes, "worth_a_try", lambda self, work, seconds: False)
    monkeypatch.setattr(processes, "cores", lambda: 2)
