from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from primitives.loop import N, assert_near, check_module, make_members, rand
from wide_compiler.primitives import WideBatchNorm1d, WideBatchNorm2d, WideBatchNorm3d, wide_batch_norm

SHAPES: list[tuple[Any, Any, tuple[int, ...]]] = [
    (WideBatchNorm1d, nn.BatchNorm1d, (4, 3)),
    (WideBatchNorm1d, nn.BatchNorm1d, (4, 3, 5)),
    (WideBatchNorm2d, nn.BatchNorm2d, (2, 3, 4, 4)),
    (WideBatchNorm3d, nn.BatchNorm3d, (1, 3, 2, 2, 3)),
]


@pytest.mark.parametrize(("wide", "member", "shape"), SHAPES)
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"affine": False},
        {"track_running_stats": False},
        {"momentum": None},
        {"momentum": 0.3, "eps": 1e-2},
    ],
    ids=str,
)
def test_module_is_the_loop(
    wide: Any, member: Any, shape: tuple[int, ...], train: bool, options: Any
) -> None:
    check_module(wide, lambda: member(3, **options), [rand(N, *shape)], train=train, steps=3)


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_float32_and_one_lane(train: bool, momentum: float | None) -> None:
    make = lambda: nn.BatchNorm2d(3, momentum=momentum)  # noqa: E731
    check_module(WideBatchNorm2d, make, [rand(N, 2, 3, 4, 4)], dtype=torch.float32, train=train)
    check_module(WideBatchNorm2d, make, [rand(1, 2, 3, 4, 4)], n=1, train=train)


def test_cumulative_average_of_lanes_with_different_counts() -> None:
    members = make_members(lambda: nn.BatchNorm1d(3, momentum=None))
    members[1](rand(5, 3))
    wide = WideBatchNorm1d.from_modules(members)
    x = rand(N, 5, 3)
    wide(x)
    for i, m in enumerate(members):
        m(x[i])
        assert_near(wide.running_mean[i], m.running_mean)
        assert_near(wide.running_var[i], m.running_var)
        assert wide.num_batches_tracked[i] == m.num_batches_tracked


def test_running_statistics_are_updated_in_place_or_not_at_all() -> None:
    mean, var = rand(N, 3), rand(N, 3).abs()
    before = mean.clone()
    wide_batch_norm(rand(N, 4, 3), None, None, mean, var, training=False)
    assert torch.equal(mean, before)
    wide_batch_norm(rand(N, 4, 3), None, None, mean, var, training=True)
    assert not torch.equal(mean, before)
    with pytest.raises(RuntimeError, match="view"):  # a copy would swallow the update
        wide_batch_norm(rand(N, 4, 3), None, None, rand(3, N).mT, var, training=True)


def test_bad_input() -> None:
    layer = WideBatchNorm2d.from_modules([nn.BatchNorm2d(3)] * 2)
    with pytest.raises(ValueError, match=r"2 lanes as dimension 0 and 5 axes in all, got \(2, 4, 3\)"):
        layer(torch.randn(2, 4, 3))
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        layer(torch.randn(2, 1, 3, 1, 1))
    with pytest.raises(ValueError, match="lane axis"):
        wide_batch_norm(rand(N, 4, 3), rand(2, 3))
