"""Multi-layer perceptrons: residual, gated, normalised, with encoded inputs or parametrized weights."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

from .case import zoo_case


def floats(*shape):
    """Inputs of one float tensor [batch, *shape]."""
    return lambda batch: ((torch.randn(batch, *shape),), {})


@zoo_case("mlp_relu_dropout", floats(12))
def relu_dropout_mlp():
    """The classifier of every tutorial."""
    hidden = [nn.Linear(12, 32), nn.ReLU(inplace=True), nn.Dropout(0.2), nn.Linear(32, 32), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Dropout(0.1), nn.Linear(32, 5))


@zoo_case("mlp_batchnorm", floats(10))
def batchnorm_mlp():
    """BatchNorm1d between the layers, once without running statistics."""
    first = [nn.Linear(10, 24, bias=False), nn.BatchNorm1d(24), nn.ReLU()]
    second = [nn.Linear(24, 24), nn.BatchNorm1d(24, track_running_stats=False), nn.ReLU()]
    return nn.Sequential(*first, *second, nn.Linear(24, 3))


@zoo_case("mlp_prelu", floats(3, 8))
def prelu_mlp():
    """PReLU with a slope per channel (dim 1), then with one slope."""
    hidden = [nn.Linear(8, 32), nn.PReLU(3), nn.Linear(32, 16), nn.PReLU()]
    return nn.Sequential(*hidden, nn.Flatten(), nn.Linear(48, 4))


@zoo_case("mlp_deep_gelu_scaled", floats(16))
class DeepScaledMLP(nn.Module):
    """Eight gelu layers, each with its own python scalar."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(8))
        self.scales = [1.0 / math.sqrt(depth + 1) for depth in range(8)]
        self.head = nn.Linear(16, 2)

    def forward(self, x):
        for depth, (layer, scale) in enumerate(zip(self.layers, self.scales, strict=True)):
            approximate = "tanh" if depth % 2 else "none"
            x = F.gelu(layer(x) * scale + 0.1 * depth, approximate=approximate)
        return self.head(x)


@zoo_case("mlp_residual", floats(6, 16))
class ResidualMLP(nn.Module):
    """Pre-norm residual blocks over tokens."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(3))
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16)) for _ in range(3)
        )

    def forward(self, x):
        for norm, block in zip(self.norms, self.blocks, strict=True):
            x = x + 0.5 * block(norm(x))
        return x.mean(dim=1)


@zoo_case("mlp_gated", floats(12))
class GatedMLP(nn.Module):
    """F.glu, then a chunked swish gate, then a highway layer."""

    def __init__(self):
        super().__init__()
        self.glu, self.swiglu = nn.Linear(12, 48), nn.Linear(24, 48)
        self.transform, self.carry = nn.Linear(24, 24), nn.Linear(24, 24)
        nn.init.constant_(self.carry.bias, -1.0)

    def forward(self, x):
        x = F.glu(self.glu(x), dim=-1)
        value, gate = self.swiglu(x).chunk(2, dim=-1)
        x = value * F.silu(gate)
        openness = torch.sigmoid(self.carry(x))
        return openness * torch.tanh(self.transform(x)) + (1 - openness) * x


@zoo_case("mlp_skip_concat", floats(10))
class SkipConcatMLP(nn.Module):
    """Every layer sees the outputs of all the layers before it."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(10 + 8 * depth, 8) for depth in range(4))
        self.head = nn.Linear(10 + 8 * 4, 3)

    def forward(self, x):
        seen = [x]
        for layer in self.layers:
            seen.append(F.elu(layer(torch.cat(seen, dim=1))))
        return self.head(torch.cat(seen, dim=-1))


@zoo_case("mlp_maxout", floats(10))
class MaxoutMLP(nn.Module):
    """The largest of four linear pieces."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(10, 16 * 4), nn.Linear(16, 5 * 4)

    def forward(self, x):
        x = self.first(x).view(x.shape[0], 16, 4).max(dim=-1).values
        return self.second(x).view(x.size(0), -1, 4).amax(dim=2)


@zoo_case("mlp_nerf", lambda batch: ((torch.randn(batch, 5, 3), torch.randn(batch, 5, 3)), {}))
class TinyNeRF(nn.Module):
    """Positions and view directions, encoded at octaves, to density and colour."""

    def __init__(self):
        super().__init__()
        self.trunk = nn.ModuleList([nn.Linear(3 + 3 * 2 * 4, 32), nn.Linear(32, 32), nn.Linear(32 + 27, 32)])
        self.density, self.color = nn.Linear(32, 1), nn.Linear(32 + 3 + 3 * 2 * 2, 3)

    def encode(self, x, octaves):
        phases = [2.0**octave * math.pi * x for octave in range(octaves)]
        waves = [wave(phase) for phase in phases for wave in (torch.sin, torch.cos)]
        return torch.cat([x, *waves], dim=-1)

    def forward(self, position, direction):
        encoded = self.encode(position, 4)
        h = encoded
        for depth, layer in enumerate(self.trunk):
            h = F.relu(layer(torch.cat([h, encoded], dim=-1) if depth == 2 else h))
        color = torch.sigmoid(self.color(torch.cat([h, self.encode(F.normalize(direction, dim=-1), 2)], -1)))
        return F.softplus(self.density(h)).squeeze(-1), color


@zoo_case("mlp_fourier_softmax", floats(4, 3))
class FourierSoftmax(nn.Module):
    """Random Fourier features from a buffer, then softmax over dims 1 and 2."""

    def __init__(self):
        super().__init__()
        self.register_buffer("frequencies", torch.randn(3, 16))
        self.hidden, self.head = nn.Linear(32, 24), nn.Linear(24, 6)

    def forward(self, x):
        phase = 2 * math.pi * x @ self.frequencies
        logits = self.head(torch.tanh(self.hidden(torch.cat((phase.sin(), phase.cos()), dim=-1))))
        return F.softmax(logits, dim=1) + logits.softmax(2) * F.log_softmax(logits, dim=-1)


@zoo_case("mlp_weight_norm", floats(8))
def weight_norm_mlp():
    """Weights split into direction and length."""
    first, second = nn.Linear(8, 24), nn.Linear(24, 4)
    return nn.Sequential(parametrizations.weight_norm(first), nn.Tanh(), parametrizations.weight_norm(second))


@zoo_case("mlp_spectral_norm", floats(8))
def spectral_norm_mlp():
    """Weights divided by their largest singular value; training moves the power iteration's buffers."""
    first, second = (parametrizations.spectral_norm(layer) for layer in (nn.Linear(8, 24), nn.Linear(24, 1)))
    return nn.Sequential(first, nn.LeakyReLU(0.2), second)
