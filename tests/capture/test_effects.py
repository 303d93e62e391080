"""A forward that sets PyTorch's random generator runs as Python: a graph would draw on."""

import dataclasses
import logging
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
from torch import nn

import wide_compiler
from fn import Fn
from wide_compiler import WideConfig


def seeded(m, x):
    torch.manual_seed(3)
    return x * m.w + torch.randn(3)


def seeded_in_a_fork(m, x):
    with torch.random.fork_rng():
        torch.manual_seed(3)
        noise = torch.randn(3)
    return x * m.w + noise


def state_set(m, x):
    state = torch.get_rng_state()
    noise = torch.randn(3)
    torch.set_rng_state(state)
    return x * m.w + noise + torch.randn(3)


@pytest.mark.parametrize("forward", [seeded, seeded_in_a_fork, state_set])
def test_a_forward_that_sets_the_generator_runs_as_a_loop(forward):
    models = [Fn(forward, w=nn.Parameter(torch.randn(3))) for _ in range(3)]
    wide = wide_compiler.compile(models, torch.randn(2, 3), config=WideConfig(tune_seconds=0))
    assert "its forward calls torch's" in wide.explain(measure=False).why
    x = torch.randn(2, 3)
    torch.manual_seed(0)
    expected = torch.stack([model(x) for model in models])
    torch.manual_seed(0)
    torch.testing.assert_close(wide.shared(x), expected)


def test_a_forward_that_only_draws_keeps_its_rule():
    models = [Fn(lambda m, x: x * m.w + torch.randn(3), w=nn.Parameter(torch.randn(3))) for _ in range(3)]
    wide = wide_compiler.compile(models, torch.randn(2, 3), config=WideConfig(tune_seconds=0))
    assert wide.explain(measure=False).coverage == 1.0
    lanes = wide.shared(torch.zeros(2, 3))
    assert not torch.equal(lanes[0], lanes[1])


@dataclasses.dataclass
class Entry:
    size: int
    names: list


class Harmless(nn.Module):
    """Attributes that nothing changes, of kinds that were once taken for state that moves."""

    def __init__(self, held):
        super().__init__()
        self.fc, self.held = nn.Linear(3, 3), held

    def forward(self, x):
        return self.fc(x) * (1.0 if self.held is not None else 2.0)


@pytest.mark.parametrize(
    "held",
    [
        {i: Entry(i, ["a"]) for i in range(4)},
        torch.utils._pytree.tree_flatten({"a": [1, 2]})[1],
        torch.ops.aten.add.Tensor,
        {"default": types.SimpleNamespace(rank=4, inner=Entry(1, []))},
        [torch.float32, torch.device("cpu"), re.compile("x"), logging.getLogger("x")],
        iter([1, 2]),
    ],
    ids=["dataclasses", "TreeSpec", "OpOverload", "configurations", "plain", "iterator"],
)
def test_an_attribute_that_nothing_changes_is_no_effect(held):
    models, x = [Harmless(held) for _ in range(2)], torch.randn(2, 3)
    wide = wide_compiler.compile(models, x, config=WideConfig(tune_seconds=0))
    assert wide.explain(measure=False).coverage == 1.0
    torch.testing.assert_close(wide.shared(x), torch.stack([model(x) for model in models]))


LOG = []


class Logs(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.register_forward_hook(lambda module, args, out: LOG.append(out))

    def forward(self, x):
        return self.fc(x)


def test_lists_that_a_hook_appends_to_get_real_tensors_once_a_lane():
    models, x = [Logs() for _ in range(3)], torch.randn(2, 3)
    wide = wide_compiler.compile(models, x, config=WideConfig(tune_seconds=0))
    assert not LOG
    out = wide.shared(x)
    assert len(LOG) == 3 and all(torch.equal(a, b) for a, b in zip(LOG, out, strict=True))
    LOG.clear()


LOADS = """
import sys, types, torch, wide_compiler
from torch import nn
from torch.utils.checkpoint import checkpoint

class Loads(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)
    def forward(self, x):
        import fresh_module
        return checkpoint(self.fc, x, use_reentrant=False) * fresh_module.SCALE

assert "fresh_module" not in sys.modules
members = [Loads() for _ in range(3)]
x = torch.randn(2, 3)
wide = wide_compiler.compile(members, x)
import fresh_module
assert fresh_module.registered == ["once"] and fresh_module.Kind.A.value == 1
torch.testing.assert_close(wide.shared(x), torch.stack([m(x) for m in members]))
assert wide.explain(measure=False).coverage == 1.0, str(wide.explain(measure=False))
fresh_module.SCALE = 5.0
torch.testing.assert_close(wide.shared(x), torch.stack([m(x) for m in members]))
print("fine")
"""
FRESH = """
import collections.abc, enum
SCALE = 2.0
registered = []
class Kind(enum.Enum):
    A = 1
class Mapping:
    pass
collections.abc.Mapping.register(Mapping)
registered.append("once")
"""


def test_a_forward_that_loads_modules(tmp_path):
    """What loading changes (a module's own globals, classes made and registered) is not the forward's doing,
    and is not undone. Checkpoints load torch's compiler, so a fresh process is needed."""
    (tmp_path / "fresh_module.py").write_text(FRESH)
    (tmp_path / "script.py").write_text(LOADS)
    source = str(Path(wide_compiler.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), source])}
    done = subprocess.run(
        [sys.executable, tmp_path / "script.py"], capture_output=True, text=True, env=environment
    )
    assert done.stdout.endswith("fine\n"), done.stderr
