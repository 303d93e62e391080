"""N adapters of stock PEFT, of different ranks, train at once as they train alone; the trunk is held once."""

import copy

import pytest
import torch
import torch.nn.functional as F
from peft import get_peft_model

from adapters.families import FAMILIES, configs, inputs, make
from nightly import one_of
from wide_compiler import WideConfig, adapters
from wide_compiler.training import AdamW, lane_losses

RANKS = [1, 2, 3, 4, 5, 6, 7, 8]
RATES = [1e-3 * (i + 1) for i in range(8)]
STEPS = 30


def batches(name, base, n):
    found = []
    for step in range(STEPS):
        batch = inputs(name, n, 2, seed=step)
        with torch.no_grad():
            shape = base(**{k: v[0] for k, v in batch.items()}).logits.shape
        generator = torch.Generator().manual_seed(100 + step)
        found.append((batch, torch.randint(0, shape[-1], (n, *shape[:-1]), generator=generator)))
    return found


def train_alone(model, rate, lane, data):
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=rate)
    for batch, target in data:
        logits = model(**{k: v[lane] for k, v in batch.items()}).logits
        loss = F.cross_entropy(logits.flatten(0, -2), target[lane].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return float(loss.detach())


@pytest.mark.parametrize("name", FAMILIES)
def test_eight_adapters_train_as_each_alone(name):
    base, targets = make(name)
    lanes = configs(targets, RANKS)
    data = batches(name, base, 8)
    torch.manual_seed(1)
    alone = [get_peft_model(copy.deepcopy(base), copy.deepcopy(config)) for config in lanes]
    last = [train_alone(model, RATES[lane], lane, data) for lane, model in enumerate(alone)]

    torch.manual_seed(1)
    flags = [p.requires_grad for p in base.parameters()]
    wide = adapters.compile(base, lanes, inputs(name, 2), config=WideConfig(tune_seconds=0))
    assert flags == [p.requires_grad for p in base.parameters()] and not hasattr(base, "peft_config")
    optimizer = AdamW(wide.parameters(), lr=RATES, weight_decay=0.01)
    for batch, target in data:
        logits = wide.stacked(**batch).logits
        losses = lane_losses.cross_entropy(logits.flatten(1, -2), target.flatten(1))
        optimizer.zero_grad()
        losses.sum().backward()
        optimizer.step()
    torch.testing.assert_close(losses.detach(), torch.tensor(last, dtype=torch.float64), rtol=0, atol=1e-9)
    for lane, model in enumerate(alone):
        trained = {path: p for path, p in model.named_parameters() if p.requires_grad}
        got = dict(wide.lane(lane).named_parameters())
        assert trained and max(float(p.abs().max()) for path, p in trained.items() if "lora_B" in path) > 1e-3
        for path, parameter in trained.items():
            torch.testing.assert_close(got[path], parameter, rtol=0, atol=1e-9)

    summary = str(wide.explain(measure=False)).splitlines()[0]
    total = int(summary.split(" of ")[1].split()[0])
    assert summary == f"8 lanes: {total} of {total} wide" and total > 20
    trunk = {path: p for path, p in wide.named_parameters() if not wide.has_lanes(path)}
    assert sum(p.numel() for p in trunk.values()) == sum(p.numel() for p in base.parameters())
    places = {p.data_ptr() for p in base.parameters()}
    assert all(p.data_ptr() in places and not p.requires_grad for p in trunk.values())
    for path, parameter in wide.named_parameters():
        if ".lora_A." in path:
            assert all(not parameter[lane, rank:].any() for lane, rank in enumerate(RANKS))
            assert parameter[0, :1].any()


@pytest.mark.parametrize("name", [name for name in FAMILIES if name in ("llama", "gpt2", "bert")])
def test_a_base_that_computes_its_layers_again_keeps_little(name):
    kept, found = [], []
    for again in (False, True):
        base, targets = make(name)
        base.train()
        if again:
            base.gradient_checkpointing_enable({"use_reentrant": False})
            base.enable_input_require_grads()
        torch.manual_seed(1)
        wide = adapters.compile(
            base, configs(targets, [2, 3]), inputs(name, 2), config=WideConfig(tune_seconds=0)
        )
        weights = {p.untyped_storage().data_ptr() for p in wide.parameters()}
        sizes = {}

        def pack(t, weights=weights, sizes=sizes):
            if t.untyped_storage().data_ptr() not in weights:
                sizes[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            logits = wide.stacked(**inputs(name, 2, 2)).logits
        trained = [p for p in wide.parameters() if p.requires_grad]
        found.append((logits, *torch.autograd.grad(logits.square().sum(), trained)))
        kept.append(sum(sizes.values()))
    torch.testing.assert_close(found[1], found[0])
    assert kept[1] < kept[0] / 2


def adapter_of(model):
    return torch.cat([p.detach().double().flatten() for p in model.parameters() if p.requires_grad])


def cast(batch, dtype):
    return {name: x.to(dtype) if x.is_floating_point() else x for name, x in batch.items()}


@pytest.mark.parametrize("name", one_of(3, FAMILIES))
def test_in_float32_lanes_are_no_further_from_float64_than_peft(name, tmp_path):
    base, targets = make(name)
    lanes = configs(targets, RANKS)
    data = batches(name, base, 8)
    torch.manual_seed(1)
    begin = [get_peft_model(copy.deepcopy(base), copy.deepcopy(config)) for config in lanes]
    found = {}
    for dtype in (torch.float64, torch.float32):
        own = [(cast(batch, dtype), target) for batch, target in data]
        models = [copy.deepcopy(model).to(dtype) for model in begin]
        for lane, model in enumerate(models):
            train_alone(model, RATES[lane], lane, own)
        found[dtype] = [adapter_of(model) for model in models]
    sample = cast(inputs(name, 2), torch.float32)
    wide = adapters.compile(copy.deepcopy(base).float(), lanes, sample, config=WideConfig(tune_seconds=0))
    for lane, model in enumerate(begin):
        model.float().save_pretrained(tmp_path / str(lane))
        wide.load_adapter(lane, tmp_path / str(lane))
    optimizer = AdamW(wide.parameters(), lr=RATES, weight_decay=0.01)
    for batch, target in own:
        losses = lane_losses.cross_entropy(wide.stacked(**batch).logits.flatten(1, -2), target.flatten(1))
        optimizer.zero_grad()
        losses.sum().backward()
        optimizer.step()
    right = found[torch.float64]
    alone = [(one - other).norm() for one, other in zip(found[torch.float32], right, strict=True)]
    together = [(adapter_of(wide.lane(i)) - other).norm() for i, other in enumerate(right)]
    assert float((torch.stack(together) / torch.stack(alone)).log().mean().exp()) < 1.0
