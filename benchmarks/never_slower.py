"""Over many models, numbers of lanes and batches: is wide ever slower than the loop it replaces?

    python benchmarks/never_slower.py                 default() beside the eager loop and vmap
    python benchmarks/never_slower.py --fast          fast() beside the compiled loop and compiled vmap
    python benchmarks/never_slower.py --train         a step of forward and backward instead of a forward

Every case is timed interleaved. Ratios count, and 15 microseconds a call are free: what a call costs however
small the models are. Writes benchmarks/results/never_slower_*.json.
"""

import argparse
import datetime
import json
import platform
import sys
import time
import warnings
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

import wide_compiler
from wide_compiler import WideConfig
from wide_compiler.benchmark.nets import Block, ConvNet, DeepMlp, Gpt, Mlp, Recurrent, ResBlock
from wide_compiler.benchmark.resnet import ResNet18
from wide_compiler.tuning import interleaved

SLACK = 15e-6
BAR = 0.95


class Wide1d(nn.Module):
    """A convolution over signals."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv1d(8, 32, 5, padding=2), nn.Conv1d(32, 8, 5, padding=2)

    def forward(self, x):
        return self.b(F.relu(self.a(x)))


class Tokens(nn.Module):
    """An embedding, averaged and classified."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(500, 32), nn.Linear(32, 8)

    def forward(self, tokens):
        return self.head(self.table(tokens).mean(1))


def floats(*shape):
    return lambda *lead: torch.randn(*lead, *shape)


def tokens(most, length):
    return lambda *lead: torch.randint(0, most, (*lead, length))


# name: (member, input of one sample, [(lanes, batch)])
CASES = {
    "linear 4-4": (lambda: nn.Linear(4, 4), floats(4), [(2, 1), (8, 8), (64, 32)]),
    "mlp 8-16-8": (lambda: Mlp(8, 16, 8), floats(8), [(2, 1), (4, 8), (32, 8), (200, 16)]),
    "mlp 64-128-64": (Mlp, floats(64), [(2, 32), (10, 32), (100, 32)]),
    "mlp 256-512-256": (lambda: Mlp(256, 512, 256), floats(256), [(2, 64), (16, 64)]),
    "mlp 1024-2048-1024": (lambda: Mlp(1024, 2048, 1024), floats(1024), [(2, 64), (8, 16)]),
    "deep mlp 8x64": (DeepMlp, floats(64), [(2, 8), (20, 32)]),
    "conv1d 8-32-8": (Wide1d, floats(8, 64), [(4, 8), (16, 16)]),
    "cnn 3-32-64-64": (ConvNet, floats(3, 32, 32), [(2, 4), (8, 8)]),
    "resblock 16": (lambda: ResBlock(16), floats(16, 8, 8), [(4, 4), (20, 8)]),
    "resblock 64": (ResBlock, floats(64, 16, 16), [(2, 4), (8, 8)]),
    "resnet18": (ResNet18, floats(3, 64, 64), [(2, 2)]),
    "block 64": (lambda: Block(64, 4), floats(32, 64), [(4, 4), (16, 4)]),
    "block 256": (Block, floats(64, 256), [(4, 2)]),
    "gpt 2x64": (lambda: Gpt(vocabulary=256, width=64, heads=4, layers=2, length=32), tokens(256, 32), [(4, 4)]),
    "tokens 500x32": (Tokens, tokens(500, 20), [(4, 8), (32, 16)]),
    "lstm 16-32": (lambda: Recurrent(nn.LSTM, 16, 32), floats(10, 16), [(4, 4), (32, 8)]),
    "gru 64-128": (lambda: Recurrent(nn.GRU, 64, 128), floats(16, 64), [(4, 4)]),
}
