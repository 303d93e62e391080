"""The kernel of Adam against an optimiser of torch for every lane, and numbers of its own for each."""

import pytest
import torch
from torch import nn

from kernels.device import DEVICE, needs_kernels
from wide_compiler.kernels import lane_adam as kernel
from wide_compiler.kernels.lane_adam import Numbers, adam_
from wide_compiler.training import Adam, AdamW, adam

pytestmark = needs_kernels
N, STEPS = 3, 4
# One number for all lanes, and one for each.
ONE = {"lr": 3e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}
EACH = {
    "lr": [1e-3, 1e-2, 3e-3],
    "betas": ([0.9, 0.5, 0.0], [0.99, 0.999, 0.9]),
    "eps": [1e-8, 1e-6, 1e-4],
    "weight_decay": [0.0, 0.1, 0.01],
}


def of_lane(numbers, lane):
    pick = lambda v: v[lane] if isinstance(v, list) else v  # noqa: E731
    return {k: tuple(map(pick, v)) if isinstance(v, tuple) else pick(v) for k, v in numbers.items()}


def tensors(numbers):
    def one(value):
        if isinstance(value, list):
            return torch.tensor(value, dtype=torch.float64, device=DEVICE)
        return value

    beta1, beta2 = map(one, numbers["betas"])
    return {"beta1": beta1, "beta2": beta2, **{k: one(numbers[k]) for k in ("lr", "eps", "weight_decay")}}


@pytest.mark.parametrize("numbers", [ONE, {**ONE, "weight_decay": 0.1}, EACH], ids=["one", "decay", "each"])
@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("options", [{}, {"amsgrad": True, "maximize": True}], ids=["plain", "amsgrad"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_lane_is_an_adam_of_its_own(numbers, decoupled, options, dtype):
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=dtype).to(DEVICE)  # noqa: E731
    start, grads = draw(N, 5, 7), [draw(N, 5, 7) for _ in range(STEPS)]
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    own = [nn.Parameter(lane.clone()) for lane in start]
    optimizers = [kind([p], **of_lane(numbers, i), **options, foreach=False) for i, p in enumerate(own)]
    param, average, square = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
    largest = [torch.zeros_like(start)] if options else []
    step = torch.zeros((), device=DEVICE)
    for grad in grads:
        step += 1
        adam_(
            [param], [grad], [average], [square], largest, Numbers(step, **tensors(numbers)),
            decoupled=decoupled, maximize=bool(options),
        )  # fmt: skip
        for p, g, optimizer in zip(own, grad, optimizers, strict=True):
            p.grad = g.clone()
            optimizer.step()
    tolerance = 1e-12 if dtype == torch.float64 else 2e-6
    torch.testing.assert_close(param, torch.stack([p.detach() for p in own]), rtol=tolerance, atol=tolerance)
    for name, mine in {"exp_avg": average, "exp_avg_sq": square}.items():
        theirs = torch.stack([o.state[p][name] for p, o in zip(own, optimizers, strict=True)])
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)


def test_steps_of_lanes_that_have_parted_and_pieces_beyond_one_block():
    size = 1500  # more than a block
    param, grad = torch.zeros(2, size, device=DEVICE), torch.ones(2, size, device=DEVICE)
    average, square = torch.zeros_like(param), torch.zeros_like(param)
    step = torch.tensor([1.0, 100.0], device=DEVICE)
    adam_(
        [param], [grad], [average], [square], [], Numbers(step, 1.0, 0.9, 0.999, 0.0, 0.0),
        decoupled=False, maximize=False,
    )  # fmt: skip
    later = -(0.1 / (1 - 0.9**100)) / (0.001 / (1 - 0.999**100)) ** 0.5
    assert torch.allclose(param[0], torch.full((size,), -1.0, device=DEVICE))
    assert torch.allclose(param[1], torch.full((size,), later, device=DEVICE))


@pytest.mark.parametrize("rates", [0.5, [0.5, 0.25]], ids=["one", "each"])
def test_many_tensors_of_different_sizes_take_the_step_of_each_alone(rates):
    """More than one launch takes, some of several pieces, one of a single number."""
    sizes = [1, 7, 1024, 1025, 3000, *range(2, 20)]
    assert len(sizes) > kernel.TENSORS
    generator = torch.Generator().manual_seed(0)
    draw = lambda: [torch.randn(2, size, generator=generator).to(DEVICE) for size in sizes]  # noqa: E731
    given = {"lr": rates, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1}
    numbers = Numbers(torch.ones((), device=DEVICE), **tensors(given))
    together = draw(), draw(), draw(), [t.abs() for t in draw()]
    alone = [[t.clone() for t in kind] for kind in together]
    adam_(*together, [], numbers, decoupled=True, maximize=False)
    for one in zip(*alone, strict=True):
        adam_(*[[t] for t in one], [], numbers, decoupled=True, maximize=False)
    for mine, theirs in zip(together, alone, strict=True):
        assert all(map(torch.equal, mine, theirs))


@pytest.mark.parametrize("kind", [Adam, AdamW])
@pytest.mark.parametrize("numbers", [{}, {"lr": [1e-3, 1e-2, 3e-3]}, EACH], ids=["one", "rates", "each"])
def test_the_optimisers_use_it(kind, numbers, monkeypatch):
    """The same steps by the kernel as by what runs without it; on a GPU nothing needs to be said for that."""
    used = []
    fits = adam._fits_lanes
    monkeypatch.setattr(adam, "_fits_lanes", lambda *a, **k: used.append(fits(*a, **k)) or True)
    results = []
    for fused in (None, False):
        torch.manual_seed(0)
        wide = wide_of_linears()
        optimizer = kind(wide.parameters(), **numbers, fused=fused)
        for _ in range(STEPS):
            optimizer.zero_grad()
            wide.stacked(torch.ones(N, 2, 4, device=DEVICE, dtype=torch.float64)).square().sum().backward()
            optimizer.step()
        results.append([p.detach() for p in wide.parameters()])
    assert len(used) == STEPS and used[0] == (DEVICE == "cuda")
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


def test_a_kernel_that_does_not_run_is_not_used(monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("no compiler found")

    device = torch.device(DEVICE)

    def works_on(*kind):
        monkeypatch.setattr(kernel, "_works", {})
        return kernel.works_on(*kind)

    assert works_on(device, torch.float32) and works_on(device, torch.float64)
    monkeypatch.setattr(kernel, "adam_", broken)
    with pytest.warns(UserWarning, match="no compiler found"):
        assert not works_on(device, torch.float32)
    monkeypatch.setattr(kernel, "adam_", lambda *_, **__: None)
    assert not works_on(device, torch.float32)


def wide_of_linears():
    import wide_compiler

    models = [nn.Linear(4, 3).double().to(DEVICE) for _ in range(N)]
    config = wide_compiler.WideConfig(tune_seconds=0)
    return wide_compiler.compile(models, torch.randn(2, 4, dtype=torch.float64, device=DEVICE), config=config)
