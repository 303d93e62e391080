"""Over a long training nothing grows: neither what workers hold, nor their memory, nor the script's books."""

import pytest
import torch
from torch import nn

import wide_compiler.signals as gt
from nightly import count
from signals.placed import signal
from signals.soak import long_training


@pytest.mark.usefixtures("workers")
def test_many_steps():
    live = long_training(count(150, 2000), window=50)
    assert min(live[0][0], live[1][0]) > 10  # parameters and their moments


@pytest.mark.usefixtures("workers")
def test_numbers_that_change_make_no_new_templates():
    signal("dp", [0, 1])
    model = nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters())
    x = gt.tensor(torch.ones(4, 3))
    counts = []
    for i in range(12):
        with gt.signal.context("dp"):
            loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.param_groups[0]["lr"] = 0.01 / (i + 1)
        optimizer.step()
        counts.append((gt.debug.bookkeeping()["plans"], gt.debug.worker_stats()[0]["templates"]))
    assert counts[-1] == counts[3]
