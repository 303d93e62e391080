"""One step of all lanes is one step of every model alone; on a GPU also when it is a recording."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wide_compiler
from wide_compiler import WideConfig
from wide_compiler.training import TrainStep

N = 4
QUICK = WideConfig(compile=True, backend="eager", tune_seconds=0.05)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x):
        return self.down(F.gelu(self.norm(self.up(x))))


def lane_loss(y, target):
    return (y - target).square().mean((1, 2))


class Pair:
    """The same training twice: wide, and as a loop with an optimiser each."""

    def __init__(self, device, make, config=QUICK, loss=lane_loss):
        torch.manual_seed(1)
        self.device = device
        self.models = [Net().to(device).double() for _ in range(N)]
        self.wide = wide_compiler.compile(copy.deepcopy(self.models), self.batch()[0][0], config=config)
        self.optimizer = make(self.wide.parameters())
        self.own = [make(m.parameters()) for m in self.models]
        self.loss = loss
        self.step = TrainStep(self.wide, self.optimizer, loss)

    def batch(self, size=5):
        x = torch.randn(N, size, 6, device=self.device, dtype=torch.float64)
        return x, torch.randn(N, size, 3, device=self.device, dtype=torch.float64)

    def run(self, steps=6, size=5, batch=None):
        for _ in range(steps):
            x, y = batch or self.batch(size)
            losses = self.step(x, y)
            expected = []
            for model, optimizer, a, b in zip(self.models, self.own, x, y, strict=True):
                optimizer.zero_grad()
                loss = self.loss(model(a)[None], b[None])[0]
                loss.backward()
                optimizer.step()
                expected.append(loss.detach())
            torch.testing.assert_close(losses, torch.stack(expected), rtol=1e-9, atol=1e-9)
        self.check()

    def check(self):
        for lane, model in enumerate(self.models):
            for name, value in model.state_dict().items():
                got = self.wide.lane(lane).state_dict()[name]
                torch.testing.assert_close(got, value, rtol=1e-8, atol=1e-8, msg=f"lane {lane}: {name}")


OPTIMIZERS = {
    "adam": lambda p: torch.optim.Adam(p, 1e-2, capturable=p_is_cuda()),
    "plain adam": lambda p: torch.optim.Adam(p, 1e-2),
    "adamw": lambda p: torch.optim.AdamW(p, 1e-2, weight_decay=0.1, capturable=p_is_cuda()),
    "sgd": lambda p: torch.optim.SGD(p, 1e-1, momentum=0.9, nesterov=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 1e-3, capturable=p_is_cuda()),
}
_DEVICE = "cpu"


def p_is_cuda():
    return _DEVICE == "cuda"


@pytest.fixture(autouse=True)
def _device_and_cache(request, tmp_path, monkeypatch):
    monkeypatch.setenv("WIDE_COMPILER_CACHE", str(tmp_path))
    if "device" in request.fixturenames:
        monkeypatch.setitem(globals(), "_DEVICE", request.getfixturevalue("device"))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_every_model_alone(device, name):
    pair = Pair(device, OPTIMIZERS[name])
    pair.run()
    if device == "cuda":
        (recording,) = pair.step.recordings
        assert pair.step.why == ""
        assert recording.whole == (name != "plain adam")
    else:
        assert "not on CUDA" in pair.step.why


def test_things_that_change_between_steps(device):
    pair = Pair(device, OPTIMIZERS["adam"])
    pair.run()
    for group in [pair.optimizer.param_groups[0], *(o.param_groups[0] for o in pair.own)]:
        group["lr"] = 3e-3
    pair.run(3)
    pair.run(4, size=7)  # another batch
    pair.wide.eval()
    for model in pair.models:
        model.eval()
    pair.run(4)
    pair.wide.train()
    for model in pair.models:
        model.train()
    pair.run(2)
    pair.models = [pair.models[1], pair.models[0], *pair.models[2:]]  # lanes swapped, with fresh moments
    for lane in (0, 1):
        pair.wide.load_lane(lane, pair.models[lane])
    pair.optimizer.load_state_dict(OPTIMIZERS["adam"](pair.wide.parameters()).state_dict())
    pair.optimizer.state.clear()
    pair.own = [OPTIMIZERS["adam"](m.parameters()) for m in pair.models]
    for group in [pair.optimizer.param_groups[0], *(o.param_groups[0] for o in pair.own)]:
        group["lr"] = 1e-2
    pair.run(5)
    pair.wide.up.weight.requires_grad_(False)
    for model in pair.models:
        model.up.weight.requires_grad_(False)
    pair.run(5)


def test_schedulers(device):
    pair = Pair(device, OPTIMIZERS["adam"])
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(o, 0.7) for o in (pair.optimizer, *pair.own)]
    for _ in range(5):
        pair.run(1)
        for scheduler in schedulers:
            scheduler.step()


def test_numbers_that_the_loss_reads(device):
    weight = 1.0
    state = {"scale": 2.0}

    class Scaled:
        factor = 1.0

        def __call__(self, y, target):
            return self.factor * (y - target).square().mean((1, 2))

    def closure(y, target):
        return weight * (y - target).square().mean((1, 2))

    pair = Pair(device, OPTIMIZERS["sgd"], loss=closure)
    pair.run(4)
    weight = 0.25
    pair.run(3)
    scaled = Scaled()
    pair = Pair(device, OPTIMIZERS["sgd"], loss=scaled)
    pair.run(4)
    scaled.factor = 0.1
    pair.run(3)
    pair = Pair(device, OPTIMIZERS["sgd"], loss=lambda y, t: state["scale"] * lane_loss(y, t))
    pair.run(4)
    state["scale"] = 0.5
    pair.run(3)


def test_two_trainings_at_once(device):
    first, second = Pair(device, OPTIMIZERS["adam"]), Pair(device, OPTIMIZERS["sgd"])
    for _ in range(5):
        first.run(1)
        second.run(1)


def test_the_same_tensors_every_time(device):
    pair = Pair(device, OPTIMIZERS["adam"])
    pair.run(6, batch=pair.batch())


def test_gradients_can_be_read_after_a_step(device):
    pair = Pair(device, OPTIMIZERS["sgd"])
    for _ in range(5):
        pair.run(1)
        pair.step.optimizer.zero_grad()
        pair.run(1)
        for name, p in pair.wide.named_parameters():
            wanted = torch.stack([m.get_parameter(name).grad for m in pair.models])
            torch.testing.assert_close(p.grad, wanted, rtol=1e-8, atol=1e-10)


def test_hooks_are_not_skipped(device):
    pair = Pair(device, OPTIMIZERS["sgd"])
    seen = []
    pair.wide.up.weight.register_hook(lambda g: seen.append(1))
    pair.run(5)
    assert len(seen) == 5
    if device == "cuda":
        assert "gradient hooks" in pair.step.why


def test_an_optimiser_of_ones_own_is_stepped_in_python(device):
    class Counting(torch.optim.SGD):
        count = 0

        def step(self, closure=None):
            Counting.count += 1
            return super().step(closure)

    pair = Pair(device, lambda p: Counting(p, 0.1))
    before = Counting.count
    pair.run(5)
    assert Counting.count - before == 5 * (N + 1)


def test_shared_inputs_several_arguments_and_sums():
    models = [nn.Bilinear(3, 4, 2) for _ in range(N)]
    x, z = torch.randn(5, 3), torch.randn(5, 4)
    wide = wide_compiler.compile(models, (x, z))
    step = TrainStep(
        wide, torch.optim.SGD(wide.parameters(), 0.1), lambda y: y.square().mean(), door="shared"
    )
    assert step((x, z)).shape == ()


def test_bad_input():
    wide = wide_compiler.compile(nn.Linear(3, 2), torch.randn(2, 3), n=N)
    sgd = torch.optim.SGD(wide.parameters(), 0.1)
    with pytest.raises(ValueError, match="unknown door 'front'"):
        TrainStep(wide, sgd, lane_loss, door="front")
    with pytest.raises(ValueError, match=r"one number per lane \[4\] or their sum, got \(4, 5, 2\)"):
        TrainStep(wide, sgd, lambda y: y)(torch.randn(N, 5, 3))
    with pytest.raises(ValueError, match="got float"):
        TrainStep(wide, sgd, lambda y: 0.5)(torch.randn(N, 5, 3))


def test_tensors_filled_anew_are_read_where_they_lie_and_others_copied(device):
    pair = Pair(device, OPTIMIZERS["adam"])
    x, y = pair.batch()
    for _ in range(5):
        pair.run(1, batch=(x, y))
        x.normal_()
        y.normal_()
    in_place = [r.guard.in_place for r in pair.step.recordings]
    pair.run(5)
    pair.run(3, batch=(x, y))
    if device == "cuda":
        assert in_place == [True]
        assert sorted(r.guard.in_place for r in pair.step.recordings) == [False, True]


def test_hooks_put_on_after_a_recording(device):
    pair = Pair(device, OPTIMIZERS["adam"])
    pair.run()
    seen = []
    pair.wide.up.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.sum()))
    pair.run(2)
    assert len(seen) == 2
