"""What a recorded step depends on is compared before each step."""

import copy
import os

import pytest
import torch
from torch import nn

import wide_compiler
from kinds_of_reads import KINDS, make
from wide_compiler.replay.cuda_graph import uncached_autocast
from wide_compiler.training import Adam, TrainStep
from wide_compiler.training.step_recording import TrainStepGuard

SCALE = 2.0


def helper(y):
    return y * SCALE


def loss(y, power=2):
    return (helper(y) ** power).mean((1, 2))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.norm = nn.Linear(4, 3), nn.BatchNorm1d(3)

    def forward(self, x):
        return self.norm(self.fc(x))


class Scene:
    """A step that has run, its arguments, and a guard over both."""

    def __init__(self, make=lambda p: Adam(p, 1e-3), in_place=True, loss=loss):
        self.wide = wide_compiler.compile([Net() for _ in range(3)], torch.randn(2, 4))
        self.optimizer = make(self.wide.parameters())
        self.step = TrainStep(self.wide, self.optimizer, loss)
        self.x = torch.randn(3, 5, 4)
        self.step(self.x)
        self.step.observe(self.wide.stacked(self.x), ())
        self.guard = TrainStepGuard(self.step, (self.x,), (), in_place)

    @property
    def group(self):
        return self.optimizer.param_groups[0]

    @property
    def state(self):
        return self.optimizer.state[self.wide.fc.weight]

    def unchanged(self, *args):
        return self.guard.holds(args or (self.x,), ())


def new_parameter(scene):
    scene.wide.fc.weight = nn.Parameter(scene.wide.fc.weight.data)


def other_memory(scene):
    scene.wide.fc.weight.data = scene.wide.fc.weight.data.clone()


def other_state_memory(scene):
    scene.state["exp_avg"].data = scene.state["exp_avg"].data.clone()


def more_parameters(scene):
    scene.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})


def other_groups(scene):
    others = [nn.Parameter(torch.zeros_like(p)) for p in scene.group["params"]]
    scene.optimizer.param_groups = [{**scene.group, "params": others, "lr": 2e-3}]


CHANGES = {
    "learning rate": lambda s: s.group.update(lr=5e-4),
    "an item of a list": lambda s: s.group["betas"].__setitem__(0, 0.8),
    "another list": lambda s: s.group.update(betas=[0.5, 0.999]),
    "a new parameter": new_parameter,
    "a weight's memory": other_memory,
    "a state's memory": other_state_memory,
    "another state": lambda s: s.state.update(exp_avg=s.state["exp_avg"].clone()),
    "cleared state": lambda s: s.optimizer.state.clear(),
    "loaded state": lambda s: s.optimizer.load_state_dict(copy.deepcopy(s.optimizer.state_dict())),
    "more parameters": more_parameters,
    "other groups": other_groups,
    "eval": lambda s: s.wide.eval(),
    "one part in eval": lambda s: s.wide.norm.eval(),
    "frozen": lambda s: s.wide.fc.weight.requires_grad_(False),
    "a buffer's memory": lambda s: setattr(s.wide.norm.running_mean, "data", torch.zeros(3, 3)),
    "a gradient hook": lambda s: s.wide.fc.weight.register_hook(lambda g: g),
    "a hook behind it": lambda s: s.wide.fc.weight.register_post_accumulate_grad_hook(lambda p: None),
    "a hook of the optimiser": lambda s: s.optimizer.register_step_post_hook(lambda *_: None),
    "seeds": lambda s: s.wide.seed(3),
    "half": lambda s: s.wide.half(),
    "a global of the loss's helper": lambda s: globals().update(SCALE=3.0),
    "a default of the loss": lambda s: setattr(loss, "__defaults__", (4,)),
}


@pytest.fixture(autouse=True)
def undone():
    yield
    globals().update(SCALE=2.0)
    loss.__defaults__ = (2,)


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_is_seen(change):
    scene = Scene()
    assert scene.unchanged()
    CHANGES[change](scene)
    assert not scene.unchanged()


def test_other_arguments_and_surroundings():
    scene, x = Scene(), torch.randn(3, 5, 4)
    assert not scene.unchanged(x)  # it reads the tensor where it lies
    anywhere = Scene(in_place=False)
    assert anywhere.unchanged(x) and not anywhere.unchanged(x.mT.contiguous().mT)
    for other in (x[:, :4], x.double(), x.requires_grad_(), torch.nested.nested_tensor([x[0], x[1]]), 3.0):
        assert not anywhere.unchanged(other)
    assert not anywhere.unchanged(scene.x, scene.x)
    for around in (torch.autocast("cpu", torch.bfloat16), torch.inference_mode(), torch.no_grad()):
        with around:
            assert not anywhere.unchanged(scene.x)
    assert anywhere.unchanged(scene.x)


def test_an_equal_value_written_again_is_no_change():
    scene = Scene()
    scene.group["lr"] = 1e-3
    assert scene.unchanged() and scene.unchanged()


def test_autocast_to_another_dtype_is_a_change():
    with torch.autocast("cpu", torch.bfloat16):
        scene = Scene()
        assert scene.unchanged()
    with torch.autocast("cpu", torch.float16):
        assert not scene.unchanged()
    assert not scene.unchanged()


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.Adam(p, 1e-3, fused=True),
        lambda p: torch.optim.SGD(p, 1e-3, momentum=0.9),
        lambda p: Adam(p, 1e-3),
    ],
)
def test_nothing_has_changed_under_the_usual_optimisers(make):
    scene = Scene(make)
    assert scene.unchanged() and scene.unchanged()


def test_numbers_in_tensors_are_compared():
    lr = torch.tensor(1e-3)
    scene = Scene(lambda p: torch.optim.SGD(p, lr, foreach=False))
    assert scene.unchanged()
    lr.mul_(2)
    assert not scene.unchanged()


@pytest.mark.parametrize("name", KINDS)
def test_whatever_a_loss_reads_is_followed(name):
    kind = make(name)
    scene = Scene(loss=lambda y: kind.read(y).mean((1, 2)))
    assert scene.unchanged()
    try:
        kind.change()
        assert not scene.unchanged()
    finally:
        torch.set_default_dtype(torch.float32)
        os.environ.pop("WIDE_TEST_K", None), os.environ.pop("WIDE_TEST_L", None)


class Smoothed(nn.Module):
    def __init__(self):
        super().__init__()
        self.smoothing, self.power = 0.1, [2.0]

    def forward(self, y):
        return (y.abs() + self.smoothing).pow(self.power[0]).mean((1, 2))


def test_what_a_loss_reads_in_lists_cells_and_modules_is_followed():
    weights, rate = [1.0, 2.0], 0.5

    def reads_a_list(y):
        return y.mean((1, 2)) * weights[0]

    def reads_a_cell(y):
        return y.mean((1, 2)) * rate

    by_list, by_cell = Scene(loss=reads_a_list), Scene(loss=reads_a_cell)
    assert by_list.unchanged() and by_cell.unchanged()
    weights[0], rate = 3.0, 0.25
    assert not by_list.unchanged() and not by_cell.unchanged()
    module = Smoothed()
    for change in (lambda: setattr(module, "smoothing", 0.2), lambda: module.power.__setitem__(0, 3.0)):
        scene = Scene(loss=module)
        assert scene.unchanged()
        change()
        assert not scene.unchanged()


def test_a_loss_that_keeps_a_record_is_not_recorded():
    record = []

    def loss(y):
        record.append(y)
        return y.mean((1, 2))

    scene = Scene(loss=loss)
    assert len(record) == 1  # the step's own; what the observation added is gone
    assert "record" in scene.step.why


def test_a_recorded_step_under_autocast_rests_on_no_cache():
    """Entering autocast asks whether it keeps what it casts; a step is recorded without."""

    def loss(y):
        with torch.autocast("cpu", enabled=False):
            return y.float().square().mean((1, 2))

    wide = wide_compiler.compile(nn.Linear(3, 2), torch.randn(2, 3), n=4)
    step = TrainStep(wide, torch.optim.SGD(wide.parameters(), 0.1), loss, autocast=torch.bfloat16)
    x = torch.randn(4, 5, 3)
    step.observing = True
    with uncached_autocast(True):
        step.run((x,), ())
    assert step.reads.why_not() == "" and step.reads.holds()
