"""Signals, once imported, watches every module's forward; what runs without it is tested here."""

import pytest
from torch.nn.modules import module


@pytest.fixture(autouse=True)
def no_global_hooks(monkeypatch):
    monkeypatch.setattr(module, "_global_forward_pre_hooks", type(module._global_forward_pre_hooks)())
