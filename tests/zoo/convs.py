"""Convolutions of every kind: strides, groups, dilation, transposes, paddings, pools, resampling."""

import torch
import torch.nn.functional as F
from torch import nn

from .case import Inputs, zoo_case


def random_input(*shape: int) -> Inputs:
    """Inputs that are one normal tensor of the given shape per sample."""
    return lambda batch: ((torch.randn(batch, *shape),), {})


@zoo_case("conv2d_classifier", random_input(3, 16, 16))
class Conv2dClassifier(nn.Module):
    """The first CNN of every tutorial: two convolutions with max pooling, then two linear layers."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.conv2 = nn.Conv2d(6, 12, 3)
        self.fc1 = nn.Linear(12 * 2 * 2, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), (2, 2))
        x = x.view(x.size(0), -1)
        return F.log_softmax(self.fc2(F.relu(self.fc1(x))), dim=1)


@zoo_case("conv2d_depthwise_dilated", random_input(8, 14, 14))
def depthwise_dilated():
    """Depthwise separable convolutions (with a channel multiplier) and dilated ones."""
    return nn.Sequential(
        nn.Conv2d(8, 16, 3, padding=1, groups=8, bias=False),
        nn.Conv2d(16, 12, 1),
        nn.ReLU6(),
        nn.Conv2d(12, 12, 3, padding=2, dilation=2),
        nn.Hardswish(),
        nn.Conv2d(12, 8, (3, 1), padding=(4, 0), dilation=(4, 1)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
    )


@zoo_case("conv2d_grouped_strided", random_input(6, 15, 12))
def grouped_strided():
    """Grouped convolutions with uneven kernels and strides, and average pooling with padding."""
    return nn.Sequential(
        nn.Conv2d(6, 12, (3, 5), stride=(2, 1), padding=(0, 2), groups=3),
        nn.PReLU(12),
        nn.Conv2d(12, 8, 3, stride=2, padding=1, groups=4),
        nn.ELU(),
        nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False),
        nn.Flatten(start_dim=1),
        nn.Linear(8 * 2 * 3, 7),
    )


@zoo_case("conv_transpose1d", random_input(6, 9))
def transpose_1d():
    """Strided and grouped transposed convolutions over a signal."""
    return nn.Sequential(
        nn.ConvTranspose1d(6, 8, 4, stride=2, padding=1),
        nn.LeakyReLU(0.1),
        nn.ConvTranspose1d(8, 4, 5, stride=3, padding=2, output_padding=1, groups=2),
        nn.Tanh(),
        nn.Conv1d(4, 1, 3, padding=1),
    )


@zoo_case("conv_transpose2d", random_input(6, 5, 4))
def transpose_2d():
    """Transposed convolutions with groups, dilation and output padding over an image."""
    return nn.Sequential(
        nn.ConvTranspose2d(6, 12, 3, stride=2, padding=1, output_padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(12, 8, (3, 2), stride=(1, 2), groups=4, bias=False),
        nn.SiLU(),
        nn.ConvTranspose2d(8, 3, 3, dilation=2, padding=2),
    )


@zoo_case("conv3d_and_transpose3d", random_input(2, 6, 8, 8))
def volume_autoencoder():
    """3-D convolutions and pooling down, 3-D transposed convolutions up."""
    return nn.Sequential(
        nn.Conv3d(2, 6, 3, padding=1),
        nn.MaxPool3d((2, 1, 1)),
        nn.Conv3d(6, 8, (1, 3, 3), stride=(1, 2, 2), padding=(0, 1, 1), groups=2),
        nn.AvgPool3d((1, 2, 2)),
        nn.ConvTranspose3d(8, 6, 2, stride=2),
        nn.ReLU(),
        nn.ConvTranspose3d(6, 2, (1, 2, 2), stride=(1, 2, 2), groups=2),
    )


@zoo_case("conv_padding_modes", random_input(4, 10, 9))
class PaddingModes(nn.Module):
    """Convolutions with reflect, replicate and circular padding, and explicit padding layers."""

    def __init__(self):
        super().__init__()
        self.reflect = nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect")
        self.replicate = nn.Conv2d(6, 6, 5, padding=(2, 1), padding_mode="replicate")
        self.circular = nn.Conv2d(6, 6, 3, padding=1, padding_mode="circular", groups=2)
        self.explicit = nn.Sequential(nn.ReflectionPad2d((1, 2, 0, 1)), nn.ZeroPad2d(1), nn.Conv2d(6, 4, 3))
        self.line = nn.Conv1d(4, 3, 3, padding=1, padding_mode="circular")

    def forward(self, x):
        x = torch.relu(self.reflect(x))
        x = torch.relu(self.replicate(x))
        x = torch.relu(self.explicit(self.circular(x)))
        x = F.pad(x, (1, 1), value=0.5)
        return self.line(x.mean(dim=2))


@zoo_case("conv1d_pools", random_input(4, 32))
def conv1d_pools():
    """A signal classifier with average, max, adaptive and power-average pooling and 'same' padding."""
    return nn.Sequential(
        nn.Conv1d(4, 8, 7, stride=2, padding=3),
        nn.GELU(),
        nn.AvgPool1d(2),
        nn.Conv1d(8, 12, 4, padding="same"),
        nn.Softplus(),
        nn.MaxPool1d(3, stride=1, padding=1),
        nn.Conv1d(12, 8, 3, padding="valid", dilation=2),
        nn.Sigmoid(),
        nn.LPPool1d(2, 2, ceil_mode=False),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )


@zoo_case("pixel_shuffle_super_resolution", random_input(3, 8, 8))
class SuperResolution(nn.Module):
    """Sub-pixel upsampling added to a bilinear one, then a nearest-neighbour stage; 'same' 2-D padding."""

    def __init__(self):
        super().__init__()
        self.features = nn.Conv2d(3, 8, (4, 5), padding="same")
        self.sub_pixel = nn.Sequential(nn.Conv2d(8, 12, 3, padding="same", dilation=2), nn.PixelShuffle(2))
        self.refine = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, image):
        detail = self.sub_pixel(F.gelu(self.features(image)))
        doubled = detail + F.interpolate(image, scale_factor=2, mode="bilinear", align_corners=False)
        return self.refine(F.interpolate(doubled, size=(20, 24), mode="nearest"))


@zoo_case("unfold_fold_patches", random_input(3, 8, 8))
class PatchMixer(nn.Module):
    """Cuts overlapping patches with unfold, transforms each, and puts them back together with fold."""

    def __init__(self):
        super().__init__()
        self.transform = nn.Sequential(nn.Linear(3 * 16, 24), nn.GELU(), nn.Linear(24, 3 * 16))

    def forward(self, image):
        patches = F.unfold(image, kernel_size=4, stride=2, padding=1).transpose(1, 2)
        patches = self.transform(patches).transpose(1, 2)
        return F.fold(patches, output_size=image.shape[-2:], kernel_size=4, stride=2, padding=1)


@zoo_case("spatial_transformer", random_input(2, 10, 10))
class SpatialTransformer(nn.Module):
    """Predicts an affine map per image, resamples the image with it, and classifies the result."""

    def __init__(self):
        super().__init__()
        self.localise = nn.Sequential(nn.Conv2d(2, 4, 5), nn.AdaptiveMaxPool2d(2), nn.ReLU(), nn.Flatten())
        self.to_theta = nn.Linear(16, 6)
        nn.init.normal_(self.to_theta.weight, std=0.05)
        self.to_theta.bias.data.copy_(torch.tensor([1, 0, 0, 0, 1, 0], dtype=torch.float))
        self.classify = nn.Linear(200, 5)

    def forward(self, image):
        theta = self.to_theta(self.localise(image)).view(-1, 2, 3)
        grid = F.affine_grid(theta, image.size(), align_corners=False)
        warped = F.grid_sample(image, grid, align_corners=False, padding_mode="border")
        return self.classify(warped.flatten(1))
