from __future__ import annotations

import pytest
import torch
from torch import nn

from primitives.loop import DEVICE, N, check_same_state, rand
from wide_compiler.primitives import WideDropout, wide_dropout


def test_one_rate_for_all() -> None:
    x = torch.ones(N, 400, 10, device=DEVICE)
    y = wide_dropout(x, 0.25)
    assert y.unique().tolist() == pytest.approx([0.0, 1 / 0.75])
    assert not torch.equal(y[0], y[1])  # each lane draws for itself
    assert (y.flatten(1) == 0).double().mean(1).cpu().tolist() == pytest.approx([0.25] * N, abs=0.03)
    assert wide_dropout(x, 0.25, training=False) is x


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_rate_for_each_lane(dtype: torch.dtype) -> None:
    p = torch.tensor([0.0, 0.3, 1.0], device=DEVICE)
    x = rand(3, 400, 10).to(dtype).requires_grad_()
    y = wide_dropout(x, p)
    assert y.dtype == dtype
    assert torch.equal(y[0], x[0])
    assert y[2].abs().max() == 0
    kept = y[1] != 0
    assert kept.double().mean().item() == pytest.approx(0.7, abs=0.03)
    torch.testing.assert_close(y[1][kept], x[1][kept] / 0.7)
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert (grad[0] == 1).all() and (grad[2] == 0).all()
    torch.testing.assert_close(grad[1], (kept / 0.7).to(dtype))
    assert wide_dropout(x, p, training=False) is x


def test_inplace() -> None:
    for p in (0.5, torch.tensor([0.5, 0.0, 1.0], device=DEVICE)):
        x = torch.ones(3, 50, device=DEVICE)
        y = wide_dropout(x, p, inplace=True)
        assert y is x and (x[0] == 0).any()


def test_module() -> None:
    same = [nn.Dropout(0.25) for _ in range(N)]
    wide = WideDropout.from_modules(same)
    assert wide.p == 0.25
    check_same_state(wide, same)
    differ = [nn.Dropout(p) for p in (0.0, 0.5, 1.0)]
    wide = WideDropout.from_modules(differ)
    check_same_state(wide, differ)
    assert not wide.state_dict() and "p=(0.0, 0.5, 1.0)" in repr(wide)
    x = torch.ones(3, 100)
    y = wide(x)
    assert torch.equal(y[0], x[0]) and 0 < (y[1] == 0).sum() < 100 and (y[2] == 0).all()
    assert wide.eval()(x) is x


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="lane axis"):
        wide_dropout(rand(3, 4), torch.tensor([0.1, 0.2]))
    with pytest.raises(ValueError, match="lane 1: inplace is True, lane 0 has False"):
        WideDropout.from_modules([nn.Dropout(), nn.Dropout(inplace=True)])
    with pytest.raises(TypeError, match=r"expected nn\.Dropout, got Dropout2d"):
        WideDropout.from_modules([nn.Dropout2d()])
