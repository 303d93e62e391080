"""Whole transformers, hand-written or made of the layers of torch.nn."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from .attention import merge_heads, split_heads
from .case import zoo_case


def tokens(batch: int) -> tuple[tuple, dict]:
    """Token ids: 8 of a vocabulary of 20."""
    return (torch.randint(0, 20, (batch, 8)),), {}


def padded_sequence(batch: int) -> tuple[tuple, dict]:
    """A float sequence and which of its steps are padding: each sequence has a length of its own."""
    lengths = torch.randint(3, 9, (batch, 1))
    return (torch.randn(batch, 8, 16),), {"src_key_padding_mask": torch.arange(8) >= lengths}


class Block(nn.Module):
    """A pre-norm block; the bias is added to the attention scores, and may be a mask."""

    def __init__(self, width=16, heads=2):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width), nn.Dropout(0.1))

    def forward(self, x, bias):
        q, k, v = (split_heads(part, self.heads) for part in self.qkv(self.ln_1(x)).chunk(3, dim=-1))
        scores = q @ k.transpose(-2, -1) * (1.0 / math.sqrt(k.size(-1))) + bias
        x = x + self.proj(merge_heads(F.softmax(scores, dim=-1) @ v))
        return x + self.mlp(self.ln_2(x))


@zoo_case("gpt_tied", tokens)
class Gpt(nn.Module):
    """A small GPT: tied embedding and head, learned positions, the causal mask as a buffer."""

    def __init__(self, vocabulary=20, width=16, longest=10):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(longest, width)
        self.h = nn.ModuleList([Block(width) for _ in range(2)])
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.lm_head.weight = self.wte.weight
        self.register_buffer("mask", torch.full((longest, longest), float("-inf")).triu(1))

    def forward(self, idx):
        T = idx.size(1)
        x = self.wte(idx) + self.wpe(torch.arange(T, device=idx.device))
        for block in self.h:
            x = block(x, self.mask[:T, :T])
        return self.lm_head(self.ln_f(x))


def drawn_again(stack: nn.Module) -> nn.Module:
    """Draw the matrices again: torch.nn stacks copies of one layer, all with the same weights."""
    for parameter in stack.parameters():
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter)
    return stack


@zoo_case("encoder_post_norm", lambda batch: ((torch.randn(batch, 8, 16),), {}))
def encoder_post_norm():
    """nn.TransformerEncoder as it is by default."""
    layer = nn.TransformerEncoderLayer(16, 2, dim_feedforward=32, batch_first=True)
    return drawn_again(nn.TransformerEncoder(layer, num_layers=2))


@zoo_case("encoder_pre_norm", lambda batch: ((torch.randn(batch, 8, 16),), {}))
def encoder_pre_norm():
    """nn.TransformerEncoder with norm_first, gelu and a last norm."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, 0.1, "gelu", batch_first=True, norm_first=True)
    return drawn_again(nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(16), enable_nested_tensor=False))


@zoo_case("encoder_padding_mask", padded_sequence)
def encoder_padding_mask():
    """nn.TransformerEncoder over sequences of many lengths."""
    layer = nn.TransformerEncoderLayer(16, 2, dim_feedforward=32, batch_first=True)
    return drawn_again(nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False))


@zoo_case("encoder_decoder", lambda batch: (tokens(batch)[0] + (torch.randint(0, 20, (batch, 6)),), {}))
class EncoderDecoder(nn.Module):
    """nn.Transformer for translation, with its causal mask for the target."""

    def __init__(self):
        super().__init__()
        self.source, self.target = nn.Embedding(20, 16), nn.Embedding(20, 16)
        self.transformer = nn.Transformer(16, 2, 1, 1, dim_feedforward=32, dropout=0.1, batch_first=True)
        self.generator = nn.Linear(16, 20)

    def forward(self, src, tgt):
        mask = nn.Transformer.generate_square_subsequent_mask(tgt.size(1), tgt.device, torch.bool)
        out = self.transformer(self.source(src), self.target(tgt), tgt_mask=mask, tgt_is_causal=True)
        return self.generator(out).log_softmax(dim=-1)


@zoo_case("vit_cls_token", lambda batch: ((torch.randn(batch, 3, 12, 12),), {}))
class VisionTransformer(nn.Module):
    """Patches by a strided convolution, a class token in front, learned positions."""

    def __init__(self):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, 16, kernel_size=4, stride=4)
        self.cls_token = nn.Parameter(torch.randn(1, 1, 16) * 0.02)
        self.pos_embed = nn.Parameter(torch.randn(1, 10, 16) * 0.02)
        self.blocks = nn.ModuleList([Block() for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 5)

    def forward(self, images):
        x = self.patch_embed(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1) + self.pos_embed
        for block in self.blocks:
            x = block(x, 0.0)
        return self.head(self.norm(x)[:, 0])


@zoo_case("swin_window_bias", lambda batch: ((torch.randn(batch, 8, 8, 16),), {}))
class SwinBlock(nn.Module):
    """Attention in shifted windows of 4 by 4, with a table of relative position biases."""

    def __init__(self, window=4, heads=2):
        super().__init__()
        self.window, self.block = window, Block()
        self.bias_table = nn.Parameter(torch.randn((2 * window - 1) ** 2, heads) * 0.02)
        place = torch.stack(
            torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")
        ).flatten(1)
        offset = place[:, :, None] - place[:, None, :] + window - 1
        self.register_buffer("relative_index", offset[0] * (2 * window - 1) + offset[1])

    def forward(self, x):
        B, H, W, C = x.shape
        w = self.window
        x = torch.roll(x, shifts=(-w // 2, -w // 2), dims=(1, 2))
        windows = x.view(B, H // w, w, W // w, w, C).permute(0, 1, 3, 2, 4, 5).reshape(-1, w * w, C)
        bias = self.bias_table[self.relative_index.view(-1)].view(w * w, w * w, -1).permute(2, 0, 1)
        windows = self.block(windows, bias.unsqueeze(0))
        x = windows.view(B, H // w, W // w, w, w, C).permute(0, 1, 3, 2, 4, 5).reshape(B, H, W, C)
        return torch.roll(x, shifts=(w // 2, w // 2), dims=(1, 2))


@zoo_case("t5_relative_buckets", tokens)
class T5Encoder(nn.Module):
    """Relative positions in buckets, logarithmic far away; one bias for each bucket and head."""

    def __init__(self, buckets=8, heads=2):
        super().__init__()
        self.buckets = buckets
        self.shared, self.relative_attention_bias = nn.Embedding(20, 16), nn.Embedding(buckets, heads)
        self.layers = nn.ModuleList([Block() for _ in range(2)])
        self.final_norm = nn.RMSNorm(16)

    def bucket(self, relative, furthest=16):
        half, exact = self.buckets // 2, self.buckets // 4
        distance = relative.abs()
        steps = torch.log(distance.clamp(min=1).float() / exact) / math.log(furthest / exact) * (half - exact)
        far = (exact + steps.long()).clamp(max=half - 1)
        return (relative > 0).long() * half + torch.where(distance < exact, distance, far)

    def forward(self, input_ids):
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        buckets = self.bucket(positions[None, :] - positions[:, None])
        bias = self.relative_attention_bias(buckets).permute(2, 0, 1).unsqueeze(0)
        x = self.shared(input_ids)
        for layer in self.layers:
            x = layer(x, bias)
        return {"last_hidden_state": self.final_norm(x)}


@zoo_case("decoder_cross_attention", lambda batch: (tokens(batch)[0] + (torch.randn(batch, 9, 16),), {}))
class CaptionDecoder(nn.Module):
    """nn.TransformerDecoder: words attend to the words before them and to features of an image."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 16, padding_idx=0), nn.Linear(16, 20)
        layer = nn.TransformerDecoderLayer(16, 2, 32, dropout=0.1, batch_first=True, norm_first=True)
        self.decoder = drawn_again(nn.TransformerDecoder(layer, num_layers=2))
        self.register_buffer("causal", torch.ones(10, 10, dtype=torch.bool).triu(1), persistent=False)

    def forward(self, words, features):
        mask = self.causal[: words.shape[1], : words.shape[1]]
        return self.head(self.decoder(self.embed(words), features, tgt_mask=mask, tgt_is_causal=True))
