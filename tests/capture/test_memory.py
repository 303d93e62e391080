"""Layouts that stacking loses, and copies that keep them."""

import copy

import pytest
import torch
from torch import nn

import wide_compiler
from fn import Fn
from wide_compiler import WideConfig
from wide_compiler.capture.strides import laid_out, overlaps_itself

LAYOUTS = {
    "contiguous": (torch.randn(3, 4), False),
    "transposed": (torch.randn(4, 3).t(), False),
    "with gaps": (torch.randn(3, 8)[:, ::2], False),
    "channels last": (torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), False),
    "expanded": (torch.randn(3, 1).expand(3, 4), True),
    "windows": (torch.randn(6).as_strided((3, 4), (1, 1)), True),
    "one number": (torch.randn(()).expand(2, 2), True),
    "empty": (torch.randn(0, 4), False),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_copy_has_the_numbers_the_strides_and_memory_of_its_own(name):
    x, overlaps = LAYOUTS[name]
    assert overlaps_itself(x) == overlaps
    copied = laid_out(x.contiguous(), x)
    assert torch.equal(copied, x)
    assert copied.data_ptr() != x.data_ptr() or not x.numel()
    assert copied.stride() == x.stride() or not x.numel()


def test_copies_of_a_wide_model_keep_elements_that_share_memory():
    def forward(m, x):
        m.seen[:, 0] += x.sum()
        return m.seen * m.w

    models = [Fn(forward, w=nn.Parameter(torch.randn(4))) for _ in range(2)]
    for model in models:
        model.register_buffer("seen", torch.randn(3, 1).expand(3, 4))
    wide = copy.deepcopy(wide_compiler.compile(models, torch.ones(2), config=WideConfig(tune_seconds=0)))
    wide.select_lanes([1, 0])
    x = torch.randn(2)
    torch.testing.assert_close(wide.shared(x), torch.stack([models[1](x), models[0](x)]))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.float64])
def test_small_floats_and_nans_are_held_and_given(dtype):
    models = [
        Fn(lambda m, x: m.table.float() * m.w + x.float(), w=nn.Parameter(torch.randn(4))) for _ in "123"
    ]
    for lane, model in enumerate(models):
        model.register_buffer("table", torch.tensor([lane, 2, torch.nan, 0.5]).to(dtype))
    x = torch.ones(2, 4).to(dtype)
    wide = wide_compiler.compile(models, x, config=WideConfig(tune_seconds=0))
    assert wide.explain(measure=False).coverage == 1.0
    expected = torch.stack([model(x) for model in models])
    torch.testing.assert_close(wide.shared(x), expected, equal_nan=True)
    torch.testing.assert_close(torch.stack(wide.each([x] * 3)), expected, equal_nan=True)
