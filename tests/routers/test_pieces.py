"""Models of which a part can be in no graph: the rest of them runs by plans, equal to the model."""

import copy
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from routers.towers import AT_ONCE
from wide_compiler.routers import CompileRouter
from wide_compiler.routers.shadow import original_of, shadow, shadow_of_tree
from wide_compiler.routers.split_loop import split_forward


class Heads(nn.Module):
    """Three alike layers, which a graph can hold."""

    def __init__(self, dim):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, x):
        return torch.tanh(self.q(x)) * self.k(x) + self.v(x)


class Counting(nn.Module):
    """Changes an attribute at every call, so that no graph can hold it."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * (1 + self.calls % 2)


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.heads, self.gate, self.after = Heads(dim), Counting(), nn.Linear(dim, dim)

    def forward(self, x):
        x = self.heads(x)
        if x.sum() > 0:  # asks for a value
            x = x + 1
        return self.after(self.gate(x))


class Stack(nn.Module):
    def __init__(self, dim=6, depth=2):
        super().__init__()
        self.blocks = nn.ModuleList(Block(dim) for _ in range(depth))
        self.head = nn.Linear(dim, 2)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Expert(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.w1, self.w3 = nn.Linear(dim, hidden, bias=False), nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Mixture(nn.Module):
    """The block of Mixtral as transformers 4 has it: a list of experts, a loop over those that are hit."""

    def __init__(self, dim=6, experts=4, top_k=2, expert=Expert):
        super().__init__()
        self.num_experts, self.top_k = experts, top_k
        self.gate = nn.Linear(dim, experts, bias=False)
        self.experts = nn.ModuleList(expert(dim, 8) for _ in range(experts))

    def forward(self, hidden_states):
        batch_size, sequence_length, hidden_dim = hidden_states.shape
        hidden_states = hidden_states.view(-1, hidden_dim)
        routing_weights = F.softmax(self.gate(hidden_states), dim=1)
        routing_weights, selected_experts = torch.topk(routing_weights, self.top_k, dim=-1)
        routing_weights = routing_weights / routing_weights.sum(dim=-1, keepdim=True)
        final_hidden_states = torch.zeros_like(hidden_states)
        expert_mask = F.one_hot(selected_experts, num_classes=self.num_experts).permute(2, 1, 0)
        expert_hit = torch.greater(expert_mask.sum(dim=(-1, -2)), 0).nonzero()
        for expert_idx in expert_hit:
            expert_layer = self.experts[expert_idx]
            idx, top_x = torch.where(expert_mask[expert_idx].squeeze(0))
            current_state = hidden_states[None, top_x].reshape(-1, hidden_dim)
            current_hidden_states = expert_layer(current_state) * routing_weights[top_x, idx, None]
            final_hidden_states.index_add_(0, top_x, current_hidden_states.to(hidden_states.dtype))
        return final_hidden_states.reshape(batch_size, sequence_length, hidden_dim)


class Deep(nn.Module):
    def __init__(self, dim=6):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2))
        self.mixtures = nn.ModuleList(Mixture(dim) for _ in range(2))

    def forward(self, x):
        for norm, mixture in zip(self.norms, self.mixtures, strict=True):
            x = x + mixture(norm(x))
        return x


def assert_same(model, fast, *args, **kwargs):
    """Outputs and gradients of `fast` (made of `model`) equal those of a copy of the model."""
    double = copy.deepcopy(model)
    expected, got = double(*args, **kwargs), fast(*args, **kwargs)
    expected, got = (x if isinstance(x, torch.Tensor) else x[0] for x in (expected, got))
    torch.testing.assert_close(got, expected)
    if got.requires_grad:
        want = torch.autograd.grad(expected.square().sum(), list(double.parameters()), allow_unused=True)
        have = torch.autograd.grad(got.square().sum(), list(model.parameters()), allow_unused=True)
        assert [g is None for g in want] == [g is None for g in have]
        # Float32 rounds differently in another order of sums; in float64 all must agree.
        loose = {"rtol": 1e-3, "atol": 1e-3} if got.dtype is torch.float32 else {}
        torch.testing.assert_close(have, want, **loose)


def double(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def test_the_rest_runs_by_a_plan():
    torch.manual_seed(0)
    model = Stack().double()
    x = double(4, 6)
    compiler = CompileRouter.from_module(model, x, config=AT_ONCE)
    assert [block.gate.calls for block in model.blocks] == [0, 0]  # planning has no effects
    groups = {frozenset(group.paths) for group in compiler.plan.groups if group.how == "together"}
    assert groups == {frozenset(f"blocks.{i}.heads.{name}" for name in "qkv") for i in range(2)}
    assert "calls" in compiler.plan.declined[0].why or "attributes" in compiler.plan.declined[0].why
    fast = compiler.compile()
    for _ in range(3):
        assert_same(model, fast, double(4, 6))
    assert [block.gate.calls for block in model.blocks] == [3, 3]  # each call has its effects, once


def test_changes_are_seen():
    torch.manual_seed(0)
    model = Stack().double()
    fast = CompileRouter.from_module(model, double(4, 6), config=AT_ONCE).compile()
    assert_same(model, fast, double(4, 6))
    with torch.no_grad():
        model.blocks[0].heads.q.weight.mul_(2)
    assert_same(model, fast, double(4, 6))
    model.blocks[0].heads.k = nn.Linear(6, 6).double()
    assert_same(model, fast, double(4, 6))
    model.blocks[1].heads = nn.Linear(6, 6).double()  # a part that has another structure
    assert_same(model, fast, double(4, 6))
    model.blocks[1].gate.calls = 7
    assert_same(model, fast, double(3, 6))
    fast.eval()
    assert not model.blocks[0].heads.training
    assert_same(model, fast, double(4, 6))


def test_experts_are_lanes():
    torch.manual_seed(0)
    model = Deep().double()
    x = double(2, 9, 6)
    compiler = CompileRouter.from_module(model, x, config=AT_ONCE)
    found = [set(group.paths) for group in compiler.plan.groups if group.how == "together"]
    assert found == [{f"mixtures.{i}.experts.{e}" for e in range(4)} for i in range(2)]
    fast = compiler.compile()
    for _ in range(4):  # every time other tokens for other experts
        assert_same(model, fast, double(2, 9, 6))
    with torch.no_grad():
        model.mixtures[0].experts[1].w2.weight.add_(1)
        model.mixtures[1].gate.weight[2:].sub_(50)  # experts that nobody asks
    assert_same(model, fast, double(2, 9, 6))
    assert_same(model, fast, double(1, 1, 6))
    with torch.no_grad():
        assert_same(model, fast, double(2, 9, 6))


def test_experts_that_are_changed():
    torch.manual_seed(0)
    model = Mixture().double()
    x = double(2, 9, 6)
    fast = CompileRouter.from_module(model, x, config=AT_ONCE).compile()
    assert_same(model, fast, x)
    model.experts[2] = nn.Linear(6, 6).double()
    assert_same(model, fast, x)
    seen = []
    model.experts[0].register_forward_hook(lambda *_: seen.append(1))
    fast(x)
    assert seen
    model.experts[0]._forward_hooks.clear()
    model.experts[1].forward = lambda x: x * 3
    assert_same(model, fast, x)


def test_an_expert_that_mixes_rows_stays_by_itself():
    class Centred(Expert):
        def forward(self, x):
            return super().forward(x - x.mean(0, keepdim=True))

    model = Mixture(expert=Centred).double()
    x = double(2, 9, 6)
    compiler = CompileRouter.from_module(model, x, config=AT_ONCE)
    assert [group.how for group in compiler.plan.groups] == ["loop"]
    assert "mix rows" in compiler.plan.groups[0].why
    assert_same(model, compiler.compile(), x)


def test_rows_that_are_not_filled_with_zeros():
    class Scaled(Expert):
        def forward(self, x):
            return super().forward(x / x.square().sum(-1, keepdim=True).sqrt())

    torch.manual_seed(0)
    model = Mixture(expert=Scaled).double()
    x = double(2, 9, 6)
    compiler = CompileRouter.from_module(model, x, config=AT_ONCE)
    fast = compiler.compile()
    for _ in range(3):
        assert_same(model, fast, double(2, 9, 6))


def test_two_threads():
    torch.manual_seed(0)
    for model in (Stack().double(), Deep().double()):
        x = double(2, 9, 6)
        fast = CompileRouter.from_module(model, x, config=AT_ONCE).compile().eval()
        inputs = [double(2, 9, 6) for _ in range(8)]
        for block in getattr(model, "blocks", []):
            block.gate.forward = lambda x: x
        expected = [copy.deepcopy(model).eval()(x) for x in inputs]
        got, errors = {}, []

        def work(numbers, fast=fast, inputs=inputs, got=got, errors=errors):
            try:
                for i in numbers:
                    got[i] = fast(inputs[i])
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(range(k, 8, 2),)) for k in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        for i, want in enumerate(expected):
            torch.testing.assert_close(got[i], want)


def test_a_shadow_is_the_module():
    model = Stack()
    heads = shadow(model.blocks[0].heads, call=lambda x: x * 2)
    other = shadow_of_tree(model, {"blocks.0.heads": lambda x: x * 0})
    assert isinstance(other, Stack) and isinstance(heads, Heads)
    assert [original_of(b) for b in other.blocks] == list(model.blocks) and len(other.blocks) == 2
    other.blocks[0].gate.calls = 5
    assert model.blocks[0].gate.calls == 5
    other.extra = other.blocks[0].heads  # what it is given is kept, not the shadow
    assert model.extra is model.blocks[0].heads
    del model.extra
    assert other.blocks[0].heads(torch.ones(2)).tolist() == [0, 0]
    assert list(other.state_dict()) == list(model.state_dict())
    assert type(copy.deepcopy(other.blocks[0])) is Block


def test_loops_that_are_not_split():
    def effect(self, xs, out):
        for x in xs:
            self.count += 1
            out += self.inner(x)
        return out

    def chain(self, xs, state):
        for x in xs:
            state = self.inner(x + state)
        return state

    def calls_more(self, xs, out):
        for x in xs:
            out.add_(self.inner(self.other(x)))
        return out

    def breaks(self, xs, out):
        for x in xs:
            out.add_(self.inner(x))
            if out.sum() > 1:
                break
        return out

    def last(self, xs, out):
        for x in xs:
            y = self.inner(x)
            out.add_(y)
        return out + y

    def reads_what_it_writes(self, xs, out):
        for x in xs:
            out.add_(self.inner(x + out.sum()))
        return out

    def fine(self, xs, out):
        for x in xs:
            y = self.inner(x * 2)
            out.add_(y)
        return out

    assert split_forward(fine) is not None
    for loop in (effect, chain, calls_more, breaks, last, reads_what_it_writes):
        assert split_forward(loop) is None, loop.__name__


def test_memory_that_is_shared_keeps_the_loop():
    class Aliased(Mixture):
        def forward(self, hidden_states):
            flat = hidden_states.reshape(-1, hidden_states.shape[-1]).clone()
            final = flat[: len(self.experts)]
            for i in range(len(self.experts)):
                out = self.experts[i](flat[i : i + 2])
                final.add_(out.mean())
            return final

    model = Aliased().double()
    x = double(2, 9, 6)
    with torch.no_grad():
        fast = CompileRouter.from_module(model, x, config=AT_ONCE).compile()
        for _ in range(2):
            assert_same(model, fast, x)


def tiny_switch(transformers):
    config = transformers.SwitchTransformersConfig(
        vocab_size=50,
        d_model=16,
        d_kv=4,
        d_ff=32,
        num_heads=4,
        num_experts=4,
        num_layers=2,
        num_decoder_layers=2,
        expert_capacity=8,
        num_sparse_encoder_layers=1,
        num_sparse_decoder_layers=1,
        dropout_rate=0.0,
        router_jitter_noise=0.0,
    )
    ids = torch.randint(0, 50, (2, 12))
    arguments = {"input_ids": ids, "decoder_input_ids": ids.flip(0), "use_cache": False}
    return transformers.SwitchTransformersForConditionalGeneration(config).double(), arguments


SMALL = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}


def tiny_mixtral(transformers):
    config = transformers.MixtralConfig(**SMALL, **HEADS, num_local_experts=4)
    ids = torch.randint(0, 50, (2, 12))
    return transformers.MixtralModel(config), {"input_ids": ids, "use_cache": False}


def tiny_qwen(transformers):
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    config = transformers.Qwen2MoeConfig(**SMALL, **HEADS, **experts, shared_expert_intermediate_size=16)
    ids = torch.randint(0, 50, (2, 12))
    return transformers.Qwen2MoeModel(config), {"input_ids": ids, "use_cache": False}


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("make", [tiny_switch, tiny_mixtral, tiny_qwen])
def test_mixtures_of_transformers(make, train):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model, arguments = make(transformers)
    model.train(train)
    with torch.set_grad_enabled(train):
        compiler = CompileRouter.from_module(model, sample_kwargs=arguments, config=AT_ONCE)
        found = [set(group.paths) for group in compiler.plan.groups if group.how == "together"]
        fast = compiler.compile()
        for _ in range(2):
            assert_same(model, fast, **arguments)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.1)
        arguments["input_ids"] = arguments["input_ids"].flip(1)
        assert_same(model, fast, **arguments)
    if make is tiny_switch:
        layers = ("encoder.block.1.layer.1", "decoder.block.1.layer.2")
        for layer in layers:
            assert {f"{layer}.mlp.experts.expert_{i}" for i in range(4)} in found
    elif any("stacked" in row.why for row in compiler.plan.declined):
        assert sum("stacked" in row.why for row in compiler.plan.declined) == 2
    else:  # an older version, which has a list of experts
        assert any("experts" in path for paths in found for path in paths)
