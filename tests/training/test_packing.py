"""A nested state survives the way through tensors and JSON."""

import math
from collections import Counter

import numpy as np
import pytest
import torch

from wide_compiler import CheckpointError
from wide_compiler.training.packing import pack_state, unpack_state


def test_everything_comes_back_as_it_was():
    state = {
        "numbers": [1, 2.5, -0.0, math.inf, True, None, "text", 2**70],
        "nan": math.nan,
        0: {"exp_avg": torch.arange(3.0), (1, "a"): (torch.ones(2, dtype=torch.bool), [])},
        "$tensor": "a name that means something else here",
        "counter": Counter({3: 2}),
        "array": np.arange(4, dtype=np.uint32),
        "numpy number": np.float64(0.1),
        "empty": torch.empty(0),
        "number": torch.tensor(7, dtype=torch.int64),
        "bf16": torch.ones(2, dtype=torch.bfloat16),
    }
    back = unpack_state(*pack_state(state))
    assert list(back) == list(state) and back["numbers"] == state["numbers"] and math.isnan(back["nan"])
    assert [type(x) for x in back["numbers"]] == [type(x) for x in state["numbers"]]
    assert back[0]["exp_avg"].equal(state[0]["exp_avg"]) and back[0][1, "a"][0].equal(state[0][1, "a"][0])
    assert back["$tensor"] == state["$tensor"]
    assert type(back["counter"]) is Counter and back["counter"] == state["counter"]
    assert back["array"].dtype == np.uint32 and (back["array"] == state["array"]).all()
    assert back["number"].equal(state["number"]) and back["bf16"].equal(state["bf16"])


def test_tied_and_overlapping_tensors():
    base = torch.arange(6.0)
    state = {"a": base, "b": base, "head": base[:3], "turned": base.view(2, 3).t(), "a.b": base + 1}
    state["a"], state["nested"] = base, {"a": {"b": base + 2}}
    tensors, text = pack_state(state)
    assert len({t.untyped_storage().data_ptr() for t in tensors.values()}) == len(tensors)
    assert "b" not in tensors  # tied: written once
    back = unpack_state(tensors, text)
    for name in ("a", "b", "head", "turned", "a.b"):
        assert back[name].equal(state[name]), name
    assert back["nested"]["a"]["b"].equal(base + 2)


def test_paths_that_collide():
    back = unpack_state(*pack_state({"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}}))
    assert back["a.b"].item() == 0 and back["a"]["b"].item() == 1


def test_what_cannot_be_held_is_named():
    with pytest.raises(CheckpointError, match=r"scheduler\.lambdas\.1 is a function"):
        pack_state({"scheduler": {"lambdas": [None, lambda step: 1.0]}})
