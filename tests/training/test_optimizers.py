"""N lanes with N settings are N trainings with stock optimisers."""

import copy

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import wide_compiler
from training.loops import Both, LionReference, N
from wide_compiler.training import SGD, Adagrad, Adam, AdamW, Lion, RMSprop, clip_lane_norms_

LRS = [1e-4 * 2**i for i in range(N)]
DECAYS = [0.02 * i for i in range(N)]
BETA1 = [0.8 + 0.02 * i for i in range(N)]
BETA2 = [0.9 + 0.012 * i for i in range(N)]
EPS = [10.0 ** -(3 + i) for i in range(N)]

CASES = {
    "sgd": (SGD, torch.optim.SGD, {"lr": LRS, "weight_decay": DECAYS}),
    "sgd momentum": (SGD, torch.optim.SGD, {"lr": LRS, "momentum": BETA1, "weight_decay": DECAYS}),
    "sgd dampening": (
        SGD,
        torch.optim.SGD,
        {"lr": LRS, "momentum": [0.0, *BETA1[1:]], "dampening": DECAYS},
    ),
    "sgd nesterov": (SGD, torch.optim.SGD, {"lr": LRS, "momentum": BETA1, "nesterov": True}),
    "sgd maximize": (
        SGD,
        torch.optim.SGD,
        {"lr": [0.01 * lr for lr in LRS], "momentum": 0.9, "maximize": True},
    ),
    "sgd numbers": (SGD, torch.optim.SGD, {"lr": 1e-2, "momentum": 0.9, "weight_decay": 0.1}),
    "sgd numbers dampening": (SGD, torch.optim.SGD, {"lr": 1e-2, "momentum": 0.9, "dampening": 0.1}),
    "adam": (
        Adam,
        torch.optim.Adam,
        {"lr": LRS, "betas": (BETA1, BETA2), "eps": EPS, "weight_decay": DECAYS},
    ),
    "adam lr only": (Adam, torch.optim.Adam, {"lr": LRS}),
    "adam amsgrad": (
        Adam,
        torch.optim.Adam,
        {"lr": LRS, "betas": (0.9, BETA2), "amsgrad": True, "maximize": True},
    ),
    "adam numbers": (Adam, torch.optim.Adam, {"lr": 1e-2, "weight_decay": 0.1, "amsgrad": True}),
    "adamw": (
        AdamW,
        torch.optim.AdamW,
        {"lr": LRS, "betas": (BETA1, BETA2), "eps": EPS, "weight_decay": DECAYS},
    ),
    "adamw numbers": (AdamW, torch.optim.AdamW, {"lr": 1e-2}),
    "rmsprop": (
        RMSprop,
        torch.optim.RMSprop,
        {"lr": LRS, "alpha": BETA2, "eps": EPS, "weight_decay": DECAYS},
    ),
    "rmsprop centered": (
        RMSprop,
        torch.optim.RMSprop,
        {"lr": LRS, "alpha": BETA2, "centered": True, "momentum": [0.0, *BETA1[1:]]},
    ),
    "rmsprop numbers": (RMSprop, torch.optim.RMSprop, {"lr": 1e-3, "centered": True, "momentum": 0.9}),
    "adagrad": (
        Adagrad,
        torch.optim.Adagrad,
        {"lr": LRS, "lr_decay": DECAYS, "weight_decay": DECAYS, "eps": EPS},
    ),
    "adagrad numbers": (Adagrad, torch.optim.Adagrad, {"lr": 1e-2, "initial_accumulator_value": 0.1}),
    "lion": (Lion, LionReference, {"lr": LRS, "betas": (BETA1, BETA2), "weight_decay": DECAYS}),
    "lion numbers": (Lion, LionReference, {"lr": 1e-3, "weight_decay": 0.1}),
}


@pytest.mark.parametrize("case", CASES)
def test_fifty_steps(case):
    both = Both(*CASES[case])
    both.run(50)
    both.check()
    assert both.wide.explain(measure=False).coverage == 1.0


def clipped(both, limits):
    def clip():
        norms = clip_lane_norms_(both.wide.parameters(), limits)
        for lane, model in enumerate(both.models):
            limit = limits[lane] if isinstance(limits, list) else limits
            own = torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
            torch.testing.assert_close(norms[lane], own)

    return clip


@pytest.mark.parametrize(
    "case", ["sgd momentum", "adam", "adamw", "rmsprop centered", "adagrad", "lion", "adamw numbers"]
)
def test_scheduled_clipped_and_accumulated(case):
    both = Both(*CASES[case])
    schedulers = [lr_scheduler.CosineAnnealingLR(o, 60) for o in (both.optimizer, *both.own)]
    clip = clipped(both, [0.05 * (lane + 1) for lane in range(N)])
    both.run(50, lambda: [scheduler.step() for scheduler in schedulers], accumulate=2, before=clip)
    both.check()


SCHEDULERS = {
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
    "multiplicative": lambda o: lr_scheduler.MultiplicativeLR(o, lambda step: 0.9),
    "step": lambda o: lr_scheduler.StepLR(o, 3, 0.5),
    "multi step": lambda o: lr_scheduler.MultiStepLR(o, [2, 5], 0.5),
    "constant": lambda o: lr_scheduler.ConstantLR(o, 0.5, 4),
    "linear": lambda o: lr_scheduler.LinearLR(o, 0.1, 1.0, 5),
    "exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.8),
    "polynomial": lambda o: lr_scheduler.PolynomialLR(o, 10, 2.0),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 8),
    "warm restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 4),
    "chained": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, 1.0, 3), lr_scheduler.ExponentialLR(o, 0.9)], [3]
    ),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_stock_schedulers(name):
    both = Both(*CASES["adamw"])
    schedulers = [SCHEDULERS[name](o) for o in (both.optimizer, *both.own)]
    assert isinstance(both.optimizer.param_groups[0]["lr"], float)

    def check_rates():
        expected = [o.param_groups[0]["lr"] for o in both.own]
        torch.testing.assert_close(both.optimizer.lane_values("lr"), torch.tensor(expected).double())

    for _ in range(10):
        both.run(1, before=check_rates)
        for scheduler in schedulers:
            scheduler.step()
    both.check()


def test_schedulers_that_also_drive_momentum():
    for case in ("adamw", "sgd momentum"):
        both = Both(*CASES[case])
        # The peak of each lane is a multiple of the peak given, as its learning rate is of the largest.
        peaks = [1.0, *(lr / max(LRS) for lr in LRS)]
        schedulers = [
            lr_scheduler.OneCycleLR(o, max_lr=0.01 * peak, total_steps=12)
            for o, peak in zip((both.optimizer, *both.own), peaks, strict=True)
        ]
        both.run(11, lambda s=schedulers: [scheduler.step() for scheduler in s])
        both.check()
    both = Both(*CASES["sgd momentum"])
    schedulers = [
        lr_scheduler.CyclicLR(o, 1e-3 * peak, 1e-2 * peak, 4)
        for o, peak in zip((both.optimizer, *both.own), peaks, strict=True)
    ]
    both.run(11, lambda: [scheduler.step() for scheduler in schedulers])
    both.check()


def test_reduce_on_plateau():
    both = Both(*CASES["adam"])
    schedulers = [lr_scheduler.ReduceLROnPlateau(o, patience=1) for o in (both.optimizer, *both.own)]
    both.run(8, lambda: [scheduler.step(1.0) for scheduler in schedulers])
    both.check()
    assert both.optimizer.param_groups[0]["lr"] < max(LRS)


@pytest.mark.parametrize("case", [case for case in CASES if "lion" not in case])
def test_a_lane_moves_to_a_stock_optimiser_and_back(case):
    ours, stock, options = CASES[case]
    both = Both(ours, stock, options)
    both.run(3)
    for lane in range(N):
        member = both.wide.lane(lane)
        alone = stock(member.parameters(), lr=0.5)
        alone.load_state_dict(both.optimizer.lane_state(lane))
        both.models[lane], both.own[lane] = member, alone
    both.run(3)
    both.check()
    # Back, into other lanes than they came from.
    order = [*range(1, N), 0]
    both.models, both.own = [both.models[i] for i in order], [both.own[i] for i in order]
    for lane in range(N):
        both.wide.load_lane(lane, both.models[lane])
        both.optimizer.load_lane_state(lane, both.own[lane].state_dict())
    both.run(3)
    both.check()


@pytest.mark.parametrize("case", CASES)
def test_state_dict_round_trip(case, tmp_path):
    ours, stock, options = CASES[case]
    both = Both(ours, stock, options)
    scheduler = lr_scheduler.ExponentialLR(both.optimizer, 0.9)
    both.run(2)
    scheduler.step()
    both.optimizer.mask([1])
    both.run(2)
    torch.save(both.optimizer.state_dict(), tmp_path / "state.pt")
    twin = copy.deepcopy(both.wide)
    again = ours(twin.parameters(), lr=0.5)
    again.load_state_dict(torch.load(tmp_path / "state.pt"))
    x, y = both.batch()
    for wide, optimizer in ((both.wide, both.optimizer), (twin, again)):
        for _ in range(3):
            optimizer.zero_grad()
            (wide.stacked(x) - y).square().sum().backward()
            optimizer.step()
    for mine, theirs in zip(both.wide.parameters(), twin.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert again.active.tolist() == [lane != 1 for lane in range(N)]


def test_a_copy_of_model_and_optimiser_goes_on_alike():
    both = Both(*CASES["adamw"])
    both.run(2)
    both.optimizer.mask([3])
    wide, optimizer = copy.deepcopy((both.wide, both.optimizer))
    x, y = both.batch()
    for model, own in ((both.wide, both.optimizer), (wide, optimizer)):
        for _ in range(2):
            own.zero_grad()
            (model.stacked(x) - y).square().sum().backward()
            own.step()
    for mine, theirs in zip(both.wide.parameters(), wide.parameters(), strict=True):
        assert mine is not theirs and torch.equal(mine, theirs)


def test_a_stock_state_goes_on_by_lane():
    """From `torch.optim.Adam` over all lanes, with one number, to one number each."""
    both = Both(torch.optim.Adam, torch.optim.Adam, {"lr": 1e-2})
    both.run(3)
    by_lane = Adam(both.wide.parameters())
    by_lane.load_state_dict(both.optimizer.state_dict())
    by_lane.set_lane_values("lr", LRS)
    both.optimizer = by_lane
    for own, lr in zip(both.own, LRS, strict=True):
        own.param_groups[0]["lr"] = lr
    both.run(3)
    both.check()


def test_lanes_values_change_in_place():
    both = Both(*CASES["adamw"])
    both.run(2)
    group = both.optimizer.param_groups[0]
    places = [group["lr_ratio"].data_ptr(), group["betas"][0].data_ptr(), group["eps"].data_ptr()]
    both.optimizer.set_lane_values("lr", 0.02, lanes=[2, 3])
    both.optimizer.set_lane_values("beta1", [0.5, 0.6], lanes=[-1, 0])
    both.optimizer.set_lane_values("eps", 1e-6)
    both.optimizer.scale_lane_rates([2.0, 0.5], [0, 1])
    assert places == [group["lr_ratio"].data_ptr(), group["betas"][0].data_ptr(), group["eps"].data_ptr()]
    for lane, own in enumerate(both.own):
        state = own.param_groups[0]
        state["lr"] = {0: 2 * LRS[0], 1: LRS[1] / 2, 2: 0.02, 3: 0.02}.get(lane, state["lr"])
        state["betas"] = ({7: 0.5, 0: 0.6}.get(lane, state["betas"][0]), state["betas"][1])
        state["eps"] = 1e-6
    both.run(3)
    both.check()


def test_half_precision_is_stepped_in_single():
    """A beta of 0.999 does not exist in bfloat16, and a learning rate is off by half a percent."""
    model = torch.nn.Linear(40, 30)
    wide = wide_compiler.compile(model.bfloat16(), torch.randn(2, 40).bfloat16(), n=2, init="copy")
    members = list(wide.lanes())
    options = {"betas": (0.9, 0.999), "weight_decay": 0.1}
    ours = AdamW(wide.parameters(), lr=[1e-3, 3e-3], **options)
    own = [
        torch.optim.AdamW(m.parameters(), lr=lr, **options)
        for m, lr in zip(members, [1e-3, 3e-3], strict=True)
    ]
    for _ in range(5):
        for p, *alone in zip(wide.parameters(), *(m.parameters() for m in members), strict=True):
            p.grad = torch.randn_like(p)
            for lane, mine in enumerate(alone):
                mine.grad = p.grad[lane].clone()
        for optimizer in (ours, *own):
            optimizer.step()
    for lane, member in enumerate(members):
        got, expected = wide.lane(lane).weight.float(), member.weight.float()
        assert ((got - expected).abs() / (expected.abs() + 1e-3)).mean() < 4e-3


def test_numbers_run_as_one_fused_kernel(monkeypatch):
    """Plain numbers cost what torch's fastest code costs; a mask or own numbers leave that path."""
    calls = []
    kernel = torch._fused_adamw_
    monkeypatch.setattr(torch, "_fused_adamw_", lambda *a, **k: (calls.append(len(a[0])), kernel(*a, **k)))
    both = Both(*CASES["adamw numbers"])
    both.run(2)
    assert calls == [7, 7]
    both.optimizer.mask([1])
    both.run(1)
    assert len(calls) == 2
    for optimizer in (both.optimizer, *both.own):
        optimizer.zero_grad()


def test_named_parameters_and_groups():
    both = Both(*CASES["adamw"])
    both.optimizer = AdamW(both.wide.named_parameters(), **CASES["adamw"][2])
    assert both.optimizer.param_groups[0]["param_names"][0] == "scale"
    both.run(2)
    both.check()
    weights = [p for name, p in both.wide.named_parameters() if name.endswith("weight")]
    others = [p for name, p in both.wide.named_parameters() if not name.endswith("weight")]
    both.optimizer = AdamW(
        [{"params": weights}, {"params": others, "weight_decay": 0.0, "lr": torch.tensor(LRS) * 2}], lr=LRS
    )
    for lane, model in enumerate(both.models):
        mine = [p for name, p in model.named_parameters() if name.endswith("weight")]
        rest = [p for name, p in model.named_parameters() if not name.endswith("weight")]
        both.own[lane] = torch.optim.AdamW(
            [{"params": mine}, {"params": rest, "weight_decay": 0.0, "lr": LRS[lane] * 2}], lr=LRS[lane]
        )
    both.run(3)
    both.check()
    state = both.optimizer.lane_state(5)
    assert [len(group["params"]) for group in state["param_groups"]] == [3, 4]
    assert state["param_groups"][1]["lr"] == pytest.approx(2 * LRS[5])


class Shared(torch.nn.Module):
    def __init__(self, trunk):
        super().__init__()
        self.trunk, self.head = trunk, torch.nn.Linear(6, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.trunk(x)))


def test_a_shared_trunk_takes_numbers_and_refuses_lanes():
    trunk = torch.nn.Linear(5, 6).double()
    models = [Shared(trunk).double() for _ in range(3)]
    wide = wide_compiler.compile(models, torch.randn(2, 5).double())
    with pytest.raises(ValueError, match=r"trunk.weight is one tensor for all lanes .* one lr per lane"):
        SGD(wide.parameters(), lr=[0.1, 0.2, 0.3])
    with pytest.raises(
        ValueError, match=r"trunk.weight is one tensor for all lanes .* one momentum per lane"
    ):
        SGD(wide.parameters(), lr=0.1, momentum=[0.1, 0.2, 0.3])
    heads = list(wide.get_submodule("head").parameters())
    own = {"params": list(wide.get_submodule("trunk").parameters()), "lr": 0.05}
    ours = SGD([{"params": heads}, own], lr=[0.1, 0.2, 0.3])
    stock = torch.optim.SGD(
        [
            *(
                {"params": m.head.parameters(), "lr": lr}
                for m, lr in zip(models, [0.1, 0.2, 0.3], strict=True)
            ),
            {"params": trunk.parameters(), "lr": 0.05},
        ]
    )
    for _ in range(4):
        x = torch.randn(3, 4, 5).double()
        for optimizer in (ours, stock):
            optimizer.zero_grad()
        wide.stacked(x).square().sum().backward()
        sum(m(a).square().sum() for m, a in zip(models, x, strict=True)).backward()
        for optimizer in (ours, stock):
            optimizer.step()
    for lane, model in enumerate(models):
        for name, value in model.state_dict().items():
            torch.testing.assert_close(wide.lane(lane).state_dict()[name], value)
    # Frozen, it is nobody's concern, until it thaws.
    trunk.requires_grad_(False)
    wide = wide_compiler.compile(models, torch.randn(2, 5).double())
    ours = SGD(wide.parameters(), lr=[0.1, 0.2, 0.3])
    wide.stacked(x).sum().backward()
    ours.step()
    wide.get_submodule("trunk").requires_grad_(True)
    wide.stacked(x).sum().backward()
    with pytest.raises(ValueError, match=r"trunk.weight is one tensor"):
        ours.step()


def test_bad_input():
    wide = wide_compiler.compile(torch.nn.Linear(3, 2), torch.randn(2, 3), n=4)
    parameters = list(wide.parameters())
    with pytest.raises(ValueError, match=r"lr: expected a number or 4, one per lane, got a shape of \(3,\)"):
        SGD(parameters, lr=[0.1, 0.2, 0.3])
    with pytest.raises(ValueError, match=r"lr of lane 2 is -0.3, expected at least 0"):
        AdamW(parameters, lr=[0.1, 0.2, -0.3, 0.1])
    with pytest.raises(ValueError, match="lr is -1, expected at least 0"):
        Lion(parameters, lr=-1)
    with pytest.raises(ValueError, match="lr of lane 1 is nan"):
        Adam(parameters, lr=[0.1, float("nan"), 0.1, 0.1])
    with pytest.raises(ValueError, match="beta2 of lane 3 is 1, expected at least 0 and below 1"):
        Adam(parameters, betas=(0.9, [0.9, 0.9, 0.9, 1.0]))
    with pytest.raises(ValueError, match="betas: expected a pair"):
        Adam(parameters, betas=[0.9, 0.99, 0.9, 0.9])
    with pytest.raises(ValueError, match="lr: expected a number or 4, one per lane, got 'fast'"):
        SGD(parameters, lr="fast")
    with pytest.raises(ValueError, match="nesterov needs a momentum above 0"):
        SGD(parameters, lr=0.1, momentum=[0.9, 0.9, 0.0, 0.9], nesterov=True)
    with pytest.raises(ValueError, match="takes the parameters of a wide model"):
        SGD(torch.nn.Linear(3, 2).parameters(), lr=0.1)
    optimizer = SGD(parameters, lr=0.1)
    with pytest.raises(IndexError, match="lane 4 is out of range for 4 lanes"):
        optimizer.mask([0, 4])
    with pytest.raises(IndexError, match="lane -5 is out of range"):
        optimizer.lane_state(-5)
    with pytest.raises(ValueError, match="SGD has no hyper-parameter 'beta1' per lane"):
        optimizer.set_lane_values("beta1", 0.9)
    with pytest.raises(ValueError, match=r"lr: expected a number or 2, one per lane, got \(3,\)"):
        optimizer.set_lane_values("lr", [1, 2, 3], lanes=[0, 1])
    with pytest.raises(ValueError, match="lr of lane 2 is -1"):
        optimizer.set_lane_values("lr", -1, lanes=[2])
    optimizer.param_groups[0]["lr"] = [0.1] * 4
    (wide.shared(torch.randn(2, 3)).sum()).backward()
    with pytest.raises(ValueError, match=r"set_lane_values\('lr', ...\) sets it by lane"):
        optimizer.step()
    other = wide_compiler.compile(torch.nn.Linear(3, 2), torch.randn(2, 3), n=5)
    with pytest.raises(ValueError, match="has 5 lanes, the parameters before it 4"):
        SGD([*parameters, *other.parameters()], lr=0.1)
    with pytest.raises(ValueError, match="this state is of 5 lanes, the parameters have 4"):
        SGD(parameters).load_state_dict(SGD(other.parameters(), lr=[0.1] * 5).state_dict())
    with pytest.raises(ValueError, match=r"groups of \[1\] parameters, expected \[2\]"):
        SGD(parameters).load_lane_state(
            0, torch.optim.SGD([torch.nn.Parameter(torch.zeros(3))], lr=0.1).state_dict()
        )


def transposed(grad):
    return grad.mT.contiguous().mT if grad.dim() > 1 else grad


def other_stride_of_one(grad):
    """As autograd makes it for a layer with one output: another stride along the axis of size 1."""
    strides = [1 if size == 1 else stride for size, stride in zip(grad.shape, grad.stride(), strict=True)]
    return grad.as_strided(grad.shape, strides)


@pytest.mark.parametrize(
    ("kind", "stock"),
    [
        (Adam, torch.optim.Adam),
        (AdamW, torch.optim.AdamW),
        (SGD, torch.optim.SGD),
        (Adagrad, torch.optim.Adagrad),
    ],
)
@pytest.mark.parametrize("change", [other_stride_of_one, transposed])
def test_gradients_in_another_layout_take_the_fused_step(kind, stock, change, monkeypatch):
    """The gradient of a layer with one output has other strides than its weight, along an axis of size 1."""
    members = [nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)).double() for _ in range(3)]
    x = torch.randn(5, 4, dtype=torch.float64)
    wide = wide_compiler.compile(copy.deepcopy(members), x)
    optimizer, alone = kind(wide.parameters(), lr=0.01), [stock(m.parameters(), lr=0.01) for m in members]
    fused = []
    own = type(optimizer).update_fused
    monkeypatch.setattr(type(optimizer), "update_fused", lambda *args: fused.append(1) or own(*args))
    for _ in range(3):
        for model in (*members, wide):
            model.zero_grad()
        for member, own_optimizer in zip(members, alone, strict=True):
            member(x).square().sum().backward()
            own_optimizer.step()
        wide.shared(x).square().sum().backward()
        for p in wide.parameters():
            p.grad = change(p.grad)
        assert not all(p.grad.stride() == p.stride() for p in wide.parameters())
        optimizer.step()
    assert len(fused) == 3
    for lane, member in enumerate(members):
        for name, p in member.named_parameters():
            torch.testing.assert_close(wide.lane_state(lane, name), p.detach(), rtol=1e-9, atol=1e-12)
