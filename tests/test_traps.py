"""What goes wrong in systems that fuse by channel packing or by vmap alone, one named test each."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wide_compiler
from fn import Fn
from wide_compiler import oracle

N = 3


def check(make, x, train=False, batch=5):
    """Equal to the loop at another batch than captured, in values, gradients, buffers; nothing per lane."""
    models = [make().double().train(train) for _ in range(N)]
    x = x.double() if x.is_floating_point() else x
    wide = wide_compiler.compile(models, x)
    inputs = [((torch.cat([x] * batch)[torch.randperm(len(x) * batch)][:batch],), {}) for _ in range(N)]
    for kind in ({"inputs": inputs}, {"shared_input": inputs[0]}):
        oracle.compare(models, wide, **kind, gradients=True, learning_rate=0.1).check(rtol=1e-8)
        assert wide.explain(measure=False).coverage == 1.0
    return models, wide


def test_depthwise_convolution():
    check(
        lambda: nn.Sequential(nn.Conv2d(4, 8, 3, groups=4), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8)),
        torch.randn(2, 4, 8, 8),
    )


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_padded_convolution(mode):
    check(lambda: nn.Conv2d(3, 4, 3, padding=2, padding_mode=mode), torch.randn(2, 3, 8, 8))


@pytest.mark.parametrize("dim", [1, 2, -1])
def test_softmax_over_a_dim_that_is_not_the_batch(dim):
    check(lambda: Fn(lambda m, x: m.fc(x).softmax(dim), fc=nn.Linear(6, 6)), torch.randn(2, 4, 6))


@pytest.mark.parametrize("parameters", [1, 4])
def test_prelu(parameters):
    check(
        lambda: Fn(lambda m, x: m.act(m.conv(x)), conv=nn.Conv1d(3, 4, 3), act=nn.PReLU(parameters)),
        torch.randn(2, 3, 9),
    )


def test_conv_pool_flatten_linear():
    check(
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5)),
        torch.randn(2, 3, 8, 8),
    )


def test_view_and_permute_with_sizes_read_from_the_input():
    def heads(m, x):
        b, t, c = x.shape
        q = m.fc(x).view(b, t, 2, c // 2).permute(0, 2, 1, 3)
        return (q @ q.transpose(-1, -2)).reshape(b, 2 * t, t)

    check(lambda: Fn(heads, fc=nn.Linear(6, 6)), torch.randn(2, 4, 6))


def test_embedding_with_padding_idx_has_no_gradient_at_the_padding():
    x = torch.randint(0, 7, (2, 5))
    x[:, 0] = 3
    _, wide = check(lambda: nn.Embedding(7, 4, padding_idx=3), x)
    wide.shared(x).sum().backward()
    assert wide.weight.grad[:, 3].abs().max() == 0
    assert wide.weight.grad.abs().sum() > 0


def test_batch_norm_in_training():
    _, wide = check(
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), torch.randn(2, 3, 6, 6), train=True
    )
    before = wide.tensors()["1.running_mean"].clone()
    wide.shared(torch.randn(8, 3, 6, 6).double())
    assert not torch.equal(before, wide.tensors()["1.running_mean"])
    assert wide.tensors()["1.num_batches_tracked"].tolist() == [1] * N


def test_dropout_draws_for_each_lane():
    wide = wide_compiler.compile([nn.Dropout(0.5) for _ in range(4)], torch.ones(2, 100))
    out = wide.shared(torch.ones(8, 100))
    rates = (out == 0).double().mean((1, 2))
    assert ((rates > 0.3) & (rates < 0.7)).all()
    assert not any(torch.equal(out[0], out[i]) for i in range(1, 4))
    kept = out[out != 0]
    assert torch.allclose(kept, torch.full_like(kept, 2.0))


def test_a_lane_seed_gives_the_same_draw_in_any_company():
    models = [nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5)) for _ in range(4)]
    x = torch.randn(3, 4)
    untuned = wide_compiler.WideConfig(tune_seconds=0)  # the same bits for any number of lanes
    all_four = wide_compiler.compile(models, x, config=untuned).seed([5, 6, 7, 8])
    two = wide_compiler.compile(models[2:], x, config=untuned).seed([7, 8])
    first, second = all_four.shared(x), all_four.shared(x)
    assert torch.equal(first[2:], two.shared(x))
    assert not torch.equal(first, second)
    assert not torch.equal(first[0] == 0, first[1] == 0)
    assert torch.equal(all_four.seed([5, 6, 7, 8]).shared(x), first)


def test_frozen_batch_norm_inside_a_training_model():
    models = [
        nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.BatchNorm1d(4))
        for _ in range(N)
    ]
    for model in models:
        model.double().train()
        nn.init.uniform_(model[1].running_var, 0.5, 2.0)
        model[1].eval()
    x = torch.randn(6, 4).double()
    wide = wide_compiler.compile(models, x)
    report = oracle.compare(models, wide, shared_input=((x,), {}), gradients=True, learning_rate=0.1)
    report.check(rtol=1e-8)
    frozen, moving = wide.tensors()["1.running_mean"].clone(), wide.tensors()["3.running_mean"].clone()
    wide.shared(x)
    assert torch.equal(frozen, wide.tensors()["1.running_mean"])
    assert not torch.equal(moving, wide.tensors()["3.running_mean"])


def test_freezing_a_batch_norm_later_is_seen():
    models = [nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).train() for _ in range(N)]
    x = torch.randn(6, 4)
    wide = wide_compiler.compile(models, x)
    wide.get_submodule("1").eval()
    before = wide.tensors()["1.running_mean"].clone()
    wide.shared(x)
    assert torch.equal(before, wide.tensors()["1.running_mean"])


def test_tied_weights_are_one_parameter_and_get_both_gradients():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x):
            return self.head(self.embed(x).tanh())

    _, wide = check(Tied, torch.randint(0, 9, (2, 5)))
    assert [name for name, _ in wide.named_parameters()] == ["embed.weight"]
    assert set(wide.state_dict()) == {"embed.weight", "head.weight"}
    lane = wide.lane(1)
    assert lane.head.weight is lane.embed.weight


def test_a_write_through_a_view_reaches_its_base():
    def forward(m, x):
        h = m.conv(x)
        flat = h.view(h.shape[0], -1)
        flat.mul_(2.0)
        h[:, 0] += 1.0
        return h.sum(-1)

    check(lambda: Fn(forward, conv=nn.Conv1d(3, 4, 3)), torch.randn(2, 3, 9))


def test_the_callers_input_is_never_written():
    models = [Fn(lambda m, x: m.fc(F.relu(x, inplace=True)), fc=nn.Linear(4, 4)) for _ in range(N)]
    x = torch.randn(5, 4)
    wide = wide_compiler.compile(models, x.clone())
    for door, value in ((wide.shared, x), (wide.stacked, x.expand(N, 5, 4).clone())):
        before = value.clone()
        door(value)
        assert torch.equal(value, before)


def test_a_norm_run_per_lane_leaves_its_input_alone():
    # Its momentum differs by lane, so that op runs as a loop; it writes its statistics, not what it reads.
    def residual(m, x):
        h = m.fc(x)
        return h + m.norm(h)

    models = [
        Fn(residual, fc=nn.Linear(4, 6), norm=nn.BatchNorm1d(6, momentum=p)).double() for p in (0.1, 0.2, 0.3)
    ]
    wide = wide_compiler.compile(models, torch.randn(4, 4).double())
    inputs = [((torch.randn(5, 4).double(),), {}) for _ in models]
    oracle.compare(models, wide, inputs, gradients=True, learning_rate=0.1).check(rtol=1e-9)
    assert [row.how for row in wide.explain(measure=False).rows].count("loop") == 1
    assert not wide.explain(measure=False).why
