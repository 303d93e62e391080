"""One comparer, one table: rounding passes, mistakes do not, for every dtype."""

import pytest
import torch

from wide_compiler.measure.compare import (
    ROUNDED_PRODUCTS,
    ROUNDING,
    SINGLE,
    difference,
    distances,
    error_of,
    model_difference,
    one_op,
    whole_model,
)

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128]


@pytest.mark.parametrize("dtype", FLOATS)
def test_rounding_passes_and_mistakes_do_not(dtype):
    want = torch.randn(64, 64, dtype=torch.complex128 if dtype.is_complex else torch.float64)
    rounded = want.to(dtype) + torch.finfo(dtype).eps * want.to(dtype)
    for limits in (one_op(dtype), whole_model(dtype, False)):
        assert difference(rounded, want.to(dtype), limits) is None
        assert "is off by" in difference(1.2 * rounded, want.to(dtype), limits)
        assert difference(rounded.flip(0), want.to(dtype), limits)


def test_one_number_that_is_far_off():
    want = torch.randn(1000)
    got = want.clone()
    got[3] += 0.5 * SINGLE * want.abs().max()  # a ReLU that rounds to the other side
    assert difference(got, want, whole_model(torch.float32, False)) is not None
    got[3] = want[3] + 1e-3 * want.abs().max()
    assert difference(got, want, whole_model(torch.float32, False)) is None
    assert difference(got, want, one_op(torch.float32)) is not None


def test_products_of_fewer_bits_widen_the_limit():
    precision = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        assert whole_model(torch.float32, False).mean == ROUNDED_PRODUCTS
        assert whole_model(torch.float64, False).mean == ROUNDING[torch.float64][1]
        torch.set_float32_matmul_precision("highest")
        assert whole_model(torch.float32, False).mean == ROUNDING[torch.float32][1]
    finally:
        torch.set_float32_matmul_precision(precision)


def test_shapes_dtypes_and_whole_numbers():
    x = torch.arange(4)
    assert error_of(x.float(), x) == "gives (4,) torch.float32, expected (4,) torch.int64"
    assert error_of(x[:2], x) == "gives (2,) torch.int64, expected (4,) torch.int64"
    assert error_of(x + 1, x) == "gives different numbers"
    assert difference(x.clone(), x, one_op(x.dtype)) is None
    empty = torch.empty(0, 3)
    assert difference(empty, empty, whole_model(empty.dtype, False)) is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_must_be_so_in_both(value):
    want = torch.tensor([1.0, value, 2.0])
    limits = whole_model(torch.float32, False)
    assert difference(want.clone(), want, limits) is None
    assert difference(torch.tensor([1.0, 5.0, 2.0]), want, limits)
    assert difference(-want, want, limits)
    assert difference(torch.tensor([1.0, value, 2.5]), want, limits)


def test_tiny_tensors_are_held_against_the_largest():
    large, noise = torch.randn(100), 1e-8 * torch.randn(100)
    assert model_difference([large, noise], [large, -noise]) is None
    assert model_difference([noise], [-noise])
    assert model_difference([large, None], [large, torch.zeros(3)]) is None
    assert model_difference([large, None], [large, torch.ones(3)]) == "lacks a gradient"


def test_noise_that_was_measured_widens_the_limit():
    want = torch.randn(100)
    got = want + 0.01 * torch.randn(100)
    assert model_difference([got], [want])
    assert model_difference([got], [want], distances([want + 0.01 * torch.randn(100)], [want])) is None


def test_sparse_and_eight_bit_tensors():
    sparse = torch.eye(3).to_sparse()
    assert difference(sparse, torch.eye(3).to_sparse(), one_op(torch.float32)) is None
    eight = torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn)
    assert difference(eight, eight.clone(), one_op(eight.dtype)) is None
    assert difference(eight, torch.tensor([1.0, 3.0]).to(eight.dtype), one_op(eight.dtype))
