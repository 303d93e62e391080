"""Models that write into tensors: in-place chains, slices, masks, views, scatters, and their own buffers."""

import torch
import torch.nn.functional as F
from torch import nn

from .case import zoo_case


def floats(*shape):
    """Inputs of one float tensor [batch, *shape]."""
    return lambda batch: ((torch.randn(batch, *shape),), {})


def floats_and_choice(choices, *shape):
    """Inputs of a float tensor [batch, *shape] and an integer below `choices` [batch]."""
    return lambda batch: ((torch.randn(batch, *shape), torch.randint(0, choices, (batch,))), {})


@zoo_case("writes_inplace_chain", floats(10))
class InplaceChain(nn.Module):
    """Chains of add_, mul_, clamp_ and relu_ on what a layer gave, and an in-place residual."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(10, 24), nn.Linear(24, 24), nn.Linear(24, 4)

    def forward(self, x):
        h = self.first(x).add_(0.5).mul_(0.7).relu_()
        residual = self.second(h)
        residual += h
        residual.sub_(0.1).clamp_(-2.0, 2.0)
        return self.head(F.relu(residual, inplace=True)).div_(3.0)


@zoo_case("writes_masks", floats(6, 8))
class MaskedWrites(nn.Module):
    """Boolean masks: `masked_fill_`, and `x[mask] = value` with a mask of every rank."""

    def __init__(self):
        super().__init__()
        self.encode, self.head = nn.Linear(8, 16), nn.Linear(16, 16)

    def forward(self, x):
        h = self.encode(x)
        h[h > 1.0] = 1.0
        h[x.sum(-1) < 0] = 0.25
        out = self.head(h)
        out.masked_fill_(out < -0.3, -0.3)
        return out


@zoo_case("writes_slices", floats(8))
class SliceWrites(nn.Module):
    """Columns set, slices incremented, a strided slice scaled, the last column overwritten."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.gain = nn.Linear(8, 12), nn.Linear(8, 2), nn.Parameter(torch.randn(4))

    def forward(self, x):
        mixed = x.clone()
        mixed[:, 0] = x[:, 1:].mean(dim=1)
        mixed[:, 1:3] += self.second(x)
        h = self.first(mixed)
        h[:, ::3] *= self.gain
        h[..., -1] = 1.0
        h[:, 4:6] = torch.tanh(x[:, 2:4])
        return h


@zoo_case("writes_fill_output_loop", floats(5, 8))
class FillOutputLoop(nn.Module):
    """The output is built column by column in a tensor of zeros."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 6) for _ in range(5))
        self.heads = nn.ModuleList(nn.Linear(8, 1) for _ in range(3))

    def forward(self, x):
        out = torch.zeros(x.shape[0], 5, 6, device=x.device, dtype=x.dtype)
        for i, layer in enumerate(self.layers):
            out[:, i] = layer(x[:, i])
        scores = x.new_empty(x.size(0), len(self.heads))
        for i, head in enumerate(self.heads):
            scores[:, i : i + 1] = head(x.mean(1))
        return out, scores


@zoo_case("writes_through_view", floats(4, 6))
class WriteThroughView(nn.Module):
    """What is written through a view, a transpose or a slice is read from the base."""

    def __init__(self):
        super().__init__()
        self.encode, self.head, self.shift = nn.Linear(6, 8), nn.Linear(8, 3), nn.Parameter(torch.randn(4))

    def forward(self, x):
        h = self.encode(x)
        flat = h.view(h.shape[0], -1)
        flat.mul_(2)
        h.transpose(1, 2)[:, 0].add_(self.shift)
        left = h[..., :4]
        left.neg_()
        flat[:, 5:9].zero_()
        return self.head(h) + flat.sum(dim=1)[:, None, None]


@zoo_case("writes_indexed", floats_and_choice(6, 6, 8))
class IndexedWrites(nn.Module):
    """Tensor indices: `index_put_`, `x[rows, picked] = ...`, `index_copy_` and `index_fill_`."""

    def __init__(self):
        super().__init__()
        self.encode, self.replace = nn.Linear(8, 8), nn.Linear(8, 8)
        self.mark = nn.Parameter(torch.randn(2, 8))
        self.register_buffer("slots", torch.tensor([1, 4]))

    def forward(self, x, picked):
        h = self.encode(x)
        rows = torch.arange(x.shape[0], device=x.device)
        h[rows, picked] = self.replace(x[rows, picked])
        h.index_put_((rows, (picked + 1) % 6), self.mark[0].expand(x.shape[0], -1), accumulate=True)
        h.index_copy_(1, self.slots, self.mark.unsqueeze(0).repeat(x.shape[0], 1, 1))
        return h.index_fill_(2, self.slots, 0.5)


@zoo_case("writes_ema_buffer", floats(10))
class EmaCentering(nn.Module):
    """A running mean kept by hand, in place under no_grad, and subtracted."""

    def __init__(self):
        super().__init__()
        self.encode, self.head = nn.Linear(10, 16), nn.Linear(16, 4)
        self.register_buffer("ema", torch.zeros(16))

    def forward(self, x):
        h = self.encode(x)
        if self.training:
            with torch.no_grad():
                self.ema.mul_(0.9).add_(h.mean(0).detach(), alpha=0.1)
        return self.head(torch.tanh(h - self.ema))


@zoo_case("writes_step_counter", floats(10))
class StepCounter(nn.Module):
    """A counter buffer that warms up a scale, and a copied buffer that remembers the last mean."""

    def __init__(self):
        super().__init__()
        self.encode, self.head = nn.Linear(10, 16), nn.Linear(16, 3)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("last_mean", torch.zeros(16))

    def forward(self, x):
        h = torch.relu(self.encode(x))
        if self.training:
            self.steps += 1
            self.last_mean.copy_(h.detach().mean(dim=0))
        warmup = torch.clamp((self.steps + 1) / 10, max=1.0)
        return self.head(h) * warmup


@zoo_case("writes_scatter_one_hot", floats_and_choice(5, 8))
class ScatterOneHot(nn.Module):
    """A label made one-hot by `scatter_`, then a running sum updated in place step by step."""

    def __init__(self):
        super().__init__()
        self.encode, self.step = nn.Linear(8 + 5, 12), nn.Linear(12, 12)

    def forward(self, x, label):
        one_hot = torch.zeros(x.size(0), 5, dtype=x.dtype, device=x.device).scatter_(
            1, label.unsqueeze(1), 1.0
        )
        state = self.encode(torch.cat([x, one_hot], dim=1))
        total = torch.zeros_like(state)
        for i in range(3):
            state = torch.tanh(self.step(state))
            total.add_(state, alpha=1.0 / (i + 1))
            total[:, : 4 * (i + 1)] *= 0.9
        return total
