"""Scripts to look at: `python -m observe.watched pipeline` (or `population`) runs until it is killed."""

import sys
import time

import torch
from torch import nn

import wide_compiler
import wide_compiler.signals as gt
from wide_compiler.signals import ShardConfig, SignalConfig
from wide_compiler.signals.nn import SGD, Linear
from wide_compiler.training import Adam, fit

PAUSE = 0.02  # leaves some of two cores to who looks at it


def pipeline():
    """The two stages of the signals page: forward and backward on different workers."""
    for name, workers, back in (
        ("stage_1", [0, 1], "stage_1_backward"),
        ("stage_1_backward", [2, 3], None),
        ("stage_2", [2, 3], "stage_2_backward"),
        ("stage_2_backward", [0, 1], None),
    ):
        shard = ShardConfig(axis=0, workers=workers)
        gt.register_config(name, SignalConfig(shard=shard, backward_signal=back))
    gt.cpu_workers(4)
    first, second = nn.Sequential(Linear(256, 512), nn.ReLU()), Linear(512, 16)
    optimizer = SGD([*first.parameters(), *second.parameters()], lr=0.01)
    x = gt.randn(512, 256)
    while True:
        with gt.signal.context("stage_1"):
            hidden = first(x)
        with gt.signal.context("stage_2"):
            loss = (second(hidden) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        print("step", flush=True)
        time.sleep(PAUSE)


def population():
    """32 networks over four workers, with 32 learning rates."""
    gt.register_config("population", SignalConfig(shard=ShardConfig(axis=0, workers=[0, 1, 2, 3])))
    gt.cpu_workers(4)
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1)) for _ in range(32)]
    with gt.signal.context("population"):
        wide = wide_compiler.compile(models, torch.randn(2, 8))
    x = torch.randn(256, 8)
    y = x.square().sum(1, keepdim=True).sin()
    optimizer = Adam(wide.parameters(), lr=torch.logspace(-4, -1.5, 32))

    def told(moment):
        if moment.event == "step":
            print("step", flush=True)
            time.sleep(PAUSE)

    def loss(output, target):
        return (output - target).square().mean((1, 2))

    fit(wide, optimizer, loss, [(x, y)] * 100, epochs=100000, callbacks=[told], progress=False)


if __name__ == "__main__":
    {"pipeline": pipeline, "population": population}[sys.argv[1]]()
