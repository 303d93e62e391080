"""Lanes with data of their own: other batch sizes, lengths and numbers of batches."""

import pytest
import torch
import torch.nn.functional as F

from adapters.families import TOKENS, configs, inputs, make
from wide_compiler import InputError, WideConfig, adapters
from wide_compiler.adapters import LaneBatches
from wide_compiler.training import AdamW, fit, lane_losses

SIZES = [(1, 4, 5), (3, 6, 2), (2, 3, 4)]  # rows, tokens, batches of each lane
RATES = [1e-2, 2e-2, 3e-2]


def source(lane):
    rows, tokens, count = SIZES[lane]
    generator = torch.Generator().manual_seed(lane)
    found = []
    for _ in range(count):
        ids = torch.randint(3, TOKENS, (rows, tokens), generator=generator)
        found.append({"input_ids": ids, "labels": torch.cat([ids[:, 1:], torch.full((rows, 1), -100)], 1)})
    return found


def token_loss(output, labels):
    return lane_losses.cross_entropy(output.logits.flatten(1, 2), labels.flatten(1))


@pytest.mark.parametrize("leave", [True, False])
def test_lanes_train_on_their_own_data_as_alone(leave):
    base, targets = make("llama")
    lanes = configs(targets, [1, 2, 3])
    wide = adapters.compile(base, lanes, inputs("llama", 2), config=WideConfig(tune_seconds=0))
    alone = list(wide.lanes())
    data = LaneBatches([source(lane) for lane in range(3)], epochs=2)
    history = fit(wide, AdamW(wide.parameters(), lr=RATES), token_loss, data, epochs=1, leave=leave)
    assert {lane: stop.reason for lane, stop in history.stopped.items()} == {
        1: "its data has ended",
        2: "its data has ended",
    }
    assert history.stopped[1].step == 4 and history.stopped[2].step == 8 and history.steps == 10
    for lane, model in enumerate(alone):
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=RATES[lane])
        for batch in source(lane) * 2:
            logits = model(input_ids=batch["input_ids"]).logits
            loss = F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        got = dict(wide.lane(lane).named_parameters())
        for path, parameter in model.named_parameters():
            torch.testing.assert_close(got[path], parameter, rtol=0, atol=1e-9)


def test_batches_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match=r"lane 1: its batch has \['x'\], lane 0 has \['input_ids'\]"):
        list(LaneBatches([[{"input_ids": torch.ones(1, 2)}], [{"x": torch.ones(1, 2)}]]))
    with pytest.raises(InputError, match="lane 1: its data gave no batches"):
        list(LaneBatches([[{"input_ids": torch.ones(1, 2)}], []]))
