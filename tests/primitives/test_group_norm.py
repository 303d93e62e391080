from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from primitives.loop import N, check_module, rand
from wide_compiler.primitives import WideGroupNorm, wide_group_norm


@pytest.mark.parametrize("shape", [(2, 4), (2, 4, 3), (1, 4, 3, 3), (2, 4, 2, 2, 2)])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("options", [{}, {"affine": False}, {"eps": 0.1}], ids=str)
def test_module_is_the_loop(shape: tuple[int, ...], groups: int, options: Any) -> None:
    check_module(WideGroupNorm, lambda: nn.GroupNorm(groups, 4, **options), [rand(N, *shape)])


def test_one_group_per_channel() -> None:
    check_module(WideGroupNorm, lambda: nn.GroupNorm(4, 4), [rand(N, 2, 4, 3, 3)])


def test_float32_and_one_lane() -> None:
    check_module(WideGroupNorm, lambda: nn.GroupNorm(2, 4), [rand(N, 2, 4, 3, 3)], dtype=torch.float32)
    check_module(WideGroupNorm, lambda: nn.GroupNorm(2, 4), [rand(1, 1, 4, 3, 3)], n=1)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="lane axis"):
        wide_group_norm(rand(N, 2, 4), 2, rand(2, 4))
    with pytest.raises(ValueError, match="3 lanes"):
        WideGroupNorm.from_modules([nn.GroupNorm(2, 4)] * 3)(rand(2, 2, 4))
