"""The data of the demo, and the two ways to train the same networks: all at once, and one after another."""

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

import wide_compiler

# Decays to zero. At a constant rate late steps are chaotic: two runs of one network that differ in the 16th
# digit would end up different in the second, which no comparison could tell from a bug.
LEARNING_RATE = 3e-3
WIDTH = 32
POINTS = 64
GAP = (-1.2, 1.4)  # no points here
RANGE = (-4.0, 4.0)


def curve(x: Tensor) -> Tensor:
    """The function to learn."""
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


class Net(nn.Module):
    """Maps x `[B, 1]` to the mean and log-variance of y, `[B, 2]`."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(1, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 2)
        # Wider than PyTorch's default, so that the lanes start, and in the gap remain, different.
        nn.init.uniform_(self.first.weight, -3.0, 3.0)
        nn.init.uniform_(self.first.bias, -6.0, 6.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.second(torch.tanh(self.first(x)))))


def make_nets(lanes: int, seed: int) -> list[Net]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return [Net().double() for _ in range(lanes)]


def _step(model: nn.Module, steps: int, predict: Callable[[], Tensor], y: Tensor) -> Callable[[], Tensor]:
    """Take one step of training, the same for one network and for all of them; returns the loss of each."""
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)

    def step() -> Tensor:
        optimizer.zero_grad()
        losses = gaussian_loss(predict(), y).mean(dim=-1)
        losses.sum().backward()  # the sum: each lane gets the gradient it would get alone
        optimizer.step()
        schedule.step()
        return losses.detach()

    return step


@dataclass
class WideRun:
    """`losses` is `[steps, lanes]`; `compile_seconds` is part of `seconds`."""

    model: wide_compiler.WideModel
    losses: Tensor
    seconds: float
    compile_seconds: float


def train_wide(nets: Sequence[Net], data: Data, steps: int, tell: Callable[[int, Tensor], None]) -> WideRun:
    """Train all lanes at once; calls `tell(step, losses by lane)` every ten steps."""
    start = time.perf_counter()
    wide = wide_compiler.compile(nets, data.lane_x[0])
    compiled = time.perf_counter()
    step = _step(wide, steps, lambda: wide.stacked(data.lane_x), data.lane_y)
    history = []
    for taken in range(1, steps + 1):
        history.append(step())
        if taken % 10 == 1 or taken == steps:
            tell(taken, history[-1])
    end = time.perf_counter()
    return WideRun(wide, torch.stack(history), end - start, compiled - start)


@dataclass
class LoopRun:
    """The networks that were trained within the time budget, and the time they took."""

    nets: list[Net]
    seconds: float

    def seconds_for(self, lanes: int) -> float:
        """Time for all lanes, extrapolated if not all were trained."""
        return self.seconds * lanes / len(self.nets)


def train_loop(
    nets: Sequence[Net], data: Data, steps: int, budget: float, tell: Callable[[int, Tensor], None]
) -> LoopRun:
    """Train one network after another; stops after the network in which `budget` seconds are exceeded."""
    start = time.perf_counter()
    trained: list[Net] = []
    for lane, net in enumerate(nets):
        trained.append(copy.deepcopy(net))
        predict = partial(trained[-1], data.lane_x[lane])
        step = _step(trained[-1], steps, predict, data.lane_y[lane])
        for _ in range(steps):
            losses = step()
        tell(lane + 1, losses)
        if time.perf_counter() - start > budget:
            break
    return LoopRun(trained, time.perf_counter() - start)


def warm_up(nets: Sequence[Net], data: Data) -> None:
    """Run one step both ways, so that neither time includes PyTorch's initialisation."""
    first = Data(data.x, data.y, data.lane_x[:2], data.lane_y[:2])
    train_wide(nets[:2], first, 1, lambda step, losses: None)
    train_loop(nets[:1], first, 1, 0.0, lambda lane, loss: None)


@torch.no_grad()
def largest_difference(wide: wide_compiler.WideModel, nets: Sequence[Net], x: Tensor) -> float:
    """Largest error of the first lanes against `nets`, relative to the largest prediction."""
    alone = torch.stack([net(x) for net in nets])
    together = wide.shared(x)[: len(nets)]
    return ((together - alone).abs().max() / alone.abs().max()).item()
