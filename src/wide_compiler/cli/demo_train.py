"""The two ways of the demo to train the same networks: all at once, and one after another."""

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

import wide_compiler

from .demo_data import Data, gaussian_loss

# Decays to zero. At a constant rate late steps are chaotic: two runs of one network that differ in the 16th
# digit would end up different in the second, which no comparison could tell from a bug.
LEARNING_RATE = 3e-3
WIDTH = 32


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
    """One step of training, the same for one network and for all of them; returns the loss of each."""
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
    nets: Sequence[Net], data: Data, steps: int, budget: float, tell: Callable[[int, float], None]
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
        tell(lane + 1, losses.item())
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
