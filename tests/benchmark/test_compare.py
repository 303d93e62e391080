"""The yardstick itself."""

import math

import pytest
import torch

from wide_compiler.benchmark.benchmark_row import first_lanes, largest_error


def test_error_is_relative_to_the_largest_number_of_the_group():
    want = {"gradients": [torch.tensor([1e-6]), torch.tensor([-50.0, 3.0])]}
    got = {"gradients": [torch.tensor([2e-6]), torch.tensor([-50.0, 3.5])]}
    assert largest_error(got, want) == pytest.approx(0.01)


def test_the_worst_group_counts_and_missing_groups_do_not():
    want = {"losses": [torch.ones(2)], "gradients": [torch.ones(2)], "buffer": [torch.ones(2)]}
    got = {"losses": [torch.ones(2)], "gradients": [torch.tensor([1.0, 1.5])]}
    assert largest_error(got, want) == 0.5


@pytest.mark.parametrize(
    "got",
    [
        [torch.zeros(3)],
        [torch.tensor([1.0, math.nan])],
        [torch.tensor([1.0, math.inf])],
        [],
    ],
)
def test_another_shape_or_what_is_not_finite_is_infinitely_far(got):
    assert largest_error({"outputs": got}, {"outputs": [torch.ones(2)]}) == math.inf


def test_infinities_in_the_same_place_are_equal():
    values = torch.tensor([1.0, math.inf])
    assert largest_error({"outputs": [values]}, {"outputs": [values.clone()]}) == 0.0


def test_random_zeros_are_left_out_but_not_another_share_of_them():
    ones = torch.ones(10_000)
    ours, theirs = (torch.nn.functional.dropout(ones) for _ in range(2))
    assert largest_error({"outputs": [ours]}, {"outputs": [theirs]}, random=True) == 0.0
    assert largest_error({"outputs": [ours * 1.1]}, {"outputs": [theirs]}, random=True) == pytest.approx(0.1)
    rare = torch.nn.functional.dropout(ones, 0.4) * 1.2
    assert largest_error({"outputs": [rare]}, {"outputs": [theirs]}, random=True) == math.inf


def test_first_lanes():
    assert first_lanes({"outputs": [torch.arange(5)]}, 2)["outputs"][0].tolist() == [0, 1]
