"""Data of the demo: noisy points of a curve, with a gap in the middle."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

POINTS = 64
GAP = (-1.2, 1.4)  # no points here
RANGE = (-4.0, 4.0)


def curve(x: Tensor) -> Tensor:
    """Return the function to learn."""
    return torch.sin(1.3 * x) + 0.25 * x


def noise_level(x: Tensor) -> Tensor:
    """Standard deviation of the noise: small on the left, large on the right."""
    return 0.07 + 0.30 * torch.sigmoid(1.6 * (x - 1.2))


@dataclass
class Data:
    """Points `[POINTS, 1]`, and each lane's bootstrap sample of them, `[lanes, POINTS, 1]`."""

    x: Tensor
    y: Tensor
    lane_x: Tensor
    lane_y: Tensor


def make_data(lanes: int, seed: int) -> Data:
    """Draw points on both sides of the gap, and for each lane a bootstrap sample with replacement."""
    generator = torch.Generator().manual_seed(seed)
    left, right = GAP[0] - RANGE[0], RANGE[1] - GAP[1]
    place = torch.rand(POINTS, 1, generator=generator) * (left + right)
    x = RANGE[0] + place + (place > left) * (GAP[1] - GAP[0])
    y = curve(x) + noise_level(x) * torch.randn(POINTS, 1, generator=generator)
    drawn = torch.randint(0, POINTS, (lanes, POINTS), generator=generator)
    # float64, so that the two ways to train can be compared after hundreds of steps: in float32, rounding
    # would make even two runs of one network diverge.
    x, y = x.double(), y.double()
    return Data(x, y, x[drawn], y[drawn])


def gaussian_loss(prediction: Tensor, y: Tensor) -> Tensor:
    """Negative log-likelihood of `y` under the predicted mean and log-variance, per point."""
    mean, log_variance = prediction.unbind(-1)
    error = y.squeeze(-1) - mean
    return 0.5 * (log_variance + error.square() * torch.exp(-log_variance) + math.log(2 * math.pi))
