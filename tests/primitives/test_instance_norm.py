from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from primitives.loop import N, check_module, rand
from wide_compiler.primitives import (
    WideInstanceNorm,
    WideInstanceNorm1d,
    WideInstanceNorm2d,
    WideInstanceNorm3d,
)

MEMBERS: list[tuple[Any, Any, tuple[int, ...]]] = [
    (WideInstanceNorm1d, nn.InstanceNorm1d, (5,)),
    (WideInstanceNorm2d, nn.InstanceNorm2d, (3, 4)),
    (WideInstanceNorm3d, nn.InstanceNorm3d, (2, 2, 3)),
]


@pytest.mark.parametrize(("wide", "member", "size"), MEMBERS)
@pytest.mark.parametrize("batch", [(2,), ()])
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize(
    "options", [{}, {"affine": True}, {"affine": True, "track_running_stats": True, "momentum": 0.3}], ids=str
)
def test_module_is_the_loop(wide: Any, member: Any, size: Any, batch: Any, train: bool, options: Any) -> None:
    x = rand(N, *batch, 3, *size)
    check_module(wide, lambda: member(3, **options), [x], train=train, steps=2)
    check_module(WideInstanceNorm, lambda: member(3, **options), [x], train=train, steps=2)


def test_float32_and_one_lane() -> None:
    make = lambda: nn.InstanceNorm2d(3, affine=True)  # noqa: E731
    check_module(WideInstanceNorm, make, [rand(N, 2, 3, 4, 4)], dtype=torch.float32)
    check_module(WideInstanceNorm, make, [rand(1, 1, 3, 4, 4)], n=1)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="2 lanes as dimension 0 and 4 or 5 axes"):
        WideInstanceNorm.from_modules([nn.InstanceNorm2d(3)] * 2)(rand(2, 2, 3))
    with pytest.raises(
        TypeError, match=r"expected nn.InstanceNorm1d or nn.InstanceNorm2d or nn.InstanceNorm3d"
    ):
        WideInstanceNorm.from_modules([nn.BatchNorm2d(3)])
