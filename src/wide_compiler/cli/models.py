"""The built-in models: small, of many kinds, and without dropout, so that two runs can be compared."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(16, 32)
        self.head = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.hidden(x)))


class DeepMlp(nn.Module):
    """Pre-norm residual layers, as deep as a small transformer without its attention."""

    def __init__(self, width: int = 24, depth: int = 6) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + F.gelu(layer(norm(x)))
        return self.head(x)


class ResBlock(nn.Module):
    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(x + self.bn2(self.conv2(out)))


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1, groups=2),
            nn.GroupNorm(4, 16),
            nn.SiLU(),
            nn.AdaptiveAvgPool2d(1),
        )
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).flatten(1))


class UNet(nn.Module):
    """One level down, one up, and the skip connection between."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv2d(1, 8, 3, padding=1)
        self.down = nn.Conv2d(8, 16, 4, stride=2, padding=1)
        self.norm = nn.InstanceNorm2d(16, affine=True)
        self.up = nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1)
        self.leave = nn.Conv2d(16, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = F.relu(self.enter(x))
        coarse = F.relu(self.norm(self.down(fine)))
        return self.leave(torch.cat([fine, self.up(coarse)], dim=1))


class Transformer(nn.Module):
    """PyTorch's own encoder over a float sequence."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x).mean(dim=1))


class GptBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """Causal attention, learned positions, the head tied to the token embedding."""

    def __init__(self, vocabulary: int = 32, width: int = 16, longest: int = 16) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(longest, width)
        self.blocks = nn.ModuleList(GptBlock(width, heads=2) for _ in range(2))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 16, num_layers=2, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        outputs, _ = self.lstm(x)
        return self.head(outputs[:, -1])


@dataclass(frozen=True)
class BuiltIn:
    """`make()` gives a member with fresh weights, `sample(batch)` an input for it."""

    about: str
    make: Callable[[], nn.Module]
    sample: Callable[[int], Tensor]


def _floats(*shape: int) -> Callable[[int], Tensor]:
    return lambda batch: torch.randn(batch, *shape)


def _token_ids(batch: int) -> Tensor:
    return torch.randint(0, 32, (batch, 10))


MODELS: dict[str, BuiltIn] = {
    "mlp": BuiltIn("two linear layers", Mlp, _floats(16)),
    "deep_mlp": BuiltIn("six residual layers, LayerNorm", DeepMlp, _floats(24)),
    "resblock": BuiltIn("two convolutions, BatchNorm, skip", ResBlock, _floats(8, 8, 8)),
    "convnet": BuiltIn("convolutions, norms, pooling", ConvNet, _floats(3, 12, 12)),
    "unet": BuiltIn("down, up and a skip connection", UNet, _floats(1, 8, 8)),
    "transformer": BuiltIn("nn.TransformerEncoder", Transformer, _floats(6, 16)),
    "gpt": BuiltIn("causal attention, tied embedding", Gpt, _token_ids),
    "lstm": BuiltIn("two-layer nn.LSTM", Lstm, _floats(7, 8)),
}
