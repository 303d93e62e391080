"""The demo's data: a curve seen with a hole in the middle and noise that grows to the right."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

POINTS = 64
GAP = (-1.2, 1.4)  # nothing is seen here
RANGE = (-4.0, 4.0)


def curve(x: Tensor) -> Tensor:
    """What the networks try to learn."""
    return torch.sin(1.3 * x) + 0.25 * x


def noise_level(x: Tensor) -> Tensor:
    """The noise's standard deviation: small on the left, large on the right."""
    return 0.07 + 0.30 * torch.sigmoid(1.6 * (x - 1.2))


@dataclass
class Data:
    """What was seen, and each lane's own view of it: a resampling of the points, `[lanes, POINTS, 1]`."""

    x: Tensor
    y: Tensor
    lane_x: Tensor
    lane_y: Tensor


def make_data(lanes: int, seed: int) -> Data:
    """Points on both sides of the gap; each lane draws as many of them, with repetition (a bootstrap)."""
    generator = torch.Generator().manual_seed(seed)
    left, right = GAP[0] - RANGE[0], RANGE[1] - GAP[1]
    place = torch.rand(POINTS, 1, generator=generator) * (left + right)
    x = RANGE[0] + place + (place > left) * (GAP[1] - GAP[0])
    y = curve(x) + noise_level(x) * torch.randn(POINTS, 1, generator=generator)
    drawn = torch.randint(0, POINTS, (lanes, POINTS), generator=generator)
    # In float64 the two ways to train can be compared after hundreds of steps: float32's rounding would by
    # then have led even two runs of the same network apart.
    x, y = x.double(), y.double()
    return Data(x, y, x[drawn], y[drawn])


def gaussian_loss(prediction: Tensor, y: Tensor) -> Tensor:
    """The negative log-likelihood of `y` under the predicted mean and log-variance, point by point."""
    mean, log_variance = prediction.unbind(-1)
    error = y.squeeze(-1) - mean
    return 0.5 * (log_variance + error.square() * torch.exp(-log_variance) + math.log(2 * math.pi))
