"""While signals' workers run (other tests keep theirs), a hook watches all modules, and a site with hooks
declines: these tests run without it."""

import pytest
from torch.nn.modules import module


@pytest.fixture(autouse=True)
def no_global_hooks(monkeypatch):
    monkeypatch.setattr(module, "_global_forward_pre_hooks", type(module._global_forward_pre_hooks)())
