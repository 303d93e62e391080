"""Parameters that are added to each other get gradients of their own: a second backward adds to each once."""

import pytest
import torch

from routers.doors import DOORS, Recurrent, Sums


@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
@pytest.mark.parametrize("kind", [Sums, Recurrent])
@pytest.mark.parametrize("rows", [1, 2])
def test_gradients_of_sums_share_no_memory(door, kind, rows):
    x = torch.randn(rows, 4, dtype=torch.float64)
    model, joined, alone, expected = door(kind, x)
    for _ in range(3):  # accumulated
        joined(x).square().sum().backward()
        expected().square().sum().backward()
    for (name, p), q in zip(model.named_parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-10, atol=1e-10, msg=name)
    gradients = [p.grad for p in model.parameters()]
    places = [(g.data_ptr(), g.data_ptr() + g.nbytes) for g in gradients]
    for (_, end), (start, _) in zip(sorted(places), sorted(places)[1:], strict=False):
        assert end <= start


def test_gradients_of_a_compiled_router_share_no_memory():
    x = torch.randn(2, 4, dtype=torch.float64)
    model, joined, alone, expected = DOORS["prepared"](Sums, x)
    compiled = torch.compile(joined)
    for _ in range(3):
        compiled(x).square().sum().backward()
        expected().square().sum().backward()
    for (name, p), q in zip(model.named_parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-10, atol=1e-10, msg=name)
