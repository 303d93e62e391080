"""One thread a test process: two processes on two cores must not fight for them."""

import os
from pathlib import Path

import pytest
import torch

from quick import QUICK, some_of_each_file

if not Path("/proc/driver/nvidia").exists():
    # Own kernels run in Triton's interpreter where there is no GPU. Read when triton is imported: so, first.
    os.environ.setdefault("TRITON_INTERPRET", "1")
# JAX, a peer in some tests, would take most of a GPU's memory from the others.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def pytest_collection_modifyitems(config, items):
    """With QUICK=1 a few tests of every file."""
    if QUICK:
        items[:], left_out = some_of_each_file(items)
        config.hook.pytest_deselected(items=left_out)


@pytest.fixture(autouse=True, scope="session")
def _own_tuning_folder(tmp_path_factory):
    """What tests measure is neither taken from the user's cache nor left there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WIDE_COMPILER_CACHE", str(tmp_path_factory.mktemp("tuning")))
        yield


@pytest.fixture(autouse=True)
def _one_thread_and_a_seed():
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return request.param
