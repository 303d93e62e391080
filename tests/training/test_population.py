"""Lanes masked, copied, selected, resized, perturbed: each is what it would be alone."""

import pytest
import torch
from torch import nn

import wide_compiler
from training.loops import PLAIN, Both, N, Net, models_and_wide
from wide_compiler import oracle
from wide_compiler.training import SGD, Adagrad, Adam, AdamW, Lion, Population, RMSprop, TrainStep

LRS = [1e-3 * (lane + 1) for lane in range(N)]
OPTIMIZERS = {
    "sgd": (SGD, {"lr": LRS, "momentum": 0.9}),
    "sgd dampening": (SGD, {"lr": LRS, "momentum": 0.9, "dampening": 0.1}),
    "sgd numbers": (SGD, {"lr": 1e-2}),
    "adam": (Adam, {"lr": LRS, "betas": (LRS, 0.99), "amsgrad": True}),
    "adamw": (AdamW, {"lr": LRS}),
    "adamw numbers": (AdamW, {"lr": 1e-3}),
    "rmsprop": (RMSprop, {"lr": LRS, "momentum": 0.5, "centered": True}),
    "adagrad": (Adagrad, {"lr": LRS, "lr_decay": 0.1}),
    "lion": (Lion, {"lr": LRS}),
}


class Alone:
    """A wide model with its optimiser, its batches drawn from a seed."""

    def __init__(self, kind, n=N, make=Net, options=None):
        _, self.wide = models_and_wide(make, n, 5, PLAIN)
        ours, given = OPTIMIZERS[kind]
        self.optimizer = ours(self.wide.parameters(), **(given if options is None else options))
        self.population = Population(self.wide, self.optimizer)

    def run(self, steps, seed=0, spoil=None):
        generator = torch.Generator().manual_seed(seed)
        for _ in range(steps):
            x = torch.randn(4, 5, generator=generator, dtype=torch.float64)
            self.optimizer.zero_grad()
            losses = self.wide.shared(x).square().mean((1, 2))
            if spoil is not None:
                losses = losses * torch.where(torch.arange(self.wide.n) == spoil, float("nan"), 1.0)
            losses.sum().backward()
            self.optimizer.step()
        return losses

    def everything(self):
        """Every tensor with lanes: weights, buffers, optimiser state."""
        found = dict(self.wide.state_dict())
        for index, p in enumerate(self.wide.parameters()):
            for name, value in self.optimizer.state.get(p, {}).items():
                found[f"{name} {index}"] = value if value.dim() else value.expand(self.wide.n)
        return {name: tensor.detach().clone() for name, tensor in found.items()}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_masked_lane_does_not_move_and_the_others_do(kind):
    masked, free = Alone(kind), Alone(kind)
    for each in (masked, free):
        each.run(3)
    masked.population.mask([1, 4])
    before = masked.everything()
    assert masked.population.active.tolist() == [lane not in (1, 4) for lane in range(N)]
    for each in (masked, free):
        each.run(4, seed=1)
    after, others = masked.everything(), free.everything()
    for name in before:
        for lane in range(N):
            if lane in (1, 4):
                assert torch.equal(before[name][lane], after[name][lane]), name
            else:
                torch.testing.assert_close(after[name][lane], others[name][lane], rtol=1e-9, atol=1e-12)
                assert not torch.equal(before[name][lane], after[name][lane]), name
    masked.population.unmask([4])
    masked.run(1, seed=2)
    now = masked.everything()
    assert torch.equal(now["up.weight"][1], before["up.weight"][1])
    assert not torch.equal(now["up.weight"][4], before["up.weight"][4])


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_lane_goes_on_after_a_mask_as_if_no_time_had_passed(kind):
    paused, straight = Alone(kind), Alone(kind)
    paused.run(3), straight.run(3)
    paused.population.mask([2])
    paused.run(2, seed=1)
    paused.population.unmask()
    paused.run(3, seed=2), straight.run(3, seed=2)
    mine, theirs = paused.everything(), straight.everything()
    for name in mine:
        torch.testing.assert_close(mine[name][2], theirs[name][2], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_nan_in_one_lane_leaves_the_others_to_the_bit(kind):
    ill, well = Alone(kind), Alone(kind)
    ill.run(2), well.run(2)
    losses = ill.run(1, seed=1, spoil=3)
    well.run(1, seed=1)
    assert ill.population.report(losses) == {3: "the loss is nan"}
    assert ill.population.active.all()
    named = ill.population.report(torch.ones(N), gradients=True, mask=True)
    assert list(named) == [3] and "the gradient of" in named[3]
    assert ill.population.report(losses, gradients=True) == {}  # masked lanes are not named again
    well.population.mask([3])
    ill.run(3, seed=2, spoil=3), well.run(3, seed=2)
    mine, theirs = ill.everything(), well.everything()
    for name in mine:
        for lane in [lane for lane in range(N) if lane != 3]:
            assert torch.equal(mine[name][lane], theirs[name][lane]), (name, lane)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_nan_without_a_mask_too(kind):
    ill, well = Alone(kind), Alone(kind)
    ill.run(3, spoil=3), well.run(3)
    mine, theirs = ill.everything(), well.everything()
    for name in mine:
        for lane in [lane for lane in range(N) if lane != 3]:
            assert torch.equal(mine[name][lane], theirs[name][lane]), (name, lane)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_copied_lanes_go_on_alike(kind):
    pack = Alone(kind)
    pack.run(3)
    addresses = [p.data_ptr() for p in pack.wide.parameters()]
    pack.population.copy(source=[0, 1], target=[5, 0])  # a lane may be source and target
    assert addresses == [p.data_ptr() for p in pack.wide.parameters()]
    pack.run(3, seed=1)
    twin = Alone(kind)
    twin.run(6 - 3)
    twin.run(3, seed=1)
    mine, other = pack.everything(), twin.everything()
    for name in mine:
        torch.testing.assert_close(mine[name][5], other[name][0], rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(mine[name][0], other[name][1], rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(mine[name][2], other[name][2], rtol=1e-9, atol=1e-12)


def test_copied_without_hyper_parameters():
    pack = Alone("adamw")
    pack.run(1)
    pack.population.copy(0, [3, 4], hyper=False)
    torch.testing.assert_close(pack.optimizer.lane_values("lr"), torch.tensor(LRS).double())
    pack.population.copy(0, [3, 4])
    assert pack.optimizer.lane_values("lr").tolist()[3] == pytest.approx(LRS[0])


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("order", [[3, 1], [7, 6, 5, 4, 3, 2, 1, 0], [0, 0, 4, 4, 1, 2, 3, 5, 6, 7, 7]])
def test_selected_lanes_go_on_as_before(kind, order):
    pack, straight = Alone(kind), Alone(kind)
    pack.run(3), straight.run(3)
    parameters = list(pack.wide.parameters())
    pack.population.select(order)
    assert pack.wide.n == pack.population.n == pack.optimizer.n == len(order)
    assert all(a is b for a, b in zip(parameters, pack.wide.parameters(), strict=True))
    pack.run(3, seed=1), straight.run(3, seed=1)
    mine, theirs = pack.everything(), straight.everything()
    for name in theirs:
        torch.testing.assert_close(mine[name], theirs[name][order], rtol=1e-9, atol=1e-12)
    assert pack.wide.explain(measure=False).coverage == 1.0


def test_masked_lanes_stay_masked_where_they_go():
    pack = Alone("adam")
    pack.population.mask([2])
    pack.population.select([2, 0, 2, 3])
    assert pack.population.active.tolist() == [False, True, False, True]
    before = pack.everything()
    pack.run(2)
    now = pack.everything()
    assert torch.equal(before["norm.running_mean"][[0, 2]], now["norm.running_mean"][[0, 2]])
    assert not torch.equal(before["norm.running_mean"][1], now["norm.running_mean"][1])


def test_resizing():
    pack = Alone("adamw")
    pack.run(2)
    pack.population.resize(3)
    assert pack.population.n == 3
    pack.population.resize(5)
    assert torch.equal(pack.wide.get_parameter("up.weight")[3], pack.wide.get_parameter("up.weight")[0])
    torch.testing.assert_close(pack.optimizer.lane_values("lr")[3], pack.optimizer.lane_values("lr")[0])
    pack.population.resize(7, init=lambda model, lane: nn.init.zeros_(model.down.bias))
    assert not pack.wide.get_parameter("down.bias")[5:].any()
    pack.run(1)
    first = next(pack.wide.parameters())
    assert pack.optimizer.state[first]["step"].tolist() == [3, 3, 3, 3, 3, 1, 1]
    with pytest.raises(wide_compiler.AlignmentError, match="nothing can re-initialise"):
        pack.population.resize(9, init="fresh")
    assert pack.population.n == 7 == len(first)  # what fails changes nothing
    oracle.compare(
        [pack.wide.lane(i) for i in range(7)],
        pack.wide,
        [((torch.randn(4, 5).double(),), {}) for _ in range(7)],
        gradients=True,
    ).check(rtol=1e-9)


def test_refilled_lanes_begin_anew():
    class Plain(nn.Sequential):
        def __init__(self):
            super().__init__(nn.Linear(5, 6), nn.Linear(6, 3))

    pack = Alone("adamw", make=Plain)
    pack.run(3)
    pack.population.mask([1, 2])
    before = pack.everything()
    pack.population.refill([2, 5], lr=[0.5, 0.25], weight_decay=0.0)
    assert pack.population.active.tolist() == [lane != 1 for lane in range(N)]
    now = pack.everything()
    for name in before:
        same = [torch.equal(a, b) for a, b in zip(before[name], now[name], strict=True)]
        assert same == [lane not in (2, 5) for lane in range(N)], name
    assert pack.optimizer.lane_values("lr").tolist()[2] == pytest.approx(0.5)
    assert pack.optimizer.lane_values("weight_decay").tolist()[5] == 0


def test_perturbing():
    pack = Alone("adam")
    generator = torch.Generator().manual_seed(0)
    weight = pack.wide.get_parameter("up.weight")
    before = weight.detach().clone()
    pack.population.perturb([1, 3], 0.1, generator=generator)
    moved = [not torch.equal(a, b) for a, b in zip(before, weight, strict=True)]
    assert moved == [lane in (1, 3) for lane in range(N)]
    assert 0.05 < float((weight.detach() - before)[[1, 3]].std()) < 0.2
    pack.population.perturb([0], lambda rows: 2 * rows)
    torch.testing.assert_close(weight[0], 2 * before[0])
    pack.population.perturb(range(N), 2.0, "lr", generator=generator)
    ratios = pack.optimizer.lane_values("lr") / torch.tensor(LRS).double()
    assert {round(r, 6) for r in ratios.tolist()} == {0.5, 2.0}
    pack.population.perturb([0], 2.0, "beta2", generator=generator)
    assert round(float(pack.optimizer.lane_values("beta2")[0]), 6) in (0.98, 0.995)
    pack.population.perturb([0, 1], lambda v: v + 0.1, "weight_decay")
    assert pack.optimizer.lane_values("weight_decay").tolist()[:3] == [0.1, 0.1, 0.0]
    same = Alone("adam")
    same.population.perturb([1, 3], 0.1, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(same.wide.get_parameter("up.weight")[3], weight[3])


def test_a_checkpoint_brings_masks_along():
    first, second = Alone("adamw"), Alone("adamw")
    first.population.mask([2, 3])
    first.run(1)
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    assert second.population.active.tolist() == first.population.active.tolist()
    before = second.everything()
    second.run(2)
    now = second.everything()
    assert all(torch.equal(before[name][[2, 3]], now[name][[2, 3]]) for name in before)
    assert not torch.equal(before["norm.running_mean"][0], now["norm.running_mean"][0])
    assert Population(second.wide, second.optimizer).active.tolist() == first.population.active.tolist()


def test_a_population_in_a_train_step():
    pack = Alone("adamw")
    step = TrainStep(pack.wide, pack.optimizer, lambda y: y.square().mean((1, 2)), door="shared")
    pack.population.mask([0])
    before = pack.everything()
    x = torch.randn(4, 5).double()
    for _ in range(3):
        step(x)
    now = pack.everything()
    assert all(torch.equal(before[name][0], now[name][0]) for name in before)
    assert not torch.equal(before["up.weight"][1], now["up.weight"][1])


def test_without_an_optimiser():
    wide = wide_compiler.compile(nn.Linear(3, 2), torch.randn(2, 3), n=4, config=PLAIN)
    population = Population(wide)
    population.copy(0, slice(1, None))
    assert torch.equal(wide.weight[3], wide.weight[0])
    population.mask([1])
    assert population.active.tolist() == [True, False, True, True]
    with pytest.raises(ValueError, match="this population has no optimiser"):
        population.perturb([0], 1.2, "lr")


def test_bad_input():
    both = Both(SGD, torch.optim.SGD, {"lr": 0.1}, n=4)
    population = Population(both.wide, both.optimizer)
    with pytest.raises(IndexError, match="lane 4 is out of range for 4 lanes"):
        population.mask([4])
    with pytest.raises(IndexError, match="lane 9 is out of range"):
        population.copy(0, [9])
    with pytest.raises(ValueError, match="2 source lanes for 3 targets"):
        population.copy([0, 1], [1, 2, 3])
    with pytest.raises(ValueError, match="name a lane twice"):
        population.copy([0, 1], [2, 2])
    with pytest.raises(ValueError, match="at least one lane"):
        population.select([])
    with pytest.raises(IndexError, match="lane -5 is out of range"):
        population.select([-5])
    with pytest.raises(ValueError, match="expected 4 flags"):
        population.mask([True, False])
    with pytest.raises(ValueError, match=r"expected one loss per lane \[4\], got a tensor \(\)"):
        population.report(torch.tensor(1.0))
    with pytest.raises(ValueError, match=r"got a tensor \(4, 3\)"):
        population.report(torch.ones(4, 3))
    with pytest.raises(ValueError, match="got float"):
        population.report(0.5)
    with pytest.raises(ValueError, match="SGD has no hyper-parameter 'beta1' per lane"):
        population.perturb([0], 1.1, "beta1")
    with pytest.raises(ValueError, match="n must be a positive integer"):
        population.resize(0)
    with pytest.raises(ValueError, match="unknown init 'new'"):
        population.refill([0], "new")
    with pytest.raises(TypeError, match="needs an optimiser that knows lanes, got Adam"):
        Population(both.wide, torch.optim.Adam(both.wide.parameters()))
    other = wide_compiler.compile(nn.Linear(3, 2), torch.randn(2, 3), n=2, config=PLAIN)
    with pytest.raises(ValueError, match="the optimiser is of 4 lanes, the wide model has 2"):
        Population(other, both.optimizer)
    trunk = nn.Linear(3, 3)
    models = [nn.Sequential(trunk, nn.Linear(3, 2)) for _ in range(3)]
    wide = wide_compiler.compile(models, torch.randn(2, 3), config=PLAIN)
    with pytest.raises(
        ValueError, match=r"0\.weight is one parameter for all lanes .* no lane can be masked"
    ):
        Population(wide, SGD(wide.parameters(), lr=0.1)).mask([1])
