"""Adapters compiled inside a signal's context: lanes over workers, the base whole on each of them."""

import contextlib
import copy

import pytest
import torch

import wide_compiler.signals as gt
from adapters.families import configs, inputs, make
from signals.placed import signal
from wide_compiler import adapters
from wide_compiler.training import AdamW, Population

RANKS = [1, 2, 3, 4]
RATES = torch.linspace(1e-3, 1e-2, len(RANKS))


@pytest.fixture(autouse=True)
def _two_workers():
    gt.shutdown()
    gt.cpu_workers(2)
    signal("population", [0, 1])
    yield
    gt.shutdown()
    gt.clear_configs()


def here_and_there(family="llama"):
    base, targets = make(family)
    sample = inputs(family, 2)
    wides = []
    for context in (contextlib.nullcontext(), gt.signal.context("population")):
        torch.manual_seed(1)
        with context:
            wides.append(adapters.compile(base, configs(targets, RANKS), sample).seed(5))
    assert all(type(p) is torch.nn.Parameter for p in base.parameters())  # the base stays here
    return *wides, sample


def train(wide, sample, steps=3):
    optimizer = AdamW([p for p in wide.parameters() if p.requires_grad], lr=RATES)
    losses = []
    for _ in range(steps):
        loss = wide.shared(**sample).logits.square().flatten(1).mean(1)
        optimizer.zero_grad()
        loss.sum().backward()
        optimizer.step()
        losses.append(loss.detach().cpu())
    return torch.stack(losses), optimizer


def check(there, here, sample):
    torch.testing.assert_close(
        there.shared(**sample).logits.cpu(), here.shared(**sample).logits, rtol=0, atol=1e-9
    )


def test_training_lanes_files_and_lanes_that_come_and_go(tmp_path):
    here, there, sample = here_and_there()
    (losses, of_here), (losses_there, of_there) = train(here, sample), train(there, sample)
    torch.testing.assert_close(losses_there, losses, rtol=0, atol=1e-9)
    for name, p in there.named_parameters():
        lanes = name in there.wide_states
        assert gt.debug.placement(p) == ((0, 1), "S(0)" if lanes else "R"), name
    before = gt.debug.worker_stats()
    there.shared(**sample).logits.square().mean().backward()
    for old, new in zip(before, gt.debug.worker_stats(), strict=True):  # one instruction each way
        for kind in ("lanes", "lanes_backward"):
            assert new["instructions"][kind] == old["instructions"][kind] + 1 == 4
        assert new["all_gathers"] == old["all_gathers"] and new["bytes_sent"] == old["bytes_sent"]
    check(there, here, sample)
    for wide, folder in ((here, "here"), (there, "there")):
        wide.save_adapter(1, tmp_path / folder)
    one, other = there.lane(1), here.lane(1)
    torch.testing.assert_close(one(**sample).logits.cpu(), other(**sample).logits, rtol=0, atol=1e-9)
    there.load_adapter(1, tmp_path / "here")
    here.load_adapter(1, tmp_path / "there")
    check(there, here, sample)
    rows = [0, 3]
    torch.testing.assert_close(
        there.rows(**sample, lanes=rows).logits.cpu(),
        here.rows(**sample, lanes=rows).logits,
        rtol=0,
        atol=1e-9,
    )
    for wide, optimizer in ((here, of_here), (there, of_there)):
        torch.manual_seed(7)
        wide.add(copy.deepcopy(wide.configs[2]), "new", optimizer)
        wide.remove("lane0", optimizer)
    assert there.names == here.names == ["lane1", "lane2", "lane3", "new"]
    check(there, here, sample)
    for wide in (here, there):
        Population(wide).copy(0, 2)
    check(there, here, sample)
