"""Adapters in PEFT's own files: read by PEFT, read from PEFT, whole after a kill."""

import copy
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from peft import PeftModel, get_peft_model
from torch import nn

from adapters.families import configs, inputs, make
from wide_compiler import ArgumentError, WideConfig, adapters
from wide_compiler.adapters import LoraConfig

PLAIN = WideConfig(tune_seconds=0)


def test_files_of_both_are_read_by_both(tmp_path):
    base, targets = make("llama")
    sample = inputs("llama", 2)
    lanes = dict(zip("ab", configs(targets, [2, 4], init_lora_weights=False), strict=True))
    wide = adapters.compile(base, lanes, sample, config=PLAIN)
    out = wide.shared(**sample).logits
    for lane, name in enumerate(wide.names):
        wide.save_adapter(name, tmp_path / name)
        stock = PeftModel.from_pretrained(copy.deepcopy(base), tmp_path / name)
        torch.testing.assert_close(stock(**sample).logits, out[lane], rtol=0, atol=1e-9)
    other = get_peft_model(copy.deepcopy(base), configs(targets, [3], init_lora_weights=False)[0])
    other.save_pretrained(tmp_path / "stock")
    wide.load_adapter("a", tmp_path / "stock")
    assert wide.configs[0].r == 3 and wide.lane("a").peft_config["default"].r == 3
    torch.testing.assert_close(wide.shared(**sample).logits[0], other(**sample).logits, rtol=0, atol=1e-9)
    torch.testing.assert_close(wide.shared(**sample).logits[1], out[1])


def models():
    yield nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), torch.randn(2, 4), ["0", "2"]
    yield (
        nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 2)),
        torch.randn(2, 3, 5, 5),
        ["0", "2"],
    )
    yield nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 3)), torch.randint(9, (2, 5)), ["0", "1"]


@pytest.mark.parametrize("case", list(models()), ids=["linear", "convolution", "embedding"])
def test_lora_without_peft_writes_what_peft_reads(case, tmp_path):
    base, sample, targets = case
    base, sample = base.double(), sample.double() if sample.is_floating_point() else sample
    torch.manual_seed(0)
    lanes = [LoraConfig(targets, r=r, lora_alpha=5, use_rslora=r == 2) for r in (1, 2)]
    wide = adapters.compile(base, lanes, sample, config=PLAIN)
    torch.testing.assert_close(wide.shared(sample)[0], base(sample))
    with torch.no_grad():
        for lane in range(2):
            model = wide.lane(lane)
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.normal_()
            wide.load_lane(lane, model)
    out = wide.shared(sample)
    assert not torch.allclose(out[0], out[1])
    for lane in range(2):
        wide.save_adapter(lane, tmp_path / str(lane))
        stock = PeftModel.from_pretrained(copy.deepcopy(base), tmp_path / str(lane))
        torch.testing.assert_close(stock(sample), out[lane])
        torch.testing.assert_close(wide.merged(lane)(sample), out[lane])
        torch.testing.assert_close(wide.lane(lane)(sample), out[lane])
    wide.load_adapter(0, tmp_path / "1")
    torch.testing.assert_close(wide.shared(sample)[0], out[1])
    with pytest.raises(ArgumentError, match=r"LoRA adapts nn\.Linear"):
        adapters.compile(nn.Sequential(nn.LayerNorm(4)), [LoraConfig(["0"])], torch.randn(2, 4))


SAVER = """
import sys, torch
from pathlib import Path
from torch import nn
from wide_compiler import adapters
from wide_compiler.adapters import LoraConfig
from wide_compiler.adapters.atomic_folder import replace_folder
torch.manual_seed(0)
library = adapters.lora_library.LoraLibrary()
models = [library.inject(nn.Linear(600, 600), LoraConfig("", r=r)) for r in (40, 80)]
for number, model in enumerate(models):
    for p in model.parameters():
        p.data.fill_(number + 1.0)
print("ready", flush=True)
while True:
    for model in models:
        replace_folder(Path(sys.argv[1]), lambda new: library.save(model, new))
"""


def test_a_kill_while_saving_leaves_an_adapter_that_is_whole(tmp_path):
    folder = tmp_path / "adapter"
    library = adapters.lora_library.LoraLibrary()
    for delay in (0.01, 0.03, 0.07, 0.11, 0.2):
        process = subprocess.Popen([sys.executable, "-c", SAVER, str(folder)], stdout=subprocess.PIPE)
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        while not folder.exists():
            assert process.poll() is None, "the saver has ended"
            time.sleep(0.001)
        time.sleep(delay)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        adapters.atomic_folder.recover(folder)
        model = library.load(nn.Linear(600, 600), folder)  # raises if config and tensors are of two adapters
        rank = model.peft_config["default"].r
        values = {float(p.detach().mean()) for path, p in model.named_parameters() if "lora" in path}
        assert values == {1.0 if rank == 40 else 2.0}
