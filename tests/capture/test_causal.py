"""Masks that are written out but causal become `is_causal`; all others stay."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wide_compiler

N, TOKENS, WIDTH = 3, 6, 8


class Attention(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.qkv, self.mask = nn.Linear(WIDTH, 3 * WIDTH), mask

    def forward(self, x, *more):
        q, k, v = self.qkv(x).unsqueeze(1).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v, self.mask(x, *more)).squeeze(1)


def positions(x):
    """As Hugging Face writes it: for every row of the batch, though all are alike."""
    at = torch.arange(x.shape[1]).expand(x.shape[0], -1)
    return (at[:, None, :] <= at[:, :, None])[:, None]


def added(x):
    ones = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool)
    return torch.zeros(x.shape[1], x.shape[1]).masked_fill(ones.triu(1), torch.finfo(torch.float32).min)


def window(x):
    at = torch.arange(x.shape[1])
    return (at[None] <= at[:, None]) & (at[None] > at[:, None] - 3)


def tokens_and_one(x):
    at = torch.arange(x.shape[1])
    return at[None] <= at[:, None] + 1


def weighted(x):
    return added(x) + 0.1 * torch.eye(x.shape[1])


def by_batch(x):
    """Causal for two rows only."""
    at = torch.arange(x.shape[1])
    return at[None] <= at[:, None] + (x.shape[0] - 2)


def from_input(x):
    at = torch.arange(x.shape[1])
    return (at[None] <= at[:, None]) | (x.sum() > 1e9)


def padding(x, real):
    return positions(x) & real[:, None, None]


def wide_of(mask, *more):
    members = [Attention(mask) for _ in range(N)]
    x = torch.randn(N, 2, TOKENS, WIDTH)
    wide = wide_compiler.compile(members, (x[0], *more))
    for batch in (2, 4):
        x = torch.randn(N, batch, TOKENS, WIDTH)
        given = [m[:1].expand(batch, -1) for m in more]
        stacked = [g.expand(N, *g.shape) for g in given]
        want = torch.stack([m(row, *given) for m, row in zip(members, x, strict=True)])
        torch.testing.assert_close(wide.stacked(x, *stacked), want)
    return wide


def masks(wide):
    """Of each attention: is there a mask, is it causal?"""
    nodes = wide.programs.latest.captured.graph.nodes
    target = torch.ops.aten.scaled_dot_product_attention.default
    return [(node.args[3] is not None, node.args[5:6] == (True,)) for node in nodes if node.target is target]


@pytest.mark.parametrize("mask", [positions, added])
def test_a_causal_mask_is_left_out(mask):
    assert masks(wide_of(mask)) == [(False, True)]


@pytest.mark.parametrize("mask", [window, tokens_and_one, weighted, by_batch, from_input])
def test_any_other_mask_stays(mask):
    assert masks(wide_of(mask)) == [(True, False)]


def test_a_mask_that_reads_an_input_stays():
    assert masks(wide_of(padding, torch.ones(2, TOKENS, dtype=torch.bool))) == [(True, False)]


def test_more_tokens_than_a_window_are_not_taken_for_causal():
    """Causal as long as the window: the capture for longer sequences must look again."""
    members = [Attention(window) for _ in range(N)]
    wide = wide_compiler.compile(members, torch.randn(2, 3, WIDTH))
    for tokens in (3, 5, 4, 7):
        x = torch.randn(N, 2, tokens, WIDTH)
        torch.testing.assert_close(
            wide.stacked(x), torch.stack([m(r) for m, r in zip(members, x, strict=True)])
        )
