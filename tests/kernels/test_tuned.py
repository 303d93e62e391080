"""All configs of a kernel are compiled at once, before any is timed."""

import pytest
import torch

from kernels.device import DEVICE, needs_kernels
from wide_compiler.kernels import tuned
from wide_compiler.kernels.lane_matmul import _matmul_kernel, matmul

pytestmark = [
    needs_kernels,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="the interpreter compiles nothing"),
]


def product(size):
    a, b = (torch.randn(3, size, size, device=DEVICE, dtype=torch.float32) for _ in range(2))
    got = matmul(a, b)
    torch.testing.assert_close(got.double(), a.double() @ b.double(), rtol=2e-5, atol=2e-4)


def watched(monkeypatch):
    """Return a list of how many kernels are compiled before and after each call of `compile_together`."""
    counts, own = [], tuned.compile_together

    def compiled():
        kernel = _matmul_kernel.fn
        while not hasattr(kernel, "device_caches"):
            kernel = kernel.fn
        return len(kernel.device_caches[torch.cuda.current_device()][0])

    def counted(*args):
        before = compiled()
        own(*args)
        counts.append((len(args[1]), compiled() - before))

    monkeypatch.setattr(tuned, "compile_together", counted)
    return counts


def test_configs_are_compiled_together(monkeypatch):
    counts = watched(monkeypatch)
    product(136)
    product(136)
    ((configs, compiled),) = counts
    assert configs > 1 and compiled == configs


def test_a_config_that_cannot_be_compiled_is_left_to_the_autotuner(monkeypatch):
    def fails(*args, **kwargs):
        raise RuntimeError("no compiler")

    kernel = type("Kernel", (), {"run": staticmethod(fails)})
    config = _matmul_kernel.configs[0]
    tuned.compile_together(kernel, [config, config], {}, {"grid": (1,)})
    product(264)  # what was set meanwhile is taken back
