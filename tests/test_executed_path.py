"""No ornaments: each public class of the spec is on the executed path. Replace it, and the result changes."""

import pytest
import torch
from torch import nn

import wide_compiler
from wide_compiler import model as model_room
from wide_compiler import primitives

N = 3

IMAGE = torch.randn(2, 4, 6, 6)
SERIES = torch.randn(2, 4, 6)
MEMBERS = {
    "WideLinear": (lambda: nn.Linear(6, 5), SERIES),
    "WideConv1d": (lambda: nn.Conv1d(4, 5, 3), SERIES),
    "WideConv2d": (lambda: nn.Conv2d(4, 5, 3), IMAGE),
    "WideConv3d": (lambda: nn.Conv3d(4, 5, 2), torch.randn(2, 4, 4, 4, 4)),
    "WideConvTranspose1d": (lambda: nn.ConvTranspose1d(4, 5, 3), SERIES),
    "WideConvTranspose2d": (lambda: nn.ConvTranspose2d(4, 5, 3), IMAGE),
    "WideConvTranspose3d": (lambda: nn.ConvTranspose3d(4, 5, 2), torch.randn(2, 4, 4, 4, 4)),
    "WideBatchNorm1d": (lambda: nn.BatchNorm1d(4), SERIES),
    "WideBatchNorm2d": (lambda: nn.BatchNorm2d(4), IMAGE),
    "WideBatchNorm3d": (lambda: nn.BatchNorm3d(4), torch.randn(2, 4, 4, 4, 4)),
    "WideLayerNorm": (lambda: nn.LayerNorm(6), SERIES),
    "WideGroupNorm": (lambda: nn.GroupNorm(2, 4), IMAGE),
    "WideInstanceNorm": (lambda: nn.InstanceNorm2d(4, affine=True), IMAGE),
    "WideRMSNorm": (lambda: nn.RMSNorm(6), SERIES),
    "WideEmbedding": (lambda: nn.Embedding(7, 4), torch.randint(0, 7, (2, 5))),
    "WideEmbeddingBag": (lambda: nn.EmbeddingBag(7, 4, mode="sum"), torch.randint(0, 7, (2, 5))),
    "WideLSTM": (lambda: nn.LSTM(6, 5, batch_first=True), SERIES),
    "WideGRU": (lambda: nn.GRU(6, 5, batch_first=True), SERIES),
    "WideRNN": (lambda: nn.RNN(6, 5, batch_first=True), SERIES),
    "WidePReLU": (lambda: nn.PReLU(4), IMAGE),
    "WideDropout": (lambda: nn.Dropout(0.5), SERIES),
}


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(6, 18)

    def forward(self, x):
        q, k, v = self.qkv(x).unsqueeze(1).chunk(3, -1)
        return nn.functional.scaled_dot_product_attention(q, k, v)


MEMBERS["WideAttention"] = (Attention, SERIES)


def first(out):
    return out[0] if isinstance(out, tuple) else out


@pytest.mark.parametrize("name", MEMBERS)
def test_a_primitive_runs_what_its_name_says(name, monkeypatch):
    make, x = MEMBERS[name]
    models = [make() for _ in range(N)]
    x_lanes = x.unsqueeze(0).repeat(N, *([1] * x.dim()))
    torch.manual_seed(1)
    before = first(wide_compiler.compile(models, x).stacked(x_lanes))
    primitive = getattr(primitives, name)
    original = primitive.kernel

    def doubled(*args, **kwargs):
        out = original(*args, **kwargs)
        if isinstance(out, tuple):
            return (out[0] * 2, *out[1:])
        return out * 2

    monkeypatch.setattr(primitive, "kernel", staticmethod(doubled))
    # The walk compares every rule with the member's op and would drop a wrong one: switch that off here.
    monkeypatch.setattr("wide_compiler.widen.attempt.differs", lambda *args: None)
    monkeypatch.setattr("wide_compiler.widen.walk.check_whole_graph", lambda *args: None)
    torch.manual_seed(1)
    after = first(wide_compiler.compile(models, x).stacked(x_lanes))
    torch.testing.assert_close(after, before * 2)


def test_a_rule_that_is_wrong_is_noticed_and_dropped(monkeypatch):
    original = primitives.WideLinear.kernel
    monkeypatch.setattr(primitives.WideLinear, "kernel", staticmethod(lambda *a: original(*a) * 2))
    models = [nn.Linear(6, 5) for _ in range(N)]
    wide = wide_compiler.compile(models, SERIES)
    row = wide.explain(measure=False).rows[0]
    assert row.how in ("vmap", "loop") and "its rule: is off by" in row.why
    torch.testing.assert_close(wide.shared(SERIES), torch.stack([m(SERIES) for m in models]))


def test_wide_model_is_what_compile_gives(monkeypatch):
    class Louder(model_room.WideModel):
        def shared(self, *args, **kwargs):
            return super().shared(*args, **kwargs) + 1

    models = [nn.Linear(6, 5) for _ in range(N)]
    quiet = wide_compiler.compile(models, SERIES).shared(SERIES)
    monkeypatch.setattr("wide_compiler.api.WideModel", Louder)
    torch.testing.assert_close(wide_compiler.compile(models, SERIES).shared(SERIES), quiet + 1)


def test_the_config_reaches_what_runs():
    models = [nn.Linear(6, 5) for _ in range(N)]
    forced = wide_compiler.WideConfig(strategy="sequential")
    wide = wide_compiler.compile(models, SERIES, config=forced)
    assert wide.explain(measure=False).rows[0].strategy == "sequential"
    assert "'sequential'" in wide.programs.latest.graph.code
    x = torch.randn(N, 3, 4, 6)
    torch.testing.assert_close(wide.stacked(x), torch.stack([m(v) for m, v in zip(models, x, strict=True)]))


def test_the_builder_builds_with_compile(monkeypatch):
    monkeypatch.setattr("wide_compiler.api.compile", lambda *args, **kwargs: ("built", args, kwargs))
    built, args, kwargs = wide_compiler.WideBuilder("models").with_sample("x").validate().build()
    assert built == "built" and args == ("models", "x") and kwargs["config"].validate


def test_the_registry_decides_who_runs_a_module():
    calls = []

    class Counted(wide_compiler.WideLinear):
        def forward(self, x):
            calls.append(x.shape)
            return super().forward(x)

    models = [nn.Sequential(nn.Linear(6, 5)) for _ in range(N)]
    wide_compiler.compile(models, SERIES).shared(SERIES)
    assert not calls
    wide_compiler.register("Linear", Counted)
    try:
        wide = wide_compiler.compile(models, SERIES)
    finally:
        wide_compiler.REGISTRY.unregister("Linear")
    expected = torch.stack([model(SERIES) for model in models])
    torch.testing.assert_close(wide.shared(SERIES), expected)
    calls.clear()
    torch.testing.assert_close(wide.shared(SERIES), expected)
    assert calls == [(N, *SERIES.shape)]


def test_pack_and_unpack_are_the_packed_doors_own():
    models = [nn.Linear(6, 5) for _ in range(N)]
    wide = wide_compiler.compile(models, torch.randn(1, 6))
    xs = [torch.randn(4, 6) for _ in range(N)]
    out = wide_compiler.unpack_outputs(wide(wide_compiler.pack_inputs(xs)), N)
    for model, x, y in zip(models, xs, out, strict=True):
        torch.testing.assert_close(y, model(x))
