"""`gt.step`: a replayed step is the step as written, bit for bit, whatever changes between the calls.

Each case is a script that is run twice from the same start, plain and with `gt.step`; beside the equality
stands how many calls were replayed.
"""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wide_compiler.signals as gt
from nightly import one_of
from signals.placed import signal

pytestmark = pytest.mark.usefixtures("workers")
CALLS = 12


class Script:
    """A model with dropout, an optimiser, and a step that reads all kinds of things."""

    def __init__(self, wrap, optimizer=torch.optim.AdamW, workers=(0, 1), parameters=None, **settings):
        shard = gt.ShardConfig(0, list(workers), parameters)
        gt.register_config("here", gt.SignalConfig(shard))
        gt.manual_seed(0)
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(6, 16), nn.LayerNorm(16), nn.Tanh(), nn.Dropout(0.25), nn.Linear(16, 4)
        ).double()
        gt.adopt(self.model)
        self.optimizer = optimizer(self.model.parameters(), **({"lr": 1e-2} | settings))
        self.clip, self.scale, self.calls = 0.5, 1.0, 0
        self.losses, self.batch = [], 8
        self.step = wrap(self.train)
        self.data = torch.Generator().manual_seed(1)

    def train(self, x, y, weight=1.0):
        with gt.signal.context("here"):
            loss = F.mse_loss(self.model(x), y) * self.scale * weight
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        return loss

    def rows(self):
        x = torch.randn(self.batch, 6, dtype=torch.float64, generator=self.data)
        y = torch.randn(self.batch, 4, dtype=torch.float64, generator=self.data)
        return gt.signal.tensor(x, "here"), gt.signal.tensor(y, "here")

    def call(self, *more, **named):
        self.losses.append(self.step(*self.rows(), *more, **named))


def both(script, replayed, make=Script, **settings):
    """Run `script(life, i)` for each call of two lives; the replayed one must equal the plain one.

    replayed: at least so many of the calls must have been one instruction.
    """
    plain = make(lambda function: function, **settings)
    for i in range(CALLS):
        script(plain, i)
    fast = make(gt.step, **settings)
    for i in range(CALLS):
        script(fast, i)
    assert [x.item() for x in fast.losses] == [x.item() for x in plain.losses]
    for p, q in zip(fast.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(p.detach().cpu(), q.detach().cpu())
        assert (p.grad is None) == (q.grad is None)
        if p.grad is not None:
            assert torch.equal(p.grad.cpu(), q.grad.cpu())
    one, other = fast.optimizer.state_dict(), plain.optimizer.state_dict()
    assert one["param_groups"] == other["param_groups"]
    for key, state in one["state"].items():
        for name, value in state.items():
            assert torch.equal(value.cpu(), other["state"][key][name].cpu()), (key, name)
    assert fast.step.replayed >= replayed, (fast.step.replayed, fast.step.recorded, fast.step.why)
    return fast


def calls(life, i):
    life.call()


OPTIMIZERS = {
    "SGD": {},
    "SGD with momentum": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    "Adam": {"amsgrad": True},
    "AdamW": {},
    "Adagrad": {"lr_decay": 0.1},
    "RMSprop": {"momentum": 0.5, "centered": True},
    "Adadelta": {},
    "Adamax": {},
}


@pytest.mark.parametrize("name", one_of(3, OPTIMIZERS))
def test_optimisers(name):
    both(calls, 9, optimizer=getattr(torch.optim, name.partition(" ")[0]), **OPTIMIZERS[name])


@pytest.mark.parametrize("name", one_of(4, ["RAdam", "NAdam", "ASGD", "Rprop"]))
def test_optimisers_with_more_than_a_count_run_as_written(name):
    both(calls, 0, optimizer=getattr(torch.optim, name))


@pytest.mark.parametrize("settings", [{"workers": (1,)}, {"workers": (0, 1, 2, 3), "parameters": 0}])
def test_layouts(settings):
    both(calls, 9, **settings)


def test_a_learning_rate_schedule():
    def script(life, i):
        if i == 0:
            life.scheduler = torch.optim.lr_scheduler.ExponentialLR(life.optimizer, 0.8)
        life.call()
        life.scheduler.step()

    both(script, 9)


def test_a_rate_of_nothing_and_other_settings():
    def script(life, i):
        group = life.optimizer.param_groups[0]
        group["lr"] = 0.0 if i in (5, 6) else 1e-2
        group["weight_decay"] = 0.0 if i > 8 else 0.1
        life.call()

    both(script, 3)


def test_another_batch_size():
    def script(life, i):
        life.batch = 5 if i in (6, 7, 9) else 8
        life.call()

    fast = both(script, 7)
    assert len(fast.step.recordings) == 2


@pytest.mark.parametrize("name", ["clip", "scale"])
def test_a_changed_number(name):
    def script(life, i):
        if i == 6:
            setattr(life, name, 0.01)
        life.call()

    both(script, 6)


def test_numbers_as_arguments():
    def script(life, i):
        life.call(2.0 if i > 6 else 1.0)
        life.call(weight=0.5)

    both(script, 16)


def test_a_number_that_changes_at_each_call_is_followed():
    def script(life, i):
        life.scale = 1.0 + i
        life.call()

    both(script, 0)


def test_training_and_evaluation_and_another_rate_of_dropout():
    def script(life, i):
        life.model.train(i not in (4, 5))
        life.model[3].p = 0.5 if i > 8 else 0.25
        life.call()

    both(script, 5)


def test_a_frozen_parameter():
    def script(life, i):
        life.model[0].weight.requires_grad_(i not in (4, 5, 6))
        life.call()

    both(script, 4)


def tripled(p):
    p.grad.mul_(3)


@pytest.mark.parametrize("kind", ["forward", "backward", "tensor", "accumulated", "optimiser"])
def test_hooks(kind):
    """One that comes is followed, and so is one that goes."""

    def add(life):
        if kind == "forward":
            return life.model[0].register_forward_hook(lambda module, args, out: out * 1.5)
        if kind == "backward":
            return life.model[0].register_full_backward_hook(lambda module, gave, got: (gave[0],))
        if kind == "tensor":
            return life.model[0].weight.register_hook(lambda grad: grad * 3)
        if kind == "accumulated":
            return life.model[0].weight.register_post_accumulate_grad_hook(tripled)
        return life.optimizer.register_step_pre_hook(lambda *_: tripled(life.model[0].weight))

    def script(life, i):
        if i == 5:
            life.hook = add(life)
        if i == 9:
            life.hook.remove()
        life.call()

    both(script, 3)


class Asking(Script):
    def train(self, x, y):
        loss = super().train(x, y)
        if loss.item() > 1.0:  # a branch on a value
            with torch.no_grad():
                self.model[0].bias.mul_(0.5)
        return loss


def test_a_branch_on_a_value_runs_as_written():
    fast = both(calls, 0, make=Asking)
    assert "reads a value" in fast.step.why


class Branching(Script):
    def train(self, x, y):
        return super().train(x, y, weight=2.0 if self.calls > 6 else 1.0)


def test_a_branch_of_the_script():
    def script(life, i):
        life.calls = i
        life.call()

    both(script, 0, make=Branching)


class Counting(Script):
    def train(self, x, y):
        self.calls += 1
        return super().train(x, y, weight=1.0 / self.calls)


def test_a_step_that_changes_what_it_reads_runs_as_written():
    fast = both(calls, 0, make=Counting)
    assert fast.calls == CALLS
    assert "changes" in fast.step.why


class Scaled(Script):
    """AMP: the scale is halved when a gradient overflows, which only a value tells."""

    def __init__(self, wrap, **settings):
        super().__init__(wrap, **settings)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)

    def train(self, x, y):
        with gt.signal.context("here"):
            loss = F.mse_loss(self.model(x), y)
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss


def test_a_scaler_runs_as_written():
    fast = both(calls, 0, make=Scaled)
    assert fast.step.why


class Scheduling(Script):
    def train(self, x, y):
        loss = super().train(x, y)
        self.scheduler.step()
        return loss


def test_a_scheduler_inside_runs_as_written():
    def script(life, i):
        if i == 0:
            life.scheduler = torch.optim.lr_scheduler.StepLR(life.optimizer, 3, 0.5)
        life.call()

    fast = both(script, 0, make=Scheduling)
    assert "outside of the step" in fast.step.why


class Accumulating(Script):
    """Two backward passes on gradients that are cleared elsewhere, and sometimes are not."""

    def train(self, x, y):
        for half in range(2):
            with gt.signal.context("here"):
                loss = F.mse_loss(self.model(x + half), y)
            loss.backward()
        self.optimizer.step()
        return loss


def test_accumulation_and_gradients_cleared_outside():
    def script(life, i):
        if i % 4 != 3:
            life.optimizer.zero_grad()
        life.call()

    both(script, 5, make=Accumulating)


def test_gradients_held_by_the_script_keep_their_values():
    held = []

    def script(life, i):
        life.call()
        if i > 4:
            held.append((life.model[0].weight.grad, life.model[0].weight.grad.cpu()))

    both(script, 2)
    assert all(torch.equal(grad.cpu(), then) for grad, then in held)


def test_replaced_things():
    """A module, the state of the optimiser, the meaning of the signal."""

    def script(life, i):
        if i == 4:
            life.optimizer.load_state_dict(copy.deepcopy(life.optimizer.state_dict()))
        if i == 6:
            life.model[2] = nn.ReLU()
        if i == 8:
            signal("here", [1, 2, 3])
        life.call()

    both(script, 4)


class Plain(Script):
    """Batches as a DataLoader gives them; a dict of results."""

    def rows(self):
        return [x.cpu() for x in super().rows()]

    def train(self, x, y):
        with gt.signal.context("here"):
            x, y = gt.tensor(x), gt.tensor(y)
        return {"loss": super().train(x, y), "rows": len(x)}

    def call(self):
        result = self.step(*self.rows())
        assert result["rows"] == self.batch
        self.losses.append(result["loss"])


def test_plain_batches():
    both(calls, 8, make=Plain)


class Gan(Script):
    """Two models with an optimiser each."""

    def __init__(self, wrap):
        super().__init__(wrap)
        self.critic = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
        self.second = torch.optim.Adam(self.critic.parameters(), lr=1e-2, betas=(0.5, 0.9))

    def train(self, x, y):
        with gt.signal.context("here"):
            made = self.model(x)
            judged = self.critic(y).mean() - self.critic(made.detach()).mean()
        self.second.zero_grad()
        judged.backward()
        self.second.step()
        self.optimizer.zero_grad()
        with gt.signal.context("here"):
            loss = self.critic(made).mean()
        loss.backward()
        self.optimizer.step()
        return loss


def test_two_optimisers():
    both(calls, 9, make=Gan)


def test_nothing_is_left_behind():
    life = Script(gt.step)
    for _ in range(6):
        life.call()
    life.losses.clear()
    before, data = gt.debug.worker_stats(), life.rows()
    for _ in range(100):
        life.step(*data)
    after = gt.debug.worker_stats()
    assert life.step.replayed >= 100
    for old, new in zip(before[:2], after[:2], strict=True):
        assert new["live_tensors"] <= old["live_tensors"] + 3  # the batch, and the last loss
        assert new["instructions"]["aten.tanh.default"] - old["instructions"]["aten.tanh.default"] == 100


def test_an_error_in_a_replayed_step_is_raised():
    signal("here", [0, 1])
    table = nn.Embedding(4, 3)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)

    @gt.step
    def step(rows):
        with gt.signal.context("here"):
            loss = table(rows).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    good = gt.signal.tensor(torch.tensor([0, 1, 2, 3]), "here")
    for _ in range(5):
        step(good).item()
    assert step.replayed
    with pytest.raises(gt.WorkerFailed, match="step"):
        step(gt.signal.tensor(torch.tensor([0, 7, 2, 9]), "here")).item()
    assert step(good).item() is not None
