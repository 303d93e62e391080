"""Seven networks under five kinds of parallelism, trained as people train them, equal to one process.

Beside each equality stand the instructions of each worker, and that its memory fell where parameters are cut.
By day each network runs under one or two kinds, a few steps; `NIGHTLY=1` runs all pairs, 20 steps each.
"""

import contextlib
import copy
import io
import itertools

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import wide_compiler.signals as gt
from nightly import NIGHTLY
from signals.models import CASES
from signals.placed import work

pytestmark = pytest.mark.usefixtures("workers")
STEPS = 20 if NIGHTLY else 4
FOUR, GRID, LEFT, RIGHT = [0, 1, 2, 3], [[0, 1], [2, 3]], [0, 1], [2, 3]

# For each kind: its signals (the second is the pipeline's second stage), and the layout of a weight.
LAYOUTS = {
    "data": ({"first": gt.ShardConfig(0, FOUR)}, "R"),
    "tensor": ({"first": gt.ShardConfig([None], FOUR, [0])}, "S(0)"),
    "data x tensor": ({"first": gt.ShardConfig([0, None], GRID, [None, 0])}, "R, S(0)"),
    "cut": ({"first": gt.ShardConfig(0, FOUR, 0)}, "S(0)"),
    "pipeline": ({"first": gt.ShardConfig(0, LEFT), "second": gt.ShardConfig(0, RIGHT)}, "R"),
}
DIAGONAL = {
    ("nanogpt", "cut"),
    ("bert", "data"),
    ("llama", "data x tensor"),
    ("vit", "tensor"),
    ("resnet", "data"),
    ("resnet", "cut"),
    ("lstm", "cut"),
    ("gan", "data x tensor"),
    ("nanogpt", "pipeline"),
}


def here(placed):
    return gt.signal.context("first") if placed else contextlib.nullcontext()


def batches(name, steps):
    """A shuffling DataLoader with a worker process, on plain tensors."""
    torch.manual_seed(1)
    data = TensorDataset(*CASES[name].data(4 * steps + 3 * steps))
    shuffling = torch.Generator().manual_seed(2)
    loader = DataLoader(data, batch_size=7, shuffle=True, num_workers=1, generator=shuffling)
    return list(itertools.islice(loader, steps))


def train(name, model, given, placed, save_at=None):
    """Two micro-batches a step (4 and 3 rows), clipped gradients, a schedule; saved and loaded on the way."""
    case = CASES[name]
    optimizer = case.optimizer(model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(given))
    losses = []
    for i, (x, y) in enumerate(given):
        total = 0.0
        for part in (slice(0, 4), slice(4, 7)):
            with here(placed):
                loss = case.loss(model, x[part], y[part]) / 2
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.append(total)
        if i == save_at:
            optimizer, schedule = reloaded(case, model, optimizer, schedule, len(given))
    return losses, optimizer


def reloaded(case, model, optimizer, schedule, steps):
    """What `torch.save` wrote is loaded into a model whose weights are lost, and a new optimiser."""
    file = io.BytesIO()
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "at": schedule.state_dict()}, file
    )
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    file.seek(0)
    saved = torch.load(file)
    model.load_state_dict(saved["model"])
    optimizer = case.optimizer(model)
    optimizer.load_state_dict(saved["optimizer"])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    schedule.load_state_dict(saved["at"])
    return optimizer, schedule


def train_gan(model, given, placed):
    """Two optimisers, each of which moves one half."""
    first = torch.optim.Adam(model.maker.parameters(), lr=1e-2, betas=(0.5, 0.9), eps=1e-4)
    second = torch.optim.Adam(model.critic.parameters(), lr=1e-2, betas=(0.5, 0.9), eps=1e-4)
    losses = []
    for x, y in given:
        with here(placed):
            made = model.maker(x)
            judged = model.critic(made.detach()).mean() - model.critic(y).mean()
        second.zero_grad()
        judged.backward()
        second.step()
        first.zero_grad()
        with here(placed):
            loss = -model.critic(made).mean()
        loss.backward()
        first.step()
        losses.append(loss.item() + judged.item())
    return losses, first


def trained(name, model, given, placed):
    if name == "gan":
        return train_gan(model, given, placed)
    if hasattr(model, "gradient_checkpointing_enable"):
        model.train()
        model.gradient_checkpointing_enable()
    return train(name, model, given, placed, save_at=len(given) // 2)


def in_second_stage(module):
    """The module runs in the second signal's context, inside the first's."""
    module.register_forward_pre_hook(lambda m, args, kwargs: gt.signal.enter("second"), with_kwargs=True)
    module.register_forward_hook(lambda m, args, out: gt.signal.exit("second"))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CASES)
def test_equal_to_one_process(name, layout):
    if not NIGHTLY and (name, layout) not in DIAGONAL:
        pytest.skip("runs with NIGHTLY=1")
    case, (signals, held) = CASES[name], LAYOUTS[layout]
    for signal, shard in signals.items():
        gt.register_config(signal, gt.SignalConfig(shard))
    torch.manual_seed(0)
    alone = case.build().double()
    model = copy.deepcopy(alone)
    given = batches(name, STEPS)
    expected, _ = trained(name, alone, given, placed=False)
    if layout == "pipeline":
        in_second_stage(model.get_submodule(case.second))
    before = [s["memory"] for s in gt.debug.worker_stats()]
    with work() as done:
        got, optimizer = trained(name, model, given, placed=True)
    limits = {"rtol": case.tolerance, "atol": case.tolerance}
    torch.testing.assert_close(*(torch.tensor(v, dtype=torch.float64) for v in (got, expected)), **limits)
    for (key, a), b in zip(alone.state_dict().items(), model.state_dict().values(), strict=True):
        torch.testing.assert_close(b.cpu(), a, **limits, msg=lambda m, k=key: f"{k}: {m}")
    weight = model.get_parameter(case.weight)
    assert gt.debug.placement(weight)[1] == held
    counts = [d[case.mark] for d in done]
    workers = FOUR if layout != "pipeline" else LEFT
    assert min(counts[w] for w in workers) > 0, counts
    assert all(sum(d.values()) > 10 * STEPS for d in done), [sum(d.values()) for d in done]
    memory = [s["memory"] - b for s, b in zip(gt.debug.worker_stats(), before, strict=True)]
    whole = bytes_of(model, optimizer)
    share = {"data": 1.1, "cut": 0.5, "data x tensor": 0.8, "tensor": 0.6, "pipeline": 1.0}[layout]
    assert max(memory) <= whole * share + 8192, (memory, whole)


def bytes_of(model, optimizer):
    """Parameters, buffers and the optimiser's state in one process."""
    tensors = [*model.state_dict().values(), *(v for s in optimizer.state.values() for v in s.values())]
    unique = {id(t): t for t in tensors if isinstance(t, torch.Tensor)}
    return sum(t.numel() * t.element_size() for t in unique.values())


@pytest.mark.parametrize("layout", ["data", "cut", "data x tensor"])
def test_autocast_and_a_scaler(layout):
    """bfloat16 products: close to one process, which rounds sums otherwise; the scale moves alike."""
    gt.register_config("first", gt.SignalConfig(LAYOUTS[layout][0]["first"]))
    torch.manual_seed(0)
    alone = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
    model = copy.deepcopy(alone)
    x, y = torch.randn(8, 16), torch.randn(8, 4)
    results = []
    for net, placed in ((alone, False), (model, True)):
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=4)
        losses = []
        for i in range(20):
            with here(placed), torch.autocast("cpu", torch.bfloat16):
                loss = nn.functional.mse_loss(net(x).float(), y)
                if i == 7:
                    loss = loss * float("inf")
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
        results.append((losses, scaler.get_scale()))
    (expected, scale), (got, own_scale) = results
    torch.testing.assert_close(torch.tensor(got), torch.tensor(expected), rtol=3e-2, atol=3e-2)
    assert scale == own_scale != 2.0**20
