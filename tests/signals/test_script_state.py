"""The script's own state has its effect on workers: random state, default dtype, deterministic flags,
autocast."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import wide_compiler.signals as gt
from signals.placed import signal
from wide_compiler.workers.script_state import SETTINGS

pytestmark = pytest.mark.usefixtures("workers")


def drawn(make):
    with gt.signal.context(signal("three", [0, 1, 2])):
        return make().cpu()


DRAWS = {
    "randn": lambda: torch.randn(7, 3),
    "dropout": lambda: F.dropout(gt.ones(7, 3), 0.5),
    "normal_": lambda: gt.zeros(7).normal_(),
    "bernoulli": lambda: torch.bernoulli(gt.ones(7, 2) / 2),
    "multinomial": lambda: torch.multinomial(gt.ones(4, 7), 3),
    "rrelu": lambda: F.rrelu(-gt.ones(7, 2), training=True),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_seed_a_state_and_a_fork_of_it_repeat_a_draw(name):
    torch.manual_seed(5)
    first, state = drawn(DRAWS[name]), torch.get_rng_state()
    second = drawn(DRAWS[name])
    torch.set_rng_state(state)
    with torch.random.fork_rng():
        assert torch.equal(drawn(DRAWS[name]), second)
    assert torch.equal(drawn(DRAWS[name]), second)
    torch.manual_seed(5)
    assert torch.equal(drawn(DRAWS[name]), first)
    gt.manual_seed(5)
    assert torch.equal(drawn(DRAWS[name]), first)
    assert not torch.equal(first, second)


def test_draws_do_not_depend_on_the_layout():
    values = []
    for workers in ([0], [0, 1], [0, 1, 2]):
        torch.manual_seed(2)
        with gt.signal.context(signal("some", workers)):
            values.append(F.dropout(torch.rand(7, 3), 0.3).cpu())
    assert torch.equal(values[0], values[1]) and torch.equal(values[0], values[2])


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_region_recomputes_what_it_drew(reentrant):
    x = torch.randn(6, 4, dtype=torch.float64)
    with gt.signal.context(signal("dp", [0, 1])):
        h = gt.tensor(x, requires_grad=True)
        y = checkpoint(lambda a: F.dropout(a, 0.5) * 3, h, use_reentrant=reentrant)
    y.sum().backward()
    mask = y.cpu() != 0
    assert 0 < mask.sum() < mask.numel()
    torch.testing.assert_close(h.grad.cpu(), mask.double() * 6)


def test_a_generator_of_the_script_gives_the_numbers_of_one_process():
    def seeded():
        return torch.Generator().manual_seed(9)

    expected = torch.randperm(11, generator=seeded()), torch.randn(5, 2, generator=seeded())
    with gt.signal.context(signal("dp", [0, 1])):
        got = torch.randperm(11, generator=seeded()), torch.randn(5, 2, generator=seeded())
        filled = [gt.zeros(6).normal_(generator=seeded()) for _ in range(2)]
    assert all(torch.equal(a.cpu(), b) for a, b in zip(got, expected, strict=True))
    assert torch.equal(filled[0].cpu(), filled[1].cpu())


@pytest.mark.parametrize("loaders", [0, 2])
def test_a_shuffling_data_loader_gives_the_batches_of_one_process(loaders):
    data = TensorDataset(torch.arange(13.0), torch.arange(13))

    def batches():
        torch.manual_seed(4)
        return [[x.tolist() for x in b] for b in DataLoader(data, 4, shuffle=True, num_workers=loaders)]

    expected = batches()
    with gt.signal.context(signal("dp", [0, 1])):
        assert batches() == expected


def test_a_file_that_is_loaded_is_the_scripts(tmp_path):
    torch.save(nn.Linear(3, 2).state_dict(), tmp_path / "x.pt")
    with gt.signal.context(signal("dp", [0, 1])):
        loaded = torch.load(tmp_path / "x.pt")
    assert {type(v) for v in loaded.values()} == {torch.Tensor}


def test_the_default_dtype_is_followed_there_and_back():
    with gt.signal.context(signal("dp", [0, 1])):
        try:
            for dtype in (torch.float64, torch.float32, torch.float64):
                torch.set_default_dtype(dtype)
                for x in (
                    torch.ones(7) / 3,
                    torch.arange(7) / 3,
                    torch.linspace(0, 1, 7),
                    torch.arange(7).sqrt(),
                ):
                    assert x.dtype == dtype
                    assert x.cpu().dtype == dtype
                third = (gt.ones(7) / 3).cpu()
                assert torch.equal(third, torch.ones(7, dtype=dtype) / 3)
        finally:
            torch.set_default_dtype(torch.float32)


def test_every_setting_can_be_read_and_set():
    for read, write in SETTINGS.values():
        write(read())


def test_deterministic_algorithms_are_asked_of_the_workers():
    with gt.signal.context(signal("dp", [0, 1])):
        x = gt.randn(6, 3)
        try:
            torch.use_deterministic_algorithms(True)
            filled = torch.empty(6).cpu()  # deterministic mode fills new memory
        finally:
            torch.use_deterministic_algorithms(False)
        assert filled.isnan().all()
        assert x.sum().isfinite().item()


def test_autocast_and_grad_modes_act_in_the_script():
    layer, x = nn.Linear(8, 8), torch.randn(6, 8)
    alone = copy.deepcopy(layer)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = alone(x)
        with gt.signal.context(signal("dp", [0, 1])):
            got = layer(x)
    assert got.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(got.detach().cpu(), expected.detach(), rtol=2e-2, atol=2e-2)
    with gt.signal.context("dp"), torch.no_grad():
        assert not layer(x).requires_grad
    with gt.signal.context("dp"), torch.inference_mode():
        wide = gt.ones(6, 4).to(torch.float64)  # below autograd `to` comes whole, and is a copy here
        wide.mul_(3)
        assert wide.sum().item() == 72


@pytest.mark.parametrize("infinite", [False, True])
def test_grad_scaler_unscales_and_skips(infinite):
    def run(placed):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)).double()
        x = torch.randn(6, 4).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
        scales = []
        for step in range(4):
            optimizer.zero_grad()
            if placed:
                with gt.signal.context("dp"):
                    loss = (model(x) ** 2).mean() * (float("inf") if infinite and step == 1 else 1.0)
            else:
                loss = (model(x) ** 2).mean() * (float("inf") if infinite and step == 1 else 1.0)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        return [p.detach().cpu() for p in model.parameters()], scales

    signal("dp", [0, 1])
    expected, got = run(False), run(True)
    assert got[1] == expected[1] and len(set(got[1])) > 1
    for a, b in zip(got[0], expected[0], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
