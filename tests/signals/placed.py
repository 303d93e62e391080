"""Helpers: signals in one line, the work of each worker, and training beside one process."""

import contextlib
import copy
from collections import Counter

import torch

import wide_compiler.signals as gt


def signal(name, workers, axis=0, backward=None, compile=False):
    shard = gt.ShardConfig(axis=axis, workers=workers)
    gt.register_config(name, gt.SignalConfig(shard=shard, backward_signal=backward, compile=compile))
    return name


@contextlib.contextmanager
def work():
    """Yields a list that holds, afterwards, each worker's instructions by op done within."""
    before = gt.debug.worker_stats()
    done = []
    yield done
    for old, new in zip(before, gt.debug.worker_stats(), strict=True):
        count = Counter(new["instructions"])
        count.subtract(old["instructions"])
        done.append(+count)


def train(model, forward, data, optimizer, steps=20):
    """Losses, by a step as anybody would write it."""
    losses = []
    for _ in range(steps):
        loss = forward(model, *data)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def same_training(model, forward, data, make_optimizer, placed_forward=None, steps=20, tolerance=1e-9):
    """Train a copy in this process and the model on workers; returns the instructions by worker.

    placed_forward: the forward with contexts; the plain one is `forward`.
    """
    alone = copy.deepcopy(model)
    expected = train(alone, forward, data, make_optimizer(alone.parameters()), steps)
    gt.adopt(model)
    handles = [gt.tensor(x) for x in data]
    optimizer = make_optimizer(model.parameters())
    with work() as done:
        got = train(model, placed_forward or forward, handles, optimizer, steps)
    torch.testing.assert_close(torch.tensor(got), torch.tensor(expected), rtol=tolerance, atol=tolerance)
    for (name, a), b in zip(alone.state_dict().items(), model.state_dict().values(), strict=True):
        torch.testing.assert_close(
            b.cpu(), a, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )
    return done
