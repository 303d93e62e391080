"""Many adapters generate at once what each generates alone."""

import pytest
import torch

from adapters.families import TOKENS, configs, inputs, make
from wide_compiler import ArgumentError, InputError, WideConfig, adapters

PLAIN = WideConfig(tune_seconds=0)


def make_wide(name, n=8, **options):
    base, targets = make(name)
    if hasattr(base.config, "use_cache"):
        base.config.use_cache = True
    lanes = configs(targets, [1 + i % 4 for i in range(n)], init_lora_weights=False, **options)
    return adapters.compile(base, lanes, {**inputs(name, 2), "use_cache": False}, config=PLAIN)


def prompts(n, lengths, rows=2):
    generator = torch.Generator().manual_seed(3)
    return [
        torch.randint(3, TOKENS, (rows, lengths[i % len(lengths)]), generator=generator) for i in range(n)
    ]


@pytest.mark.parametrize("name", ["llama", "gpt2", "t5"])
def test_greedy_tokens_are_each_lanes_own(name):
    wide = make_wide(name)
    given = prompts(8, [4] if name == "t5" else [3, 5, 4])
    options = {"max_new_tokens": 9, "do_sample": False, "pad_token_id": 0}
    got = wide.generate(given, **options)
    different = set()
    for lane in range(8):
        mask = torch.ones_like(given[lane])
        alone = wide.lane(lane).generate(input_ids=given[lane], attention_mask=mask, **options)
        assert torch.equal(got[lane], alone)
        different.add(tuple(alone[:, -3:].flatten().tolist()))
    assert len(different) > 1


def test_rows_name_their_adapter():
    wide = make_wide("llama", 4)
    ids = prompts(1, [5], rows=7)[0]
    lanes = [2, 0, "lane2", 3, 0, 2, 1]
    out = wide.rows(ids, lanes=lanes).logits
    tokens = wide.generate(ids, lanes=lanes, max_new_tokens=6, do_sample=False)
    for row, lane in enumerate(lanes):
        model = wide.lane(lane)
        torch.testing.assert_close(out[row], model(ids[row : row + 1]).logits[0], rtol=0, atol=1e-9)
        alone = model.generate(input_ids=ids[row : row + 1], max_new_tokens=6, do_sample=False)[0]
        assert torch.equal(tokens[row, : len(alone)], alone)
    with pytest.raises(InputError, match=r"has 7 rows, lanes= names 2"):
        wide.rows(ids, lanes=[0, 1])
    with pytest.raises(ArgumentError, match="with labels the model returns outputs without one entry"):
        wide.rows(input_ids=ids, labels=ids, lanes=lanes)


def test_sampled_tokens_are_those_of_each_lane_with_its_seed():
    wide = make_wide("llama", 3)
    given = prompts(3, [4])
    options = {"max_new_tokens": 12, "do_sample": True, "top_k": 12, "temperature": 1.3, "pad_token_id": 0}
    got = wide.generate(given, seeds=[5, 6, 7], **options)
    for lane in range(3):
        torch.manual_seed(5 + lane)
        assert torch.equal(got[lane], wide.lane(lane).generate(input_ids=given[lane], **options))
    assert not torch.equal(*wide.generate([given[0]] * 3, seeds=[5, 5, 7], **options)[1:])


def test_beams_and_several_sequences():
    wide = make_wide("llama", 3)
    given = prompts(3, [4])
    options = {
        "max_new_tokens": 5,
        "num_beams": 3,
        "num_return_sequences": 2,
        "do_sample": False,
        "pad_token_id": 0,
    }
    got = wide.generate(given, **options)
    for lane in range(3):
        alone = wide.lane(lane).generate(input_ids=given[lane], **options)
        assert got[lane].shape[0] == 4 and torch.equal(got[lane][:, : alone.shape[1]], alone)


def test_one_prompt_for_all_lanes_and_lengths_that_need_a_number():
    wide = make_wide("llama", 2)
    given = prompts(2, [3, 5])
    both = wide.generate(given[0], max_new_tokens=4, do_sample=False)
    assert torch.equal(both[1], wide.lane(1).generate(input_ids=given[0], max_new_tokens=4, do_sample=False))
    with pytest.raises(InputError, match="max_new_tokens"):
        wide.generate(given)
    with pytest.raises(InputError, match="expected 2 tensors"):
        wide.generate(given[:1])
