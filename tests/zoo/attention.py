"""Attention on its own: PyTorch's module, and the variants that people write by hand."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .case import zoo_case


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(batch, time, heads * size) to (batch, heads, time, size)."""
    batch, time, width = x.shape
    return x.view(batch, time, heads, width // heads).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(batch, heads, time, size) to (batch, time, heads * size)."""
    return x.transpose(1, 2).flatten(2)


def sequence(batch: int) -> tuple[tuple, dict]:
    """One float sequence of 8 steps of 16 features."""
    return (torch.randn(batch, 8, 16),), {}


def query_memory_and_padding(batch: int) -> tuple[tuple, dict]:
    """Queries, a longer memory, and which steps of the memory are padding (never the first)."""
    padding = torch.rand(batch, 9) > 0.6
    padding[:, 0] = False
    return (torch.randn(batch, 6, 16), torch.randn(batch, 9, 24)), {"key_padding_mask": padding}


class HandWritten(nn.Module):
    """The projections that the hand-written variants share."""

    def __init__(self, bias=True):
        super().__init__()
        self.to_qkv, self.out = nn.Linear(16, 48, bias=bias), nn.Linear(16, 16)

    def queries_keys_values(self, x):
        return (split_heads(part, 2) for part in self.to_qkv(x).chunk(3, dim=-1))


@zoo_case("mha_self_attention", sequence)
class SelfAttentionBlock(nn.Module):
    """nn.MultiheadAttention as self-attention, with a residual and a norm."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, dropout=0.1, batch_first=True)
        self.norm = nn.LayerNorm(16)

    def forward(self, x):
        attended, _ = self.attention(x, x, x, need_weights=False)
        return self.norm(x + attended)


@zoo_case("mha_cross_attention_padding_weights", query_memory_and_padding)
class CrossAttention(nn.Module):
    """nn.MultiheadAttention over a padded memory of another width; gives back the weights too."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, kdim=24, vdim=24, batch_first=True)

    def forward(self, query, memory, key_padding_mask=None):
        return self.attention(query, memory, memory, key_padding_mask=key_padding_mask, need_weights=True)


@zoo_case("linear_attention", sequence)
class LinearAttention(HandWritten):
    """Attention without softmax, linear in the length of the sequence: elu(x) + 1 features, einsum."""

    def __init__(self):
        super().__init__(bias=False)

    def forward(self, x):
        q, k, v = self.queries_keys_values(x)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        context = torch.einsum("bhnd,bhne->bhde", k, v)
        scale = 1 / (torch.einsum("bhnd,bhd->bhn", q, k.sum(dim=2)) + 1e-6)
        return self.out(merge_heads(torch.einsum("bhnd,bhde,bhn->bhne", q, context, scale)))


@zoo_case("rotary_attention", sequence)
class RotaryAttention(HandWritten):
    """Causal attention with rotary position embeddings."""

    def __init__(self):
        super().__init__()
        self.register_buffer("inv_freq", 10000.0 ** -(torch.arange(0, 8, 2).float() / 8), persistent=False)

    def rotate(self, x):
        positions = torch.arange(x.shape[2], device=x.device, dtype=self.inv_freq.dtype)
        angles = torch.outer(positions, self.inv_freq).repeat(1, 2)
        first, second = x.chunk(2, dim=-1)
        return x * angles.cos() + torch.cat([-second, first], dim=-1) * angles.sin()

    def forward(self, x):
        q, k, v = self.queries_keys_values(x)
        attended = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=True)
        return self.out(merge_heads(attended))


@zoo_case("alibi_attention", sequence)
class AlibiAttention(HandWritten):
    """Causal attention with a bias linear in the distance, one slope for each head."""

    def __init__(self):
        super().__init__()
        self.register_buffer("slopes", torch.tensor([2.0**-4, 2.0**-8]).view(2, 1, 1))

    def forward(self, x):
        q, k, v = self.queries_keys_values(x)
        positions = torch.arange(x.size(1), device=x.device)
        distance = positions[None, :] - positions[:, None]
        scores = q @ k.transpose(-2, -1) / k.size(-1) ** 0.5 + self.slopes * distance
        scores = scores.masked_fill(distance > 0, float("-inf"))
        return self.out(merge_heads(scores.softmax(dim=-1) @ v))


@zoo_case("perceiver", lambda batch: ((torch.randn(batch, 10, 6),), {}))
class Perceiver(nn.Module):
    """A few learned latents read the input by cross-attention, then think among themselves."""

    def __init__(self):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(4, 16) * 0.02)
        self.embed = nn.Linear(6, 16)
        self.norm_latents, self.norm_inputs = nn.LayerNorm(16), nn.LayerNorm(16)
        self.read = nn.MultiheadAttention(16, 2, batch_first=True)
        self.think = nn.TransformerEncoderLayer(16, 2, 32, 0.0, F.gelu, batch_first=True, norm_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        x = self.norm_inputs(self.embed(x))
        latents = self.latents.unsqueeze(0).expand(x.shape[0], -1, -1)
        latents = latents + self.read(self.norm_latents(latents), x, x)[0]
        return self.head(self.think(latents).mean(dim=1))


@zoo_case("causal_grouped_query_attention", sequence)
class GroupedQueryAttention(nn.Module):
    """Four query heads over two heads of keys and values; the causal mask is an option of the kernel."""

    def __init__(self):
        super().__init__()
        self.q_proj = nn.Linear(16, 16, bias=False)
        self.k_proj, self.v_proj = nn.Linear(16, 8, bias=False), nn.Linear(16, 8, bias=False)
        self.o_proj = nn.Linear(16, 16, bias=False)

    def forward(self, x):
        q = split_heads(self.q_proj(x), 4)
        k = split_heads(self.k_proj(x), 2).repeat_interleave(2, dim=1)
        v = split_heads(self.v_proj(x), 2).repeat_interleave(2, dim=1)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(merge_heads(attended))


@zoo_case("mlp_mixer", sequence)
class MlpMixer(nn.Module):
    """Two perceptrons for a block: one mixes the tokens, one mixes the channels."""

    def __init__(self):
        super().__init__()
        self.norm_tokens, self.norm_channels = nn.LayerNorm(16), nn.LayerNorm(16)
        self.mix_tokens = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 8))
        self.mix_channels = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 16))

    def forward(self, x):
        x = x + self.mix_tokens(self.norm_tokens(x).transpose(1, 2)).transpose(1, 2)
        x = x + self.mix_channels(self.norm_channels(x))
        return x.mean(dim=1)


@zoo_case("set_transformer_pooling", lambda batch: ((torch.randn(batch, 7, 16),), {}))
class PoolingByAttention(nn.Module):
    """Learned seeds attend over the elements of a set, whatever their order."""

    def __init__(self):
        super().__init__()
        self.seeds = nn.Parameter(torch.empty(1, 2, 16))
        nn.init.xavier_uniform_(self.seeds)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.before, self.after = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, elements):
        elements = F.relu(self.before(elements))
        seeds = self.seeds.repeat(elements.size(0), 1, 1)
        pooled = seeds + self.attention(seeds, elements, elements)[0]
        return (pooled + F.relu(self.after(pooled))).flatten(1)
