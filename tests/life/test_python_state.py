"""Python state that moves: each lane has its own, in all modes."""

import pytest
import torch
from torch import nn

from life_oracle import FEATURES, live


class Counter(nn.Linear):
    """Counts its calls in training; eval reads the number."""

    def __init__(self):
        super().__init__(FEATURES, 2)
        self.calls = 0

    def forward(self, x):
        if self.training:
            self.calls += 1
        return super().forward(x) / (1 + self.calls)


class RunningFloat(nn.Linear):
    """A running mean as a Python float, another in each lane; eval uses it."""

    def __init__(self):
        super().__init__(FEATURES, 2)
        self.mean = 0.0

    def forward(self, x):
        y = super().forward(x)
        if self.training:
            self.mean += 0.1 * (y.detach().mean().item() - self.mean)
        return y - self.mean


class RunningList(nn.Linear):
    """A history in a list, read in eval."""

    def __init__(self):
        super().__init__(FEATURES, 2)
        self.history = [1.0]

    def forward(self, x):
        y = super().forward(x)
        if self.training:
            self.history.append(y.detach().abs().max().item())
        return y / max(self.history)


@pytest.mark.parametrize("make", [Counter, RunningFloat, RunningList])
def test_what_training_counts_is_read_in_eval(make):
    life = live(make)
    assert life["train"].why


class Everywhere(nn.Linear):
    """Moves in both modes."""

    def __init__(self):
        super().__init__(FEATURES, 2)
        self.mean, self.calls = 0.0, 0

    def forward(self, x):
        self.calls += 1
        y = super().forward(x)
        self.mean += (y.detach().mean().item() - self.mean) / self.calls
        return y - self.mean


def test_what_moves_in_both_modes():
    life = live(Everywhere)
    assert all(phase.why for phase in life.phases)


class Clipped(nn.Linear):
    """A threshold that grows only where the lane's own numbers exceed it: lanes part ways."""

    def __init__(self):
        super().__init__(FEATURES, 2)
        self.limit, self.hits, self.seen = 0.1, 0, {}

    def forward(self, x):
        y = super().forward(x)
        size = y.detach().abs().max().item()
        if size > self.limit:
            self.limit, self.hits = 0.5 * (self.limit + size), self.hits + 1
            self.seen[self.hits] = size
        return y.clamp(-self.limit, self.limit) * (1 + self.hits)


class Alternating(nn.Linear):
    """Every lane starts elsewhere in its cycle."""

    starts = iter(range(1000))

    def __init__(self):
        super().__init__(FEATURES, 2)
        self.turn = next(self.starts) % 3

    def forward(self, x):
        self.turn = (self.turn + 1) % 3
        y = super().forward(x)
        return (y, y.tanh(), y.relu())[self.turn]


@pytest.mark.parametrize("make", [Clipped, Alternating, Everywhere])
def test_eight_lanes_whose_python_moves_apart(make):
    life = live(make, n=8)
    assert all(phase.why for phase in life.phases)


class KeptTensor(nn.Linear):
    """A plain tensor attribute that moves."""

    def __init__(self):
        super().__init__(FEATURES, 2)
        self.average = torch.zeros(2, dtype=torch.float64)

    def forward(self, x):
        y = super().forward(x)
        if self.training:
            self.average = 0.9 * self.average + 0.1 * y.detach().mean(0)
        return y - self.average.to(y)


def test_a_plain_tensor_that_training_moves_is_read_in_eval():
    live(KeptTensor)
