"""On a CUDA device: the zoo against the loop, moving there and back, seeds, torch.compile."""

import copy

import pytest
import torch
from torch import nn

import wide_compiler
from wide_compiler import oracle
from zoo import CASES
from zoo_oracle import make_inputs, make_models

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
N = 4


def to_gpu(tree):
    return torch.utils._pytree.tree_map(lambda x: x.cuda() if isinstance(x, torch.Tensor) else x, tree)


@pytest.mark.parametrize("case", [c for c in CASES.values() if "loop" not in c.tags], ids=lambda c: c.name)
def test_zoo_on_the_gpu(case):
    train = "random" not in case.tags
    dtype = torch.float32 if "float32_only" in case.tags else torch.float64
    models = [m.cuda() for m in make_models(case, N, train=train, dtype=dtype)]
    batch = 2 if "no_batch" in case.tags else 5
    inputs = [to_gpu(i) for i in make_inputs(case, batch, N, dtype)]
    args, kwargs = inputs[0]
    wide = wide_compiler.compile(models, args, sample_kwargs=kwargs)
    oracle.compare(models, wide, inputs, gradients=train, learning_rate=0.1 if train else 0.0).check(
        rtol=1e-6
    )
    explanation = wide.explain(measure=False)
    # What torch.export itself cannot look into on a GPU (fused RNN cells) is kept whole and runs per lane.
    slow = [(r.op, r.how, r.why) for r in explanation.rows if r.how in ("vmap", "loop")]
    assert not explanation.why
    assert not [row for row in slow if "torch.export cannot trace it" not in row[2]]


def net():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))


def test_there_and_back():
    models = [net().eval() for _ in range(N)]
    x = torch.randn(5, 3, 8, 8)
    wide = wide_compiler.compile(models, x)
    expected = wide.shared(x)
    on_gpu = wide.cuda().shared(x.cuda())
    assert on_gpu.is_cuda
    torch.testing.assert_close(on_gpu.cpu(), expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(wide.cpu().shared(x), expected)


def test_a_lane_seed_draws_the_same_on_the_gpu():
    models = [nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5)) for _ in range(N)]
    x = torch.randn(3, 4)
    on_cpu = wide_compiler.compile(models, x).seed(7).shared(x)
    on_gpu = (
        wide_compiler.compile([copy.deepcopy(m).cuda() for m in models], x.cuda()).seed(7).shared(x.cuda())
    )
    assert torch.equal(on_cpu == 0, (on_gpu == 0).cpu())


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_training_equals_eager(mode):
    models = [net().cuda() for _ in range(N)]
    x = torch.randn(5, 3, 8, 8).cuda()
    eager = wide_compiler.compile(models, x)
    fast = wide_compiler.compile(models, x, compile_model=True, compile_mode=mode)
    for _ in range(3):
        losses = []
        for wide in (eager, fast):
            wide.zero_grad()
            loss = wide.shared(x).square().mean((1, 2)).sum()
            loss.backward()
            losses.append(loss.item())
        assert abs(losses[0] - losses[1]) < 1e-3 * abs(losses[0])
        for a, b in zip(eager.parameters(), fast.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-2, atol=1e-3)


def test_wrong_device_is_a_clear_error():
    wide = wide_compiler.compile([net().cuda() for _ in range(N)], torch.randn(5, 3, 8, 8).cuda())
    with pytest.raises(wide_compiler.InputError, match="on cpu, the sample had"):
        wide.shared(torch.randn(5, 3, 8, 8))
