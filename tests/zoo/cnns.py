"""Whole convolutional networks: residual, dense, mobile, inception, U-shaped, plain and causal ones."""

import torch
import torch.nn.functional as F
from torch import nn

from .case import zoo_case
from .convs import random_input


def conv_bn(channels_in: int, channels_out: int, kernel: int, stride: int = 1, groups: int = 1):
    """A convolution that keeps the size (but for its stride), then batch norm."""
    conv = nn.Conv2d(channels_in, channels_out, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(channels_out))


def classifier(channels: int):
    """Global average pooling and a linear layer."""
    return nn.Sequential(nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(), nn.Linear(channels, 10))


class ResidualBlock(nn.Module):
    """Two convolutions with batch norm and a shortcut, projected where the shape changes."""

    def __init__(self, channels_in: int, channels_out: int, stride: int = 1):
        super().__init__()
        self.conv1 = conv_bn(channels_in, channels_out, 3, stride)
        self.conv2 = conv_bn(channels_out, channels_out, 3)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = conv_bn(channels_in, channels_out, 1, stride) if stride != 1 else None

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = self.conv2(self.relu(self.conv1(x)))
        out += identity
        return self.relu(out)


@zoo_case("resnet", random_input(3, 16, 16))
def resnet():
    """A small ResNet."""
    stem = nn.Sequential(conv_bn(3, 8, 7, stride=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
    return nn.Sequential(stem, ResidualBlock(8, 8), ResidualBlock(8, 16, stride=2), classifier(16))


class DenseLayer(nn.Sequential):
    """Appends the channels it computes to those it was given."""

    def forward(self, x):
        return torch.cat([x, super().forward(x)], dim=1)


@zoo_case("densenet", random_input(3, 12, 12))
def densenet():
    """Every layer sees the concatenation of all the layers before it; a transition cuts the channels."""
    layers = [nn.Conv2d(3, 8, 3, padding=1)]
    for channels in (8, 14, 20):
        conv = nn.Conv2d(channels, 6, 3, padding=1, bias=False)
        layers.append(DenseLayer(nn.BatchNorm2d(channels), nn.ReLU(), conv))
    return nn.Sequential(*layers, nn.Conv2d(26, 13, 1), nn.AvgPool2d(2), classifier(13))


class SqueezeExcite(nn.Module):
    """Rescales the channels by a gate computed from their means."""

    def __init__(self, channels: int):
        super().__init__()
        self.reduce = nn.Linear(channels, channels // 4)
        self.expand = nn.Linear(channels // 4, channels)

    def forward(self, x):
        batch, channels, _, _ = x.shape
        gate = torch.sigmoid(self.expand(F.relu(self.reduce(x.mean(dim=(2, 3))))))
        return x * gate.view(batch, channels, 1, 1)


class Residual(nn.Sequential):
    """Adds what it computes to what it was given."""

    def forward(self, x):
        return x + super().forward(x)


def inverted_residual(channels: int, channels_out: int, stride: int = 1):
    """Expand, filter each channel, squeeze and excite, project back; added where the shape stays."""
    wide = channels * 2
    expand = nn.Sequential(conv_bn(channels, wide, 1), nn.ReLU6(inplace=True))
    depthwise = nn.Sequential(conv_bn(wide, wide, 3, stride, groups=wide), nn.Hardswish())
    kind = Residual if stride == 1 and channels == channels_out else nn.Sequential
    return kind(expand, depthwise, SqueezeExcite(wide), conv_bn(wide, channels_out, 1))


@zoo_case("mobilenet_squeeze_excite", random_input(3, 16, 16))
def mobilenet():
    """A small MobileNet with squeeze-and-excite blocks."""
    blocks = nn.Sequential(inverted_residual(8, 8), inverted_residual(8, 12, 2), inverted_residual(12, 12))
    return nn.Sequential(conv_bn(3, 8, 3, stride=2), blocks, nn.Dropout2d(0.1), classifier(12))


class ConvNextBlock(nn.Module):
    """A depthwise convolution, then a channels-last MLP, scaled per channel and added back."""

    def __init__(self, channels: int, hidden: int):
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(channels, hidden), nn.GELU(), nn.Linear(hidden, channels))
        self.gamma = nn.Parameter(0.1 * torch.ones(channels))

    def forward(self, x):
        hidden = self.gamma * self.mlp(self.norm(self.depthwise(x).permute(0, 2, 3, 1)))
        return x + hidden.permute(0, 3, 1, 2)


@zoo_case("convnext", random_input(3, 16, 16))
def convnext():
    """A patchifying stem and two ConvNeXt blocks."""
    blocks = nn.Sequential(ConvNextBlock(12, 48), ConvNextBlock(12, 48))
    return nn.Sequential(nn.Conv2d(3, 12, 4, stride=4), blocks, classifier(12))


@zoo_case("inception", random_input(3, 10, 10))
class Inception(nn.Module):
    """Parallel branches of different kernels, concatenated, with an auxiliary output in training only."""

    def __init__(self):
        super().__init__()
        self.branches = nn.ModuleDict({"point": conv_bn(3, 4, 1), "small": conv_bn(3, 6, 3)})
        self.branches["large"] = nn.Sequential(conv_bn(3, 2, 1), nn.ReLU(), conv_bn(2, 4, 5))
        self.branches["pool"] = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), conv_bn(3, 2, 1))
        self.head, self.auxiliary = classifier(16), classifier(16)

    def forward(self, x):
        x = F.relu(torch.cat([branch(x) for branch in self.branches.values()], dim=1))
        return (self.head(x), self.auxiliary(x)) if self.training else self.head(x)


@zoo_case("unet", random_input(3, 16, 16))
class UNet(nn.Module):
    """Two levels down and up, with skip concatenation; one level upsamples, the other transposes."""

    def __init__(self):
        super().__init__()
        self.enter = nn.Sequential(conv_bn(3, 6, 3), nn.ReLU())
        self.down = nn.Sequential(nn.MaxPool2d(2), conv_bn(6, 12, 3), nn.ReLU())
        self.bottom = nn.Sequential(nn.MaxPool2d(2), conv_bn(12, 16, 3), nn.ReLU())
        self.upsample = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        self.merge = nn.Sequential(conv_bn(28, 12, 3), nn.ReLU())
        self.transpose = nn.ConvTranspose2d(12, 6, 2, stride=2)
        self.leave = nn.Conv2d(12, 2, 1)

    def forward(self, image):
        first = self.enter(image)
        second = self.down(first)
        up = self.merge(torch.cat([second, self.upsample(self.bottom(second))], dim=1))
        return self.leave(torch.cat((first, self.transpose(up)), dim=1))


@zoo_case("vgg_dropout", random_input(3, 16, 16))
def vgg():
    """Plain stacked convolutions, then linear layers with dropout."""
    layers = []
    for channels, channels_out in ((3, 6), (6, 12)):
        layers += [nn.Conv2d(channels, channels_out, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2, 2)]
    layers += [nn.Flatten(), nn.Linear(192, 32), nn.ReLU(True), nn.Dropout(), nn.Linear(32, 10)]
    return nn.Sequential(*layers)


@zoo_case("wavenet", random_input(4, 24))
class WaveNet(nn.Module):
    """Gated causal convolutions with growing dilation; their skip outputs are summed."""

    def __init__(self):
        super().__init__()
        self.enter, self.leave = nn.Conv1d(4, 8, 1), nn.Conv1d(6, 10, 1)
        self.gated = nn.ModuleList([nn.Conv1d(8, 16, 2, dilation=2**level) for level in range(3)])
        self.skips = nn.ModuleList([nn.Conv1d(8, 6, 1) for _ in range(3)])

    def forward(self, signal):
        hidden, total = self.enter(signal), 0
        for level, (conv, skip) in enumerate(zip(self.gated, self.skips, strict=True)):
            value, gate = conv(F.pad(hidden, (2**level, 0))).chunk(2, dim=1)
            hidden = hidden + torch.tanh(value) * torch.sigmoid(gate)
            total = total + skip(hidden)
        return self.leave(F.relu(total))


class CausalConv1d(nn.Conv1d):
    """Pads both sides and cuts off the right end, so that no step sees a later one."""

    def forward(self, x):
        return super().forward(x)[:, :, : -self.padding[0]].contiguous()


@zoo_case("temporal_convolutional_network", random_input(8, 20))
def temporal_convolutional_network():
    """Causal residual layers with growing dilation."""
    layers = []
    for gap in (1, 2, 4):
        conv = CausalConv1d(8, 8, 3, padding=2 * gap, dilation=gap)
        layers.append(Residual(conv, nn.ReLU(), nn.Dropout(0.1)))
    return nn.Sequential(*layers, nn.Conv1d(8, 5, 1))
