from __future__ import annotations

import pytest
import torch
from torch import nn

from primitives.loop import N, check_module, rand
from wide_compiler.primitives import WidePReLU, wide_prelu


@pytest.mark.parametrize("shape", [(), (4,), (2, 4), (2, 4, 3), (1, 4, 3, 3)])
def test_one_slope(shape: tuple[int, ...]) -> None:
    check_module(WidePReLU, lambda: nn.PReLU(), [rand(N, *shape)])


@pytest.mark.parametrize("shape", [(2, 4), (2, 4, 3), (1, 4, 3, 3)])
def test_a_slope_for_each_channel(shape: tuple[int, ...]) -> None:
    check_module(WidePReLU, lambda: nn.PReLU(4), [rand(N, *shape)])


def test_zero_float32_and_one_lane() -> None:
    check_module(WidePReLU, lambda: nn.PReLU(4), [0 * rand(N, 2, 4)])
    check_module(WidePReLU, lambda: nn.PReLU(4), [rand(N, 2, 4, 5)], dtype=torch.float32)
    check_module(WidePReLU, lambda: nn.PReLU(4), [rand(1, 1, 4)], n=1)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match=r"with C = 4 channels \(from the weight \(3, 4\)\), got \(3, 4\)"):
        wide_prelu(rand(N, 4), rand(N, 4))
    with pytest.raises(ValueError, match="C = 4 channels"):
        wide_prelu(rand(N, 2, 5), rand(N, 4))
