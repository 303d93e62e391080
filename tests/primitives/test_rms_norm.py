from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from primitives.loop import N, check_module, rand
from wide_compiler.primitives import WideRMSNorm, wide_rms_norm


@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
@pytest.mark.parametrize("normalized", [(5,), (2, 5)])
@pytest.mark.parametrize("options", [{}, {"elementwise_affine": False}, {"eps": 0.1}], ids=str)
def test_module_is_the_loop(shape: tuple[int, ...], normalized: tuple[int, ...], options: Any) -> None:
    check_module(WideRMSNorm, lambda: nn.RMSNorm(normalized, **options), [rand(N, *shape, *normalized)])


@pytest.mark.parametrize("eps", [None, 1e-6])
def test_float32_and_one_lane(eps: float | None) -> None:
    check_module(WideRMSNorm, lambda: nn.RMSNorm(16, eps=eps), [rand(N, 6, 16)], dtype=torch.float32)
    check_module(WideRMSNorm, lambda: nn.RMSNorm(16, eps=eps), [rand(1, 1, 16)], n=1)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="lane axis"):
        wide_rms_norm(rand(N, 2, 4), (4,), rand(2, 4))
