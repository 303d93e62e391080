from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from primitives.loop import N, check_module, rand
from wide_compiler.primitives import WideLayerNorm, wide_layer_norm


@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
@pytest.mark.parametrize("normalized", [(5,), (2, 5)])
@pytest.mark.parametrize(
    "options", [{}, {"bias": False}, {"elementwise_affine": False}, {"eps": 0.1}], ids=str
)
def test_module_is_the_loop(shape: tuple[int, ...], normalized: tuple[int, ...], options: Any) -> None:
    check_module(WideLayerNorm, lambda: nn.LayerNorm(normalized, **options), [rand(N, *shape, *normalized)])


def test_float32_and_one_lane() -> None:
    check_module(WideLayerNorm, lambda: nn.LayerNorm(16), [rand(N, 6, 16)], dtype=torch.float32)
    check_module(WideLayerNorm, lambda: nn.LayerNorm(16), [rand(1, 1, 16)], n=1)


def test_result_has_the_inputs_dtype() -> None:
    x = rand(N, 2, 4).bfloat16()
    assert wide_layer_norm(x, (4,), rand(N, 4).float(), rand(N, 4).float()).dtype == torch.bfloat16


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="lane axis"):
        wide_layer_norm(rand(N, 2, 4), (4,), rand(2, 4))
