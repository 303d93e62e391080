"""A contest on a GPU: draws in any order, rounded products, signs of load."""

import pytest
import torch
from torch import nn

from measure.clocks import HeldClock
from routers.test_wide_router import Dropping
from routers.towers import collective
from wide_compiler import WideConfig
from wide_compiler.measure import Candidate, Contest, use_clock

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WIDE_COMPILER_CACHE", str(tmp_path))


def dropout(x):
    return nn.functional.dropout(x, 0.3)


def attention(x):
    return nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("draw", [dropout, attention])
def test_draws_in_another_order_are_compared(draw, dtype):
    x, y = (torch.rand(2, 4, 16, 32, device="cuda", dtype=dtype, requires_grad=True) for _ in range(2))
    forwards = Candidate(lambda: [draw(x), draw(y)], [x, y])
    backwards = Candidate(lambda: [draw(y), draw(x)][::-1], [x, y])
    wrong = Candidate(lambda: [draw(x), 1.5 * draw(y)], [x, y])
    with Contest(forwards, True, True, reordered=True) as contest:
        assert contest.problem(backwards) is None
        assert "is off by" in contest.problem(wrong)
    assert x.grad is None


def test_products_of_ten_bits_are_no_mistake():
    conv = nn.Conv2d(64, 64, 3).cuda()
    x = torch.randn(8, 64, 32, 32, device="cuda")
    exact = Candidate(lambda: conv.double()(x.double()).float(), [])
    rounded = Candidate(lambda: conv.float()(x), [])
    with Contest(exact, False, True) as contest:
        assert contest.problem(rounded) is None
        assert "is off by" in contest.problem(Candidate(lambda: 1.1 * conv.float()(x), []))


def test_the_clock_of_a_gpu():
    x = torch.randn(512, 512, device="cuda")
    small, large = Candidate(lambda: x[:8] @ x), Candidate(lambda: [x @ x @ x for _ in range(20)])
    with Contest(small, False, True) as contest:
        contest.time({"small": small, "large": large}, 0.02, rounds=9)
    assert contest.seconds["small"] < contest.seconds["large"]


@pytest.mark.parametrize(("seconds", "how"), [(0.5, "together"), (1.5, "loop")])
def test_towers_that_draw_are_compared_and_timed(seconds, how):
    times = {"together": seconds, "sequence": 1.0, "wide": 0.5}
    router = collective(*[Dropping(str(i)) for i in range(4)], config=WideConfig()).cuda()
    with use_clock(HeldClock(lambda label: times.get(label, 2.0))):
        router.wide_forward(torch.randn(3, 5, 6, dtype=torch.float64, device="cuda"))
    (row,) = router.explain().rows
    assert (row.how, row.why) == (how, "measured")
