"""Named adapters, models over one base, kinds of adapters, lanes that come and go, and what is refused."""

import copy
import pickle

import peft
import pytest
import torch
from peft import IA3Config, LoraConfig, PeftModel, get_peft_model
from torch import nn

from adapters.families import configs, inputs, make, share
from wide_compiler import (
    AlignmentError,
    ArgumentError,
    InputError,
    LaneIndexError,
    UnsupportedError,
    WideConfig,
    adapters,
)
from wide_compiler.training import AdamW

PLAIN = WideConfig(tune_seconds=0)


def shake(model):
    """Numbers instead of the zeros that adapters begin with."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model


def check_lanes(wide, models, sample):
    out = wide.shared(**sample).logits
    with torch.no_grad():
        for lane, model in enumerate(models):
            torch.testing.assert_close(out[lane], model(**sample).logits, rtol=0, atol=1e-9)
            mine = wide.lane(lane)
            assert type(mine) is type(model)
            torch.testing.assert_close(mine(**sample).logits, out[lane], rtol=0, atol=1e-9)


def wide_nodes(wide):
    return str(wide.explain(measure=False)).splitlines()[0]


def test_a_peft_model_with_named_adapters():
    base, targets = make("llama")
    sample = inputs("llama", 2)
    small, big = configs(targets, [2, 5])
    model = get_peft_model(copy.deepcopy(base), small, "small")
    model.add_adapter("big", big)
    shake(model.base_model.set_adapter(["small", "big"]) or model)
    model.set_adapter("small")
    wide = adapters.compile(model.eval(), sample, config=PLAIN)
    assert wide.names == ["small", "big"] and model.active_adapter == "small"
    out = wide.shared(**sample).logits
    for lane, name in enumerate(wide.names):
        model.set_adapter(name)
        torch.testing.assert_close(out[lane], model(**sample).logits, rtol=0, atol=1e-9)
        assert wide.lane(name).peft_config["default"].r == model.peft_config[name].r
    with pytest.raises(LaneIndexError, match="there is no lane 'huge'; the lanes are small, big"):
        wide.lane("huge")


def test_models_over_one_base():
    base, targets = make("gpt2")
    sample = inputs("gpt2", 2)
    models = [shake(get_peft_model(share(base), c)).eval() for c in configs(targets, [1, 4])]
    wide = adapters.compile(models, sample, config=PLAIN)
    check_lanes(wide, models, sample)
    other = get_peft_model(copy.deepcopy(base), configs(targets, [1])[0])
    with pytest.raises(InputError, match=r"model 1: .*weight of its base is not the tensor of model 0"):
        adapters.compile([models[0], other], sample)


KINDS = {
    "dora": [LoraConfig(r=r, target_modules=["q_proj"], use_dora=True) for r in (2, 3)],
    "ia3": [IA3Config(target_modules=["v_proj", "down_proj"], feedforward_modules=["down_proj"])] * 2,
    "modules to save": [
        LoraConfig(r=r, target_modules=["q_proj"], modules_to_save=["lm_head"]) for r in (1, 2)
    ],
    "embeddings": [LoraConfig(r=r, target_modules=["embed_tokens", "v_proj"]) for r in (1, 3)],
    "other targets": [LoraConfig(r=2, target_modules=[t]) for t in ("q_proj", "up_proj")],
    "patterns": [
        LoraConfig(r=2, target_modules=["q_proj", "v_proj"], rank_pattern={"v_proj": r}) for r in (1, 4)
    ],
}


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_adapters_train_as_alone(kind):
    base, _ = make("llama")
    sample = inputs("llama", 2)
    models = [shake(get_peft_model(share(base), c)).eval() for c in KINDS[kind]]
    wide = adapters.compile(models, sample, config=PLAIN)
    check_lanes(wide, models, sample)
    optimizer = torch.optim.SGD([p for p in wide.parameters() if p.requires_grad], 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        wide.shared(**sample).logits.square().mean((1, 2, 3)).sum().backward()
        optimizer.step()
    for lane, model in enumerate(models):
        own = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)
        for _ in range(3):
            own.zero_grad()
            model(**sample).logits.square().mean().backward()
            own.step()
        got = dict(wide.lane(lane).named_parameters())
        for path, parameter in model.named_parameters():
            torch.testing.assert_close(got[path], parameter, rtol=0, atol=1e-9)
    total = wide_nodes(wide).split(" of ")[1].split()[0]
    assert wide_nodes(wide) == f"2 lanes: {total} of {total} wide"


def test_dropout_by_lane_drops_at_each_lanes_rate():
    base, _ = make("llama")
    sample = inputs("llama", 2)
    rates = (0.0, 0.5, 0.9)
    lanes = [
        LoraConfig(r=2, target_modules=["q_proj"], lora_dropout=p, init_lora_weights=False) for p in rates
    ]
    wide = adapters.compile(base, lanes, sample, config=PLAIN)
    plain = wide.shared(**sample).logits
    wide.train()
    drawn = torch.stack([wide.shared(**sample).logits for _ in range(50)])
    assert drawn[:, 0].std(0).max() < 1e-9 and torch.allclose(drawn[0, 0], plain[0])
    assert 0 < drawn[:, 1].std(0).mean() < drawn[:, 2].std(0).mean()
    assert [lane.peft_config["default"].lora_dropout for lane in wide.lanes()] == list(rates)


def test_adapters_come_and_go_while_training_goes_on():
    base, targets = make("llama")
    sample = inputs("llama", 2)
    wide = adapters.compile(
        base, dict(zip("abc", configs(targets, [1, 2, 4]), strict=True)), sample, config=PLAIN
    )
    optimizer = AdamW(wide.parameters(), lr=[1e-2, 2e-2, 3e-2])

    def step():
        optimizer.zero_grad()
        wide.shared(**sample).logits.square().mean((1, 2, 3)).sum().backward()
        optimizer.step()

    step()
    twin = copy.deepcopy(wide)
    assert next(p for path, p in twin.named_parameters() if not twin.has_lanes(path)).data_ptr() in {
        p.data_ptr() for p in base.parameters()
    }
    gone = wide.remove("b", optimizer)
    assert wide.names == ["a", "c"] and gone.peft_config["default"].r == 2
    new = wide.add(configs(targets, [3])[0], "d", optimizer)
    assert (new, wide.names, wide.configs[2].r) == (2, ["a", "c", "d"], 3)
    step()
    assert optimizer.lane_values("lr").tolist() == [1e-2, 3e-2, 1e-2]
    check_lanes(wide, [wide.lane(name) for name in wide.names], sample)
    kept = {k: v.clone() for k, v in wide.state_dict().items()}
    with pytest.raises(AlignmentError, match=r"there is room for \(4, 16\).*max_rank"):
        wide.add(configs(targets, [5])[0], "e")
    assert wide.n == 3 and all(torch.equal(v, wide.state_dict()[k]) for k, v in kept.items())


def test_what_is_refused_says_what_to_do():
    base, targets = make("llama")
    sample = inputs("llama", 2)
    before = {k: v.clone() for k, v in base.state_dict().items()}
    with pytest.raises(ArgumentError, match=r"lane 'lane0': rank 17 is more than .*q_proj can have \(16\)"):
        adapters.compile(base, [LoraConfig(r=17, target_modules=["q_proj"])], sample)
    with pytest.raises(
        ArgumentError, match=r"lane 'x': Target modules .*nope.* not found.*The base has .*q_proj"
    ):
        adapters.compile(base, {"x": LoraConfig(target_modules=["nope"])}, sample)
    with pytest.raises(UnsupportedError, match=r"pissa.*changes the base's weights"):
        adapters.compile(base, [LoraConfig(target_modules=targets, init_lora_weights="pissa")], sample)
    with pytest.raises(UnsupportedError, match="bias='all' trains the base's own biases"):
        gpt2, names = make("gpt2")
        adapters.compile(gpt2, [LoraConfig(target_modules=names, bias="all")], inputs("gpt2", 2))
    with pytest.raises(AlignmentError, match="compile lanes with and without DoRA apart"):
        lanes = [LoraConfig(r=2, target_modules=["q_proj"], use_dora=dora) for dora in (True, False)]
        adapters.compile(base, lanes, sample)
    model = get_peft_model(share(base), LoraConfig(target_modules=targets))
    model.base_model.model.lm_head.weight.requires_grad_(True)
    with pytest.raises(InputError, match=r"lm_head\.weight is a trainable parameter of the base"):
        adapters.compile(model, sample)
    with pytest.raises(ArgumentError, match=r"needs about .* not even one lane fits"):
        adapters.compile(base, configs(targets, [1, 2]), sample, memory_limit=1000)
    assert all(torch.equal(v, before[k]) for k, v in base.state_dict().items())
    assert not any(isinstance(m, peft.tuners.lora.LoraLayer) for m in base.modules())


def test_an_estimate_names_the_chunk_that_fits():
    base, targets = make("llama")
    sample = inputs("llama", 2)
    wide = adapters.compile(base, configs(targets, [1] * 4), sample, config=PLAIN)
    estimate = wide.estimate(inputs("llama", 8))
    assert estimate.activations > 3 * wide.estimate().activations and estimate.lanes == 4
    half = estimate.trunk + estimate.adapters + estimate.activations // 2
    with pytest.raises(ArgumentError, match="chunk_lanes=2 would fit"):
        estimate.check(half)
    chunked = adapters.compile(base, configs(targets, [1] * 4), sample, config=PLAIN, chunk_lanes=2)
    assert chunked.estimate(inputs("llama", 8)).activations * 2 == estimate.activations
    chunked.load_state_dict(wide.state_dict())
    torch.testing.assert_close(chunked.shared(**sample).logits, wide.shared(**sample).logits)


def test_a_base_that_was_changed_is_noticed():
    base, targets = make("llama")
    sample = inputs("llama", 2)
    wide = adapters.compile(base, configs(targets, [1, 2]), sample, config=PLAIN)
    with torch.no_grad():
        base.lm_head.weight.mul_(2)
    for use in (lambda: wide.shared(**sample), lambda: wide.rows(**sample, lanes=[0, 1])):
        with pytest.raises(InputError, match=r"lm_head\.weight of the base was written to"):
            use()
    wide.accept_base()
    check_lanes(wide, [wide.lane(0), wide.lane(1)], sample)


def test_a_lane_is_a_model_of_its_own():
    base, targets = make("llama")
    sample = inputs("llama", 2)
    wide = adapters.compile(base, configs(targets, [1, 2], init_lora_weights=False), sample, config=PLAIN)
    before = wide.shared(**sample).logits
    model = wide.lane(1)
    assert isinstance(model, PeftModel)
    shake(model)
    merged = wide.merged(1)
    assert not any("lora" in path for path, _ in merged.named_parameters())
    torch.testing.assert_close(merged(**sample).logits, before[1], rtol=0, atol=1e-9)
    torch.testing.assert_close(wide.shared(**sample).logits, before)
    wide.load_lane(1, model)
    torch.testing.assert_close(wide.shared(**sample).logits[1], model(**sample).logits, rtol=0, atol=1e-9)
    wide.to(torch.float32)
    single = inputs("llama", 2)
    assert wide.lane(0)(**single).logits.dtype == torch.float32
    rows = wide.rows(**single, lanes=[1, 0]).logits
    torch.testing.assert_close(rows[0], wide.lane(1)(**single).logits[0])


def plain_base():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)).double()


@pytest.mark.parametrize("count", [1, 2])
def test_the_base_is_read_where_it_lies_by_one_adapter_too(count):
    base, x = plain_base(), torch.randn(3, 6, dtype=torch.float64)
    plain = [adapters.LoraConfig(["0", "2"], r=2)] * count
    wide = adapters.compile(base, plain, x, config=PLAIN)
    own = dict(wide.named_parameters())["base_model.model.0.base_layer.weight"]
    assert own.data_ptr() == base[0].weight.data_ptr() and own.shape == base[0].weight.shape
    with torch.no_grad():
        base[0].weight.add_(1.0)
    with pytest.raises(InputError, match="was written to"):
        wide.shared(x)
    wide.accept_base()
    for out in wide.shared(x):  # new adapters are zero
        torch.testing.assert_close(out, base(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda wide: pickle.loads(pickle.dumps(wide))])
def test_a_copy_over_a_base_that_was_trained_before(duplicate, count):
    base, x = plain_base(), torch.randn(3, 6, dtype=torch.float64)
    with torch.no_grad():
        base[0].weight.mul_(0.5)  # as any optimiser or initialisation does
    plain = [adapters.LoraConfig(["0", "2"], r=2)] * count
    wide = adapters.compile(base, plain, x, config=PLAIN)
    wide.validate()
    other = duplicate(wide)
    torch.testing.assert_close(other.shared(x), wide.shared(x), rtol=0, atol=0)
    other.add(adapters.LoraConfig(["0"], r=2), "more")
    torch.testing.assert_close(other.shared(x)[count], base(x), rtol=0, atol=1e-12)
    with torch.no_grad():
        base[0].weight.mul_(0.5)
    for one in (wide, duplicate(wide)):
        with pytest.raises(InputError, match="was written to"):
            one.shared(x)


def test_a_copy_that_is_converted_leaves_the_original_as_it_is():
    base, x = plain_base(), torch.randn(3, 6, dtype=torch.float64)
    wide = adapters.compile(base, [adapters.LoraConfig(["0"], r=2)] * 2, x, config=PLAIN)
    twin = copy.deepcopy(wide).float()
    assert twin.shared(x.float()).dtype == twin.lane(0)(x.float()).dtype == torch.float32
    for out in (*wide.shared(x), wide.lane(0)(x), wide.rows(x, lanes=[0, 1, 0])):
        torch.testing.assert_close(out, base(x), rtol=0, atol=1e-12)


def test_one_adapter_trains_as_alone_and_another_joins_it():
    base, x = plain_base(), torch.randn(3, 6, dtype=torch.float64)
    wide = adapters.compile(base, [adapters.LoraConfig(["0", "2"], r=2)], x, config=PLAIN)
    alone = wide.lane(0)
    optimizer = AdamW(wide.parameters(), lr=1e-2)
    stock = torch.optim.AdamW([p for p in alone.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(3):
        wide.shared(x).square().sum().backward()
        alone(x).square().sum().backward()
        for one in (optimizer, stock):
            one.step()
            one.zero_grad()
    torch.testing.assert_close(wide.shared(x)[0], alone(x), rtol=0, atol=1e-9)
    wide.add(adapters.LoraConfig(["0", "2"], r=2), "second", optimizer)
    out = wide.shared(x)
    torch.testing.assert_close(out[0], alone(x), rtol=0, atol=1e-9)
    torch.testing.assert_close(out[1], base(x), rtol=0, atol=1e-9)
    held = sum(p.numel() for p in wide.parameters() if not p.requires_grad)
    assert held == sum(p.numel() for p in base.parameters())


def test_what_a_plain_base_cannot_do_is_said():
    base, x = plain_base(), torch.randn(3, 6, dtype=torch.float64)
    with pytest.raises(ArgumentError, match=r"lane .*: no module of the base .*'9'.*; it has 0, 2"):
        adapters.compile(base, [adapters.LoraConfig(["9"], r=2)], x)
    wide = adapters.compile(base, [adapters.LoraConfig(["0"], r=2)], x, config=PLAIN)
    ids = torch.ones(2, 3, dtype=torch.long)
    for options in ({}, {"lanes": [0, 0]}):
        with pytest.raises(UnsupportedError, match=r"Sequential has no generate|LoraModel has no generate"):
            wide.generate(ids, **options)
