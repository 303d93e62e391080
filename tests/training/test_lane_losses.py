"""A loss of every lane is what torch.nn.functional gives for that lane alone."""

import pytest
import torch
import torch.nn.functional as F

from wide_compiler.training import lane_losses

N, B, C = 3, 5, 4
ELEMENTWISE = {
    "mse": (lane_losses.mse, F.mse_loss, {}),
    "l1": (lane_losses.l1, F.l1_loss, {}),
    "smooth_l1": (lane_losses.smooth_l1, F.smooth_l1_loss, {"beta": 0.3}),
    "huber": (lane_losses.huber, F.huber_loss, {"delta": 0.3}),
    "bce": (
        lane_losses.bce_with_logits,
        F.binary_cross_entropy_with_logits,
        {"pos_weight": torch.tensor(2.0)},
    ),
    "kl": (lane_losses.kl_div, F.kl_div, {}),
    "kl logs": (lane_losses.kl_div, F.kl_div, {"log_target": True}),
}


def same(ours, stock, out, target, shared, **options):
    """Values and gradients, for lanes with targets of their own or one for all."""
    out = out.double().requires_grad_()
    losses = ours(out, target[0] if shared else target, **options)
    assert losses.shape == (N,)
    alone = [o.detach().clone().requires_grad_() for o in out]
    expected = [stock(o, target[0 if shared else i], **options) for i, o in enumerate(alone)]
    torch.testing.assert_close(losses, torch.stack(expected), equal_nan=True)
    if not losses.isnan().any():
        losses.sum().backward()
        sum(expected).backward()
        torch.testing.assert_close(out.grad, torch.stack([o.grad for o in alone]))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("shape", [(), (B,), (B, 2), (B, 2, 3, 2)])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise(name, reduction, shape, shared):
    ours, stock, options = ELEMENTWISE[name]
    target = torch.rand(N, *shape).double()
    same(ours, stock, torch.randn(N, *shape), target, shared, reduction=reduction, **options)


@pytest.mark.parametrize("shared", [False, True])
def test_kl_by_batch(shared):
    out = torch.randn(N, B, C).log_softmax(-1)
    target = torch.rand(N, B, C).softmax(-1).double()
    same(lane_losses.kl_div, F.kl_div, out, target, shared, reduction="batchmean")


CLASSIFIED = {
    "plain": {},
    "sum": {"reduction": "sum"},
    "weighted": {"weight": torch.tensor([0.5, 1.0, 2.0, 0.1]).double()},
    "ignoring": {"ignore_index": 1},
    "both": {"ignore_index": 1, "weight": torch.tensor([0.5, 1.0, 2.0, 0.1]).double()},
}


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("extra", [(), (3,), (2, 3)])
@pytest.mark.parametrize("options", CLASSIFIED)
def test_classes(options, extra, shared):
    out, target = torch.randn(N, B, C, *extra), torch.randint(0, C, (N, B, *extra))
    options = CLASSIFIED[options]
    same(lane_losses.cross_entropy, F.cross_entropy, out, target, shared, **options)
    same(lane_losses.nll, F.nll_loss, out.log_softmax(2), target, shared, **options)


def test_one_row_a_lane_and_nothing_to_count():
    out, target = torch.randn(N, C), torch.randint(0, C, (N,))
    same(lane_losses.cross_entropy, F.cross_entropy, out, target, shared=False)
    same(lane_losses.cross_entropy, F.cross_entropy, out, target, shared=True)
    all_ignored = torch.full((N, B), -100)
    same(lane_losses.cross_entropy, F.cross_entropy, torch.randn(N, B, C), all_ignored, shared=False)


@pytest.mark.parametrize("shared", [False, True])
def test_probabilities(shared):
    out, target = torch.randn(N, B, C, 2), torch.rand(N, B, C, 2).softmax(2).double()
    same(lane_losses.cross_entropy, F.cross_entropy, out, target, shared, label_smoothing=0.2)


@pytest.mark.parametrize("options", CLASSIFIED)
@pytest.mark.parametrize("probabilities", [False, True])
def test_smoothing_by_lane(options, probabilities):
    options = CLASSIFIED[options]
    if probabilities and "ignore_index" in options:
        pytest.skip("nothing to ignore")
    smoothing = [0.0, 0.1, 0.5]
    out = torch.randn(N, B, C).double()
    target = torch.rand(N, B, C).softmax(2).double() if probabilities else torch.randint(0, C, (N, B))
    losses = lane_losses.cross_entropy(out, target, label_smoothing=smoothing, **options)
    for lane, amount in enumerate(smoothing):
        expected = F.cross_entropy(out[lane], target[lane], label_smoothing=amount, **options)
        torch.testing.assert_close(losses[lane], expected)


def test_bad_input():
    out = torch.randn(N, B, C)
    with pytest.raises(
        ValueError, match=r"a target \(7,\) does not fit outputs \(3, 5, 4\); expected \(3, 5\)"
    ):
        lane_losses.cross_entropy(out, torch.zeros(7, dtype=torch.long))
    with pytest.raises(ValueError, match=r"expected \(3, 5, 4\), lanes first, or \(5, 4\) for all lanes"):
        lane_losses.mse(out, torch.zeros(3, 4))
    with pytest.raises(ValueError, match=r"label_smoothing of lane 1 is 1\.5"):
        lane_losses.cross_entropy(out, torch.zeros(N, B, dtype=torch.long), label_smoothing=[0, 1.5, 0])
    with pytest.raises(ValueError, match="unknown reduction 'none'"):
        lane_losses.mse(out, out, reduction="none")
    with pytest.raises(ValueError, match="expected at least 2 dims, lanes first"):
        lane_losses.cross_entropy(torch.randn(N), torch.zeros(N, dtype=torch.long))
