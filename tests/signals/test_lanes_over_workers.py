"""A wide model compiled inside a signal's context: its lanes are on the workers, its values those of one
process."""

import pytest
import torch
from torch import nn

import wide_compiler
import wide_compiler.signals as gt
from signals.placed import signal
from wide_compiler import training
from wide_compiler.signals.tensor import SignalTensor
from wide_compiler.training import SGD, Adam, AdamW, Population, RMSprop, fit

LANES = 10  # over four workers: 3, 3, 3 and 1


def mlp():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def normed():
    return nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.GELU(), nn.LayerNorm(8), nn.Dropout(0.2), nn.Linear(8, 3)
    )


def conv():
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)),
        nn.Conv2d(1, 4, 2),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8, 3),
    )


def attention():
    return nn.Sequential(
        nn.Unflatten(1, (3, 2)),
        nn.TransformerEncoderLayer(2, 1, 4, 0.0, batch_first=True),
        nn.Flatten(),
        nn.Linear(6, 3),
    )


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.out = nn.LSTM(2, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        return self.out(self.cell(x.unflatten(1, (3, 2)))[0][:, -1])


def loss(output, target):
    return (output - target).square().mean((1, 2))


def batches(count=4):
    generator = torch.Generator().manual_seed(3)
    return [
        (torch.randn(8, 6, generator=generator), torch.randn(8, 3, generator=generator)) for _ in range(count)
    ]


def here_and_there(make, lanes=LANES, workers=(0, 1, 2, 3)):
    """The same models, wide in this process and wide on workers."""
    signal("population", list(workers))
    torch.manual_seed(1)
    models = [make() for _ in range(lanes)]
    here = wide_compiler.compile(models, torch.randn(2, 6))
    with gt.signal.context("population"):
        there = wide_compiler.compile(models, torch.randn(2, 6))
    assert all(isinstance(p, SignalTensor) for p in there.parameters())
    return here.seed(5), there.seed(5)


def counts():
    """What all workers have done: graph calls, ops, all-gathers, bytes between workers."""
    stats = gt.debug.worker_stats()
    return {
        "lanes": sum(s["instructions"].get("lanes", 0) for s in stats),
        "backward": sum(s["instructions"].get("lanes_backward", 0) for s in stats),
        "all_gathers": sum(s["all_gathers"] for s in stats),
        "gathered": sum(s["ways"].get("gathered", 0) for s in stats),
        "bytes_sent": sum(s["bytes_sent"] for s in stats),
    }


@pytest.mark.parametrize("make", [mlp, normed, conv, attention, Recurrent])
def test_a_step_equals_one_process_and_no_worker_needs_another(workers, make):
    here, there = here_and_there(make)
    (x, target), *_ = batches(1)
    for wide in (here, there):
        wide.train()
        loss(wide.shared(x), target).sum().backward()  # captures; nothing of it is counted
        wide.zero_grad()
    before = counts()
    outputs = [wide.shared(x) for wide in (here, there)]
    for out in outputs:
        loss(out, target).sum().backward()
    after = counts()
    assert after["lanes"] - before["lanes"] == after["backward"] - before["backward"] == 4
    for kind in ("all_gathers", "gathered", "bytes_sent"):
        assert after[kind] == before[kind], kind
    assert gt.debug.placement(outputs[1]) == ((0, 1, 2, 3), "S(0)")
    torch.testing.assert_close(outputs[1].cpu(), outputs[0], rtol=1e-5, atol=1e-6)
    for (name, p), (_, q) in zip(there.named_parameters(), here.named_parameters(), strict=True):
        assert gt.debug.placement(p.grad)[1] == "S(0)"
        torch.testing.assert_close(
            p.grad.cpu(), q.grad, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}"
        )
    for (name, p), (_, q) in zip(there.named_buffers(), here.named_buffers(), strict=True):
        torch.testing.assert_close(p.cpu(), q, rtol=1e-5, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("kind", [SGD, Adam, AdamW, RMSprop])
def test_fit_with_hyper_parameters_by_lane(workers, kind):
    results = []
    for wide in here_and_there(mlp):
        optimizer = kind(wide.parameters(), lr=torch.linspace(1e-3, 5e-2, LANES))
        history = fit(wide, optimizer, loss, batches(), epochs=3, clip=1.0, progress=False)
        results.append((history.losses, [p.detach().cpu() for p in wide.parameters()]))
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("lanes, workers_", [(8, (0, 1, 2, 3)), (7, (0, 1)), (4, (2,)), (9, (1, 3, 2))])
def test_even_and_uneven_lanes_over_several_workers(workers, lanes, workers_):
    here, there = here_and_there(normed, lanes, workers_)
    (x, target), *_ = batches(1)
    results = []
    for wide in (here, there):
        optimizer = SGD(wide.parameters(), lr=0.1)
        results.append(fit(wide, optimizer, loss, [(x, target)] * 3, epochs=1, progress=False).losses)
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("lanes, used", [(5, (0, 1, 2)), (9, (0, 1, 2)), (2, (0, 1)), (1, (0,))])
def test_workers_without_lanes_are_named_and_the_others_share_the_work(workers, lanes, used):
    with pytest.warns(UserWarning, match=rf"{lanes} lanes over the 4 workers .* on {len(used)} of them"):
        here, there = here_and_there(mlp, lanes)
    (x, target), *_ = batches(1)
    with gt.signal.context("population"):
        x_there = gt.tensor(x)  # cut over all four workers
    torch.testing.assert_close(there.shared(x_there).cpu(), here.shared(x), rtol=1e-5, atol=1e-6)
    assert gt.debug.placement(there.shared(x))[0] == used
    results = [
        fit(wide, SGD(wide.parameters(), lr=0.1), loss, [(x, target)] * 3, epochs=1, progress=False).losses
        for wide in (here, there)
    ]
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-6)


def test_doors_lanes_and_files(workers, tmp_path):
    here, there = here_and_there(mlp)
    xs = torch.randn(LANES, 4, 6)
    torch.testing.assert_close(there.stacked(xs).cpu(), here.stacked(xs), rtol=1e-5, atol=1e-6)
    for a, b in zip(there.each(list(xs)), here.each(list(xs)), strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-5, atol=1e-6)
    member = there.lane(7)
    torch.testing.assert_close(member(xs[7]).cpu(), here.lane(7)(xs[7]), rtol=1e-5, atol=1e-6)
    there.save(tmp_path / "lanes.safetensors")
    with torch.no_grad():
        for p in there.parameters():
            p.zero_()
    there.load(tmp_path / "lanes.safetensors")
    torch.testing.assert_close(there.stacked(xs).cpu(), here.stacked(xs), rtol=1e-5, atol=1e-6)


def test_a_population_copies_masks_and_perturbs(workers):
    results = []
    for wide in here_and_there(mlp):
        population = Population(wide, Adam(wide.parameters(), lr=torch.linspace(1e-3, 5e-2, LANES)))
        fit(wide, population, loss, batches(), epochs=1, progress=False)
        population.copy(source=[0, 1], target=[9, 4])
        population.mask([2, 5])
        population.perturb([3], 1.2, "lr", generator=torch.Generator().manual_seed(0))
        fit(wide, population, loss, batches(), epochs=1, progress=False)
        population.select([9, 8, 7, 6, 5, 4, 3, 2, 1, 0])
        history = fit(wide, population, loss, batches(), epochs=1, progress=False)
        results.append((history.losses, [p.detach().cpu() for p in wide.parameters()]))
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-6)


def test_a_shared_trunk_gets_the_sum_of_all_lanes(workers):
    signal("population", [0, 1, 2, 3])
    torch.manual_seed(2)
    trunk = nn.Linear(6, 6)
    models = [nn.Sequential(trunk, nn.Tanh(), nn.Linear(6, 3)) for _ in range(LANES)]
    here = wide_compiler.compile(models, torch.randn(2, 6))
    with gt.signal.context("population"):
        there = wide_compiler.compile(models, torch.randn(2, 6))
    (x, target), *_ = batches(1)
    for wide in (here, there):
        loss(wide.shared(x), target).sum().backward()
    for p, q in zip(there.parameters(), here.parameters(), strict=True):
        torch.testing.assert_close(p.grad.cpu(), q.grad, rtol=1e-4, atol=1e-6)


def test_a_checkpoint_of_fit_goes_on_with_other_workers(workers, tmp_path):
    """Lanes move: what two workers saved, four read, and one process too."""
    expected, _ = here_and_there(mlp)
    whole = fit(expected, _adam(expected), loss, batches(), epochs=4, seed=0, progress=False)
    _, first = here_and_there(mlp, workers=(0, 1))
    fit(first, _adam(first), loss, batches(), epochs=2, seed=0, checkpoint=tmp_path, progress=False)
    _, second = here_and_there(mlp)
    done = fit(
        *(second, _adam(second), loss, batches()),
        epochs=4, seed=0, checkpoint=tmp_path, resume=True, progress=False,
    )  # fmt: skip
    torch.testing.assert_close(done.losses, whole.losses, rtol=1e-4, atol=1e-6)


def _adam(wide):
    return Adam(wide.parameters(), lr=torch.linspace(1e-3, 5e-2, wide.n))


def test_lanes_of_another_axis_are_refused(workers):
    gt.register_config("columns", gt.SignalConfig(shard=gt.ShardConfig(axis=1, workers=[0, 1])))
    models = [mlp() for _ in range(4)]
    with gt.signal.context("columns"), pytest.raises(ValueError, match="axis 0"):
        wide_compiler.compile(models, torch.randn(2, 6))


def test_members_that_lie_on_workers_are_refused(workers):
    signal("population", [0, 1])
    with (
        gt.signal.context("population"),
        pytest.raises(ValueError, match=r"lane 0: 0\.weight lies on workers"),
    ):
        wide_compiler.compile([mlp() for _ in range(4)], torch.randn(2, 6))


def test_the_core_knows_nothing_of_signals():
    import subprocess
    import sys

    code = "import sys, wide_compiler, wide_compiler.training; print('wide_compiler.signals' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "False", told.stderr
    assert training.fit is fit


def test_held_lanes_keep_their_buffers_in_a_training_step(workers):
    here, there = here_and_there(normed, lanes=4)
    (x, target), *_ = batches(1)
    for wide in (here, there):
        wide.train().hold_lanes([1, 2])
        for _ in range(2):
            loss(wide.shared(x), target).sum().backward()
    for (name, p), (_, q) in zip(there.named_buffers(), here.named_buffers(), strict=True):
        torch.testing.assert_close(p.cpu(), q, rtol=1e-5, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")
    running = there.get_buffer("1.running_mean").cpu()
    assert not running[[1, 2]].any() and running[[0, 3]].all()


def _sent_in_a_context(name):
    def send(buffer):
        with gt.signal.context(name):
            return gt.tensor(buffer.cpu().clone())

    return send


REPLACED = {
    "plain": lambda buffer: buffer.cpu().clone(),
    "another layout": lambda buffer: buffer.index_copy(0, torch.tensor([1]), buffer.cpu()[1:2].clone()),
    "same workers": _sent_in_a_context("population"),
    "other workers": _sent_in_a_context("alone"),
}


@pytest.mark.parametrize("how", [*REPLACED, "all plain"])
def test_writes_reach_a_buffer_that_was_replaced(workers, how):
    signal("alone", [3])
    here, there = here_and_there(normed, lanes=4)
    (x, _), *_ = batches(1)
    for _ in range(3):
        for wide in (here, there):
            wide.train().shared(x)
        if how == "all plain":
            there.load_state_dict({k: v.cpu().clone() for k, v in there.state_dict().items()}, assign=True)
        else:
            norm = there.get_submodule("1")
            norm.running_mean = REPLACED[how](norm.running_mean.detach())
    for (name, p), (_, q) in zip(there.named_buffers(), here.named_buffers(), strict=True):
        torch.testing.assert_close(p.cpu(), q, rtol=1e-5, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")
