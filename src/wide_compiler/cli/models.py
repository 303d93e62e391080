"""The built-in models: small, of many kinds, and without dropout, so that runs can be compared."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..benchmark.nets import Gpt, Mlp, Recurrent, ResBlock


class ResidualMlp(nn.Module):
    """Pre-norm residual MLP layers."""

    def __init__(self, width: int = 24, depth: int = 6) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + F.gelu(layer(norm(x)))
        return self.head(x)


def _normed_conv_net() -> nn.Module:
    """Convolutions with groups, two kinds of norm, and pooling."""
    first = (nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
    second = (nn.Conv2d(8, 16, 3, padding=1, groups=2), nn.GroupNorm(4, 16), nn.SiLU())
    return nn.Sequential(*first, *second, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


class UNet(nn.Module):
    """One level down, one up, and a skip connection."""

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
    """nn.TransformerEncoder over a float sequence."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x).mean(dim=1))


def _tied_gpt() -> nn.Module:
    """Causal attention, learned positions, head tied to the token embedding."""
    gpt = Gpt(width=16, heads=2, depth=2, longest=16, words=32)
    gpt.head.weight = gpt.tokens.weight
    return gpt


@dataclass(frozen=True)
class BuiltIn:
    """`make()` returns a member with fresh weights, `sample(batch)` an input for it."""

    about: str
    make: Callable[[], nn.Module]
    sample: Callable[[int], Tensor]


def _floats(*shape: int) -> Callable[[int], Tensor]:
    return lambda batch: torch.randn(batch, *shape)


MODELS: dict[str, BuiltIn] = {
    "mlp": BuiltIn("two linear layers", lambda: Mlp(16, 32, 4), _floats(16)),
    "deep_mlp": BuiltIn("six residual layers, LayerNorm", ResidualMlp, _floats(24)),
    "resblock": BuiltIn("two convolutions, BatchNorm, skip", lambda: ResBlock(8), _floats(8, 8, 8)),
    "convnet": BuiltIn("convolutions, norms, pooling", _normed_conv_net, _floats(3, 12, 12)),
    "unet": BuiltIn("down, up and a skip connection", UNet, _floats(1, 8, 8)),
    "transformer": BuiltIn("nn.TransformerEncoder", Transformer, _floats(6, 16)),
    "gpt": BuiltIn(
        "causal attention, tied embedding", _tied_gpt, lambda batch: torch.randint(0, 32, (batch, 10))
    ),
    "lstm": BuiltIn("two-layer nn.LSTM", lambda: Recurrent(nn.LSTM, 8, 16, layers=2), _floats(7, 8)),
}
