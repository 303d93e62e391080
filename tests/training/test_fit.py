"""fit is N plain trainings; what stops one lane leaves the others alone."""

import copy
import io
import math

import pytest
import torch
from rich.console import Console
from torch import nn
from torch.utils.data import DataLoader

import wide_compiler
from training.fits import (
    PLAIN,
    N,
    adam,
    check_lanes,
    everything,
    lane_loss,
    loader,
    make_models,
    make_set,
    make_wide,
    train_alone,
)
from untouched import refused
from wide_compiler import InputError
from wide_compiler.training import (
    EarlyStop,
    History,
    LaneSchedulers,
    PerLane,
    Population,
    Stacked,
    evaluate,
    fit,
    fold_batches,
)
from wide_compiler.training.lane_scaler import LaneScaler
from wide_compiler.training.moment import Moment
from wide_compiler.training.progress_line import ProgressLine

LINEAR = torch.optim.lr_scheduler.LinearLR
STEP = torch.optim.lr_scheduler.StepLR
WAYS = {
    "adam": (adam, {}),
    "sgd": (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), {}),
    "clip": (lambda p: torch.optim.SGD(p, 0.1), {"clip": 0.3}),
    "accumulate": (adam, {"accumulate": 3}),
    "schedule": (adam, {"scheduler": lambda o: LINEAR(o, 1.0, 0.1, 12)}),
    "schedule by epoch": (adam, {"scheduler": lambda o: STEP(o, 1, 0.5), "schedule": "epoch"}),
    "all of it": (adam, {"scheduler": lambda o: LINEAR(o, 1.0, 0.1, 12), "clip": 0.3, "accumulate": 2}),
}


def fit_and_loop(make, options, data, batches, epochs=3):
    """`batches(lane, epoch)` is what one lane sees alone."""
    models = make_models()
    wide = make_wide(models)
    optimizer = make(wide.parameters())
    both = {k: v for k, v in options.items() if k != "scheduler"}
    scheduled = options.get("scheduler", lambda o: None)
    history = fit(wide, optimizer, lane_loss, data, epochs=epochs, scheduler=scheduled(optimizer), **both)
    alone = []
    for lane, model in enumerate(models):
        own = make(model.parameters())
        alone.append(
            train_alone(
                model, own, lambda e, lane=lane: batches(lane, e), epochs, scheduler=scheduled(own), **both
            )
        )
    torch.testing.assert_close(history.losses, torch.stack(alone, 1), rtol=1e-9, atol=1e-9)
    check_lanes(wide, models)
    assert wide.explain(measure=False).coverage == 1.0
    return history


@pytest.mark.parametrize("way", WAYS)
def test_fit_is_every_model_trained_alone(way):
    make, options = WAYS[way]
    reading = loader()
    epochs = [list(reading) for _ in range(3)]
    history = fit_and_loop(make, options, loader(), lambda lane, e: epochs[e])
    assert history.epochs == 3 and history.ended == "all 3 epochs are done"
    assert not history.stopped and not history.nan_lanes


def test_own_batches_for_each_lane():
    lists = [list(loader(seed=lane)) for lane in range(N)]
    fit_and_loop(adam, {}, PerLane(lists), lambda lane, e: lists[lane])


def test_batches_that_are_stacked_already():
    lists = [list(loader(seed=lane)) for lane in range(N)]
    stacked = [wide_compiler.stack(batch) for batch in zip(*lists, strict=True)]
    fit_and_loop(adam, {}, Stacked(stacked), lambda lane, e: lists[lane])


def test_own_folds_for_each_lane():
    train, _ = fold_batches(make_set(22), N, batch_size=6, shuffle=False)
    batches = list(train)
    fit_and_loop(adam, {}, train, lambda lane, e: [(x[lane], y[lane]) for x, y in batches])


def test_steps_end_in_the_middle_of_an_epoch():
    wide = make_wide(make_models())
    history = fit(wide, adam(wide.parameters()), lane_loss, loader(), steps=6)
    assert history.steps == 6 and history.epochs == 1 and "6 steps" in history.ended


def test_a_dict_is_the_members_keywords():
    wide = make_wide(make_models())
    data = [{"x": x} for x, _ in loader()]
    fit(wide, adam(wide.parameters()), lambda y, batch: y.square().mean((1, 2)), data, epochs=1)
    split = lambda batch: (batch["input"], (batch["output"],))  # noqa: E731
    data = [{"input": x, "output": y} for x, y in loader()]
    history = fit(wide, adam(wide.parameters()), lane_loss, data, epochs=1, split=split)
    assert history.losses.shape == (4, N)


# Seeds.


def dropout_run(**options):
    wide = make_wide(make_models(dropout=0.5))
    optimizer = adam(wide.parameters())
    data = DataLoader(make_set(), 6, shuffle=True)  # in an order that the global generator decides
    return everything(wide, optimizer, fit(wide, optimizer, lane_loss, data, epochs=2, **options))


def test_a_seed_decides_data_order_and_dropout():
    torch.manual_seed(5)
    first = dropout_run(seed=7)
    torch.manual_seed(6)
    before = torch.get_rng_state()
    wide = make_wide(make_models(dropout=0.5))
    torch.set_rng_state(before)
    history = fit(
        wide, adam(wide.parameters()), lane_loss, DataLoader(make_set(), 6, shuffle=True), epochs=2, seed=7
    )
    assert history.losses.equal(first["losses"])
    assert torch.get_rng_state().equal(before), "the caller's generator has moved"
    assert not dropout_run(seed=8)["losses"].equal(first["losses"])


def test_validation_leaves_random_numbers_and_flags_alone():
    plain = dropout_run(seed=7)
    watched = dropout_run(seed=7, validation=DataLoader(make_set(9), 4, shuffle=True))
    assert plain["losses"].equal(watched["losses"])
    wide = make_wide(make_models())
    wide.get_submodule("norm").eval()
    before = wide.get_submodule("norm").running_mean.clone()
    fit(wide, adam(wide.parameters()), lane_loss, loader(), epochs=1, validation=loader())
    assert not wide.get_submodule("norm").training and wide.get_submodule("up").training
    assert wide.get_submodule("norm").running_mean.equal(before)


# Validation, early stop, nan.


def test_validation_is_the_mean_over_all_samples():
    models = make_models()
    wide = make_wide(models)
    data = make_set(11, seed=4)
    got = evaluate(wide, lane_loss, DataLoader(data, 4))
    for model, value in zip(models, got, strict=True):
        x, y = data.tensors
        torch.testing.assert_close((model.eval()(x) - y).square().mean(), value)
    held_out = evaluate(wide, lane_loss, fold_batches(data, N, batch_size=2)[1])
    assert held_out.shape == (N,)


def test_a_metric_of_its_own():
    wide = make_wide(make_models())
    worst = lambda y, target: (y - target).abs().amax((1, 2))  # noqa: E731
    history = fit(
        wide,
        adam(wide.parameters()),
        lane_loss,
        loader(),
        epochs=2,
        validation=[make_set(5).tensors],
        metric=worst,
    )
    torch.testing.assert_close(history.validation[-1], evaluate(wide, worst, [make_set(5).tensors]))
    assert history.validated_at == [4, 8] and history.best.equal(history.validation.amin(0))


def scripted(values):
    """A metric that gives the next row of `values`, whatever the model."""
    rows = iter(values)
    return lambda y, target: torch.tensor(next(rows), dtype=torch.float64)


MAKE = {
    "stock": adam,
    "rates by lane": lambda p: wide_compiler.training.Adam(p, [1e-2, 2e-2, 3e-2, 4e-2]),
    "one rate": lambda p: wide_compiler.training.Adam(p, 1e-2),
    "momentum": lambda p: wide_compiler.training.SGD(p, 1e-2, momentum=0.9),
    "lion": lambda p: wide_compiler.training.Lion(p, 1e-3),
}


def test_a_schedule_that_follows_each_lanes_validation():
    wide = make_wide(make_models())
    optimizer = wide_compiler.training.Adam(wide.parameters(), 0.1)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
    fit(
        wide,
        optimizer,
        lane_loss,
        loader(),
        epochs=3,
        validation=[make_set(3).tensors],
        metric=scripted([[9.0] * N, [8.0, 9.5, 8.0, 9.5], [7.0, 9.5, 9.0, 8.0]]),
        scheduler=LaneSchedulers(optimizer, lambda own, lane: plateau(own, factor=0.5, patience=0)),
        schedule="validation",
    )
    torch.testing.assert_close(optimizer.lane_values("lr"), torch.tensor([0.1, 0.025, 0.05, 0.05]).double())


@pytest.mark.parametrize("make", MAKE)
def test_a_stopped_lane_stands_still_and_the_others_do_not_notice(make):
    scores = [[9.0] * N, [8.0, 9.5, 8.0, 8.0], [7.0, 9.5, 7.0, 7.0], [6.0] * N, [5.0] * N]
    runs = {}
    for stop in (None, EarlyStop(patience=2, restore=False)):
        wide = make_wide(make_models())
        snapshots = []
        history = fit(
            wide,
            MAKE[make](wide.parameters()),
            lane_loss,
            loader(),
            epochs=5,
            validation=[make_set(3).tensors],
            metric=scripted(scores),
            early_stop=stop,
            callbacks=[
                lambda m, w=wide, s=snapshots: (
                    s.append(w.lane(1).state_dict()) if m.event == "epoch" else None
                )
            ],
        )
        runs[stop is None] = wide, history, snapshots
    wide, history, snapshots = runs[False]
    free, free_history, _ = runs[True]
    assert list(history.stopped) == [1] and history.stopped[1].step == 12
    assert "no better than 9 of step 4, 2 times" in history.stopped[1].reason
    for name, value in snapshots[2].items():  # as it was when it stopped
        assert value.equal(wide.lane(1).state_dict()[name]), name
    others = [0, 2, 3]
    assert history.losses[:, others].equal(free_history.losses[:, others])
    for name, value in free.state_dict().items():
        assert value[others].equal(wide.state_dict()[name][others]), name
    assert not free.lane(1).up.weight.equal(wide.lane(1).up.weight)


def test_best_weights_come_back():
    scores = [[3.0, 1.0, 5.0, math.nan], [2.0, 1.5, 4.0, math.nan], [2.5, 1.4, 3.0, math.nan]]
    wide = make_wide(make_models())
    seen = []
    history = fit(
        wide,
        adam(wide.parameters()),
        lane_loss,
        loader(),
        epochs=3,
        validation=[make_set(3).tensors],
        metric=scripted(scores),
        early_stop=EarlyStop(patience=9),
        callbacks=[lambda m: seen.append(copy.deepcopy(wide.state_dict())) if m.event == "epoch" else None],
    )
    assert history.best_step.tolist() == [8, 4, 12, -1] and history.best_lane == 1
    for lane, epoch in enumerate([1, 0, 2, 2]):  # a lane that never had a best value stays as it is
        for name, value in wide.state_dict().items():
            assert value[lane].equal(seen[epoch][name][lane]), (lane, name)


def test_the_last_validation_counts_when_steps_end_between_two():
    wide = make_wide(make_models())
    history = fit(
        wide,
        adam(wide.parameters()),
        lane_loss,
        loader(),
        steps=6,
        validation=[make_set(3).tensors],
        metric=scripted([[5.0] * N, [4.0, 6.0, 4.0, 6.0]]),
        early_stop=9,
    )
    assert history.validated_at == [4, 6] and history.best_step.tolist() == [6, 4, 6, 4]
    assert history.best.tolist() == [4.0, 5.0, 4.0, 5.0]


def test_early_stop_by_the_training_loss_ends_when_no_lane_is_left():
    wide = make_wide(make_models())
    history = fit(wide, torch.optim.SGD(wide.parameters(), 0.0), lane_loss, loader(), epochs=50, early_stop=2)
    assert history.ended == "no lane is left" and sorted(history.stopped) == list(range(N))
    assert history.epochs < 10


@pytest.mark.parametrize("make", MAKE)
def test_a_lane_that_is_nan_is_named_and_touches_nobody(make):
    runs = []
    for poisoned in (False, True):
        models = make_models()
        if poisoned:
            models[2].down.weight.data.fill_(1e200)
        wide = make_wide(models)
        optimizer = MAKE[make](wide.parameters())
        runs.append((wide, fit(wide, optimizer, lane_loss, loader(), epochs=2, clip=1.0)))
    (free, free_history), (wide, history) = runs
    assert history.nan_lanes == [2] and list(history.stopped) == [2]
    assert "its loss is" in history.stopped[2].reason and history.stopped[2].step == 1
    others = [0, 1, 3]
    assert history.losses[:, others].equal(free_history.losses[:, others])
    for name, value in free.state_dict().items():
        assert value[others].equal(wide.state_dict()[name][others]), name


def test_lanes_masked_before_stay_masked():
    wide = make_wide(make_models())
    population = Population(wide, wide_compiler.training.Adam(wide.parameters(), 1e-2))
    population.mask([3])
    before = wide.lane(3).state_dict()
    history = fit(wide, population, lane_loss, loader(), epochs=1)
    assert "masked" in history.stopped[3].reason
    for name, value in before.items():
        assert value.equal(wide.lane(3).state_dict()[name]), name


def test_no_lane_can_stop_where_all_train_one_parameter():
    trunk = nn.Linear(6, 6).double()
    models = [nn.Sequential(trunk, nn.Linear(6, 3).double()) for _ in range(3)]
    wide = wide_compiler.compile(models, torch.randn(2, 6).double(), config=PLAIN)
    with pytest.raises(ValueError, match=r"0\.weight is one parameter for all lanes") as caught:
        fit(wide, torch.optim.SGD(wide.parameters(), 0.0), lane_loss, loader(), epochs=9, early_stop=1)
    assert "were to stop: its validation was no better" in caught.value.__notes__[0]


# Callbacks, progress, precision.


def test_callbacks_see_every_moment_and_may_stop_lanes():
    events = []

    def watch(moment):
        events.append(moment.event)
        if moment.step == 2 and moment.event == "step":
            moment.stop([0, 1], "by hand")

    wide = make_wide(make_models())
    history = fit(
        wide,
        adam(wide.parameters()),
        lane_loss,
        loader(),
        epochs=1,
        validation=loader(),
        validate_every=2,
        callbacks=[watch],
    )
    assert events == ["step", "step", "validation", "step", "step", "validation", "epoch", "end"]
    assert str(history.stopped[1]) == "step 2: by hand" and sorted(history.stopped) == [0, 1]


def test_progress_shows_best_median_worst_on_a_terminal_only():
    active = torch.tensor([True, True, True, False])
    checked = torch.tensor([4.0, 5.0, 7.0, 1.0])
    losses = torch.tensor([1.0, 2.0, 3.0, 9.0])
    history = History(4)
    for terminal in (True, False):
        out = io.StringIO()
        line = ProgressLine(None, Console(file=out, force_terminal=terminal, width=120))
        for event in ("validation", "step"):
            line(Moment(event, 3, 0, losses, {"v": checked}, checked, active, 10, None, history, None))
        line.close()
        if not terminal:
            assert out.getvalue() == ""
            continue
        assert "3 of 4 lanes" in out.getvalue() and "1 / 2 / 3" in out.getvalue()
        assert "4 / 5 / 7" in out.getvalue() and "3/10" in out.getvalue()


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_reduced_precision_learns_what_full_precision_learns(precision):
    ends = {}
    for name in (None, precision):
        torch.manual_seed(3)
        models = [nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)) for _ in range(N)]
        wide = wide_compiler.compile(
            models, torch.randn(2, 6), config=wide_compiler.WideConfig(tune_seconds=0)
        )
        data = [(x.float(), y.float()) for x, y in loader(shuffle=False)]
        history = fit(wide, adam(wide.parameters()), lane_loss, data, epochs=10, precision=name)
        assert not history.nan_lanes
        ends[name] = history.losses
    assert ends[precision].dtype == torch.float32
    assert not ends[precision].equal(ends[None])
    torch.testing.assert_close(ends[precision], ends[None], rtol=0.1, atol=0.02)


def test_an_overflow_costs_the_other_lanes_no_step():
    torch.manual_seed(3)
    models = [nn.Linear(6, 3) for _ in range(3)]
    wide = wide_compiler.compile(models, torch.randn(2, 6), config=wide_compiler.WideConfig(tune_seconds=0))
    weights = torch.tensor([1.0, 1.0, 3e4])  # gradients of lane 2 overflow float16 at the initial scale
    loss = lambda y, t: (y - t).square().mean((1, 2)) * weights  # noqa: E731
    before = [m.weight.detach().clone() for m in wide.lanes()]
    data = [(x.float(), y.float()) for x, y in loader()]
    fit(wide, torch.optim.SGD(wide.parameters(), 1e-6), loss, data, steps=1, precision="fp16")
    moved = [not w.equal(wide.lane(i).weight) for i, w in enumerate(before)]
    assert moved == [True, True, False]


def test_loss_scales_grow_and_fall_by_lane():
    wide = make_wide(make_models())
    scaler = LaneScaler(N, wide.parameters(), interval=2)
    first = scaler.scale.clone()
    for p in wide.parameters():
        p.grad = torch.ones_like(p) * first[0]
    wide.get_parameter("down.bias").grad[1, 0] = float("inf")
    overflowed = scaler.unscale_()
    assert overflowed.tolist() == [False, True, False, False]
    assert wide.get_parameter("up.weight").grad.eq(1).all()
    scaler.update(overflowed)
    assert scaler.scale.tolist() == [first[0], first[0] / 2, first[0], first[0]]
    scaler.update(torch.zeros(N, dtype=torch.bool))
    assert scaler.scale.tolist() == [first[0] * 2, first[0] / 2, first[0] * 2, first[0] * 2]


def test_one_loss_scale_where_all_lanes_train_one_parameter():
    trunk = nn.Linear(6, 6)
    models = [nn.Sequential(trunk, nn.Linear(6, 3)) for _ in range(3)]
    wide = wide_compiler.compile(models, torch.randn(2, 6), config=PLAIN)
    scaler = LaneScaler(3, wide.parameters())
    for p in wide.parameters():
        p.grad = torch.ones_like(p)
    wide.get_parameter("1.bias").grad[2, 0] = float("nan")
    assert scaler.unscale_().tolist() == [True] * 3


# Bad input.


def test_bad_input():
    wide = make_wide(make_models())
    optimizer = adam(wide.parameters())
    data = list(loader())

    def wrong(error, *says, loss=lane_loss, data=data, **options):
        with refused(error, *says, of=wide):
            fit(wide, optimizer, loss, data, **{"epochs": 1, **options})

    wrong(ValueError, "one loss per lane [4]", "got a tensor ()", loss=lambda y, t: (y - t).square().mean())
    wrong(ValueError, "one loss per lane", "(4, 6)", loss=lambda y, t: (y - t).square().mean(2))
    wrong(ValueError, "got float", loss=lambda y, t: 1.0)
    four = [(x[:4], y[:4]) for x, y in data[:3]]
    wrong(
        InputError,
        "depends on the outputs of other lanes",
        data=four,
        loss=lambda y, t: (y - t).square().mean((0, 2)),
    )
    wrong(InputError, "data for 3 lanes", "has 4", data=PerLane([data] * 3))
    wrong(InputError, "(3, 6, 6)", "expected 4", data=Stacked([wide_compiler.stack([data[0]] * 3)]))
    wrong(InputError, "[1]", "(2, 3)", data=Stacked([(torch.zeros(4, 2, 6), torch.zeros(2, 3))]))
    wrong(InputError, "folds for 5 lanes", data=fold_batches(make_set(), 5, 4)[0])
    wrong(InputError, "no batches in epoch 1", data=[])
    wrong(InputError, "iterable", data=5)
    wrong(ValueError, "needs an end", epochs=None)
    wrong(ValueError, "epochs", "positive", epochs=0)
    wrong(ValueError, "precision", "bf16", precision="int8")
    wrong(ValueError, "clip", clip=-1.0)
    wrong(ValueError, "schedule", schedule="batch")
    wrong(ValueError, "patience", early_stop=0)
    wrong(ValueError, "folder of the checkpoints", resume=True)
    wrong(ValueError, "validation=", validate_every=2)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    wrong(ValueError, "ReduceLROnPlateau", "LaneSchedulers", scheduler=plateau)
    other = make_wide(make_models())
    with refused(ValueError, "another wide model"):
        fit(wide, Population(other), lane_loss, data, epochs=1)
    with refused(ValueError, "none of this model's parameters"):
        fit(wide, adam(other.parameters()), lane_loss, data, epochs=1)
    with refused(ValueError, "expected an optimiser"):
        fit(wide, other, lane_loss, data, epochs=1)


def test_lanes_must_have_equally_many_batches():
    wide = make_wide(make_models())
    data = list(loader())
    with pytest.raises(InputError, match="lane 3 ended after 2 batches, lane 0 goes on"):
        fit(wide, adam(wide.parameters()), lane_loss, PerLane([data[:3]] * 3 + [data[:2]]), epochs=1)


def test_a_generator_can_be_read_once():
    wide = make_wide(make_models())
    with pytest.raises(InputError, match="no batches in epoch 2; a generator"):
        fit(wide, adam(wide.parameters()), lane_loss, (b for b in loader()), epochs=2)
    with pytest.raises(InputError, match="validation data gave no batches"):
        fit(wide, adam(wide.parameters()), lane_loss, loader(), epochs=1, validation=[])
