"""One thread and one seed for every test of this folder, and float32 that is float32."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _reproducible() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the tensors are tiny
    tf32 = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)
    yield
    torch.backends.cudnn.allow_tf32 = tf32
    torch.set_num_threads(threads)
