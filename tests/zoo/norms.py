"""Normalisation of every kind, inside small convolutional networks."""

import torch
import torch.nn.functional as F
from torch import nn

from .case import zoo_case
from .convs import random_input


@zoo_case("batch_norm1d", random_input(4, 12))
def batch_norm1d():
    """Batch norm over signals, then over plain vectors; no affine part in the last one."""
    return nn.Sequential(
        nn.Conv1d(4, 8, 3, padding=1, bias=False),
        nn.BatchNorm1d(8, eps=1e-3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(96, 16, bias=False),
        nn.BatchNorm1d(16, momentum=0.3),
        nn.ReLU(),
        nn.Linear(16, 6, bias=False),
        nn.BatchNorm1d(6, affine=False),
        nn.Linear(6, 3),
    )


@zoo_case("batch_norm3d", random_input(2, 4, 6, 6))
def batch_norm3d():
    """Batch norm over volumes; the second one keeps no running statistics."""
    return nn.Sequential(
        nn.Conv3d(2, 6, 3, padding=1, bias=False),
        nn.BatchNorm3d(6),
        nn.ReLU(inplace=True),
        nn.Conv3d(6, 4, 1, bias=False),
        nn.BatchNorm3d(4, track_running_stats=False),
        nn.AdaptiveAvgPool3d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    )


@zoo_case("batch_norm_cumulative_average", random_input(3, 8, 8), "loop")
class CumulativeBatchNorm(nn.Module):
    """Batch norm with momentum=None: the running statistics are the plain average of all batches."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, bias=False)
        self.bn = nn.BatchNorm2d(8, momentum=None)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(F.relu(self.bn(self.conv(x))).amax(dim=(2, 3)))


@zoo_case("batch_norm_frozen", random_input(3, 8, 8))
class FrozenBatchNorm(nn.Module):
    """Fine-tuning with the statistics of an earlier training: the first batch norm never leaves eval."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, bias=False)
        self.frozen = nn.BatchNorm2d(8)
        self.conv = nn.Conv2d(8, 8, 3, bias=False)
        self.live = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 4)
        nn.init.normal_(self.frozen.running_mean, std=0.3)
        nn.init.uniform_(self.frozen.running_var, 0.5, 2.0)
        self.frozen.requires_grad_(False)

    def train(self, mode: bool = True):
        super().train(mode)
        self.frozen.eval()
        return self

    def forward(self, x):
        x = F.relu(self.frozen(self.stem(x)))
        x = F.relu(self.live(self.conv(x)))
        return self.head(x.mean((2, 3)))


@zoo_case("layer_norm_image", random_input(3, 8, 8))
def layer_norm_image():
    """Layer norm over whole feature maps, over one axis without bias, and without an affine part."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.LayerNorm([6, 8, 8]),
        nn.SiLU(),
        nn.Conv2d(6, 4, 1),
        nn.LayerNorm(8, bias=False),
        nn.Flatten(),
        nn.Linear(256, 12),
        nn.LayerNorm(12, elementwise_affine=False),
        nn.Linear(12, 5),
    )


@zoo_case("group_norm", random_input(3, 10, 10))
def group_norm():
    """Group norm with several groups, one group, one channel per group, and no affine part."""
    return nn.Sequential(
        nn.Conv2d(3, 12, 3),
        nn.GroupNorm(4, 12),
        nn.SiLU(),
        nn.Conv2d(12, 8, 3, stride=2),
        nn.GroupNorm(1, 8, eps=1e-3),
        nn.GELU(),
        nn.Conv2d(8, 8, 1, bias=False),
        nn.GroupNorm(8, 8, affine=False),
        nn.Conv2d(8, 2, 1),
    )


@zoo_case("instance_norm2d_style", random_input(3, 10, 10))
class StyleTransfer(nn.Module):
    """A style-transfer generator: reflection padding, instance norm with and without affine, residual."""

    def __init__(self):
        super().__init__()
        self.pad = nn.ReflectionPad2d(1)
        self.enter = nn.Sequential(
            nn.Conv2d(3, 8, 3, bias=False), nn.InstanceNorm2d(8, affine=True), nn.ReLU()
        )
        self.residual = nn.Sequential(nn.Conv2d(8, 8, 3, bias=False), nn.InstanceNorm2d(8), nn.ReLU())
        self.leave = nn.Conv2d(8, 3, 1)

    def forward(self, image):
        hidden = self.enter(self.pad(image))
        return torch.tanh(self.leave(hidden + self.residual(self.pad(hidden))))


@zoo_case("instance_norm1d_running_stats", random_input(4, 16))
def instance_norm1d_running_stats():
    """Instance norm that keeps running statistics and uses them in eval."""
    return nn.Sequential(
        nn.Conv1d(4, 8, 5, padding=2, bias=False),
        nn.InstanceNorm1d(8, affine=True, track_running_stats=True, momentum=0.2),
        nn.ReLU(),
        nn.Conv1d(8, 3, 3),
    )


@zoo_case("rms_norm", random_input(6, 12))
class RmsNormMlp(nn.Module):
    """A gated MLP after the built-in RMS norm, and a final RMS norm written out by hand."""

    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(12, eps=1e-6)
        self.gate_and_value = nn.Linear(12, 48, bias=False)
        self.project = nn.Linear(24, 12, bias=False)
        self.final_scale = nn.Parameter(torch.ones(12))
        self.head = nn.Linear(12, 4)

    def forward(self, x):
        gate, value = self.gate_and_value(self.norm(x)).chunk(2, dim=-1)
        x = x + self.project(F.silu(gate) * value)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.final_scale
        return self.head(x)


@zoo_case("local_response_norm", random_input(3, 12, 12))
def local_response_norm():
    """The first layers of AlexNet, with local response norm across channels."""
    stem = [nn.Conv2d(3, 8, 5, stride=2), nn.ReLU(inplace=True), nn.LocalResponseNorm(5, alpha=0.1, k=2.0)]
    return nn.Sequential(*stem, nn.MaxPool2d(3, 1), nn.Conv2d(8, 6, 2), nn.Flatten(), nn.Linear(6, 4))


class StandardisedConv2d(nn.Conv2d):
    """A convolution whose every filter is standardised before use."""

    def forward(self, x):
        mean = self.weight.mean(dim=(1, 2, 3), keepdim=True)
        deviation = self.weight.std(dim=(1, 2, 3), keepdim=True, unbiased=False)
        weight = (self.weight - mean) / (deviation + 1e-5)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


@zoo_case("weight_standardised_conv", random_input(4, 9, 9))
def weight_standardised():
    """Weight-standardised convolutions with group norm between them."""
    first, second = StandardisedConv2d(4, 8, 3, stride=2), StandardisedConv2d(8, 4, 3, padding=1, groups=2)
    return nn.Sequential(first, nn.GroupNorm(2, 8), nn.ReLU(), second, nn.Flatten(), nn.Linear(64, 5))
