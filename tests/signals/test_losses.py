"""Losses with masks, weights and reductions are sums and counts over all shards, however uneven."""

import pytest
import torch
import torch.nn.functional as F

import wide_compiler.signals as gt
from signals.placed import signal

pytestmark = pytest.mark.usefixtures("workers")

ROWS, CLASSES = 7, 5
g = torch.Generator().manual_seed(3)
logits = torch.randn(ROWS, CLASSES, generator=g, dtype=torch.float64)
images = torch.randn(ROWS, CLASSES, 3, 2, generator=g, dtype=torch.float64)
labels = torch.randint(0, CLASSES, (ROWS,), generator=g)
maps = torch.randint(0, CLASSES, (ROWS, 3, 2), generator=g)
padded = labels.clone()
padded[3:] = -100  # with three workers the last shards are padding only
padded_maps = maps.clone()
padded_maps[2:] = -100
weights = torch.rand(CLASSES, generator=g, dtype=torch.float64)
targets = torch.rand(ROWS, CLASSES, generator=g, dtype=torch.float64)
signs = torch.where(targets > 0.5, 1.0, -1.0).double()

LOSSES = {
    "cross entropy": lambda t, r: F.cross_entropy(t(logits), t(labels), reduction=r),
    "ignore_index": lambda t, r: F.cross_entropy(t(logits), t(padded), reduction=r),
    "class weights": lambda t, r: F.cross_entropy(t(logits), t(labels), t(weights), reduction=r),
    "both": lambda t, r: F.cross_entropy(t(logits), t(padded), t(weights), reduction=r),
    "label smoothing": lambda t, r: F.cross_entropy(
        t(logits), t(padded), t(weights), reduction=r, label_smoothing=0.1
    ),
    "probabilities": lambda t, r: F.cross_entropy(t(logits), t(targets), t(weights), reduction=r),
    "images": lambda t, r: F.cross_entropy(t(images), t(padded_maps), t(weights), reduction=r),
    "images without weights": lambda t, r: F.cross_entropy(t(images), t(padded_maps), reduction=r),
    "nll": lambda t, r: F.nll_loss(t(logits), t(padded), t(weights), ignore_index=-100, reduction=r),
    "nll images": lambda t, r: F.nll_loss(t(images), t(padded_maps), reduction=r),
    "all padding": lambda t, r: F.nll_loss(t(logits), t(torch.full_like(labels, -100)), reduction=r),
    "bce": lambda t, r: F.binary_cross_entropy(t(targets), t(targets.flip(0)), t(targets), reduction=r),
    "bce logits": lambda t, r: F.binary_cross_entropy_with_logits(
        t(logits), t(targets), t(targets), pos_weight=t(weights), reduction=r
    ),
    "mse": lambda t, r: F.mse_loss(t(logits), t(targets), reduction=r, weight=t(targets)),
    "l1": lambda t, r: F.l1_loss(t(logits), t(targets), reduction=r),
    "huber": lambda t, r: F.huber_loss(t(logits), t(targets), reduction=r, weight=t(targets)),
    "smooth l1": lambda t, r: F.smooth_l1_loss(t(logits), t(targets), reduction=r),
    "kl": lambda t, r: F.kl_div(t(logits), t(targets), reduction=r),
    "multi margin": lambda t, r: F.multi_margin_loss(t(logits), t(labels), weight=t(weights), reduction=r),
    "multilabel margin": lambda t, r: F.multilabel_margin_loss(
        t(logits), t(labels[:, None].repeat(1, CLASSES)), reduction=r
    ),
    "multilabel soft margin": lambda t, r: F.multilabel_soft_margin_loss(
        t(logits), t((targets > 0.5).double()), weight=t(weights), reduction=r
    ),
    "soft margin": lambda t, r: F.soft_margin_loss(t(logits), t(signs), reduction=r),
    "hinge": lambda t, r: F.hinge_embedding_loss(t(logits), t(signs), reduction=r),
    "cosine": lambda t, r: F.cosine_embedding_loss(t(logits), t(targets), t(signs[:, 0]), reduction=r),
    "triplet": lambda t, r: F.triplet_margin_loss(t(logits), t(targets), t(logits.flip(0)), reduction=r),
    "gaussian": lambda t, r: F.gaussian_nll_loss(t(logits), t(targets), t(targets), reduction=r),
    "poisson": lambda t, r: F.poisson_nll_loss(t(logits), t(targets), reduction=r),
    "ctc": lambda t, r: F.ctc_loss(
        t(logits[:, None].log_softmax(-1)), t(labels[None, :2] % 4 + 1), t(torch.tensor([7])),
        t(torch.tensor([2])),
        reduction=r,
    ),
}  # fmt: skip


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_of_shards_is_the_loss_of_all_rows(name, axis):
    signal("three", [0, 1, 2], axis=axis)
    for reduction in ("mean", "sum", "none"):
        results = []
        for place in (False, True):
            leaves = []

            def t(x, place=place, leaves=leaves):
                made = gt.tensor(x) if place else x.clone()
                if x.is_floating_point() and not leaves:
                    made.requires_grad_()
                    leaves.append(made)
                return made

            with gt.signal.context("three"):
                loss = LOSSES[name](t, reduction)
            loss.sum().backward()
            results.append((loss.detach().cpu(), leaves[0].grad.cpu()))
        for got, expected in zip(results[1], results[0], strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12, equal_nan=True)
