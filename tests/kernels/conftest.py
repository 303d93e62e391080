"""What all tests of kernels have in common."""

import pytest
import torch


@pytest.fixture(autouse=True)
def exact():
    """float32 at float32's accuracy on a GPU too."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)
