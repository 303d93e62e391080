"""Lanes that stop leave the computation; what is left, and what comes back, is what it would have been."""

import copy

import pytest
import torch
from torch.optim.lr_scheduler import StepLR

from training.fits import adam, lane_loss, loader, make_models, make_set, make_wide
from wide_compiler import ArgumentError
from wide_compiler.training import AdamW, EarlyStop, LaneSchedulers, Population, fit, fold_batches

N = 8
RATES = [1e-2 * 10 ** (-lane / 2) for lane in range(N)]
MAKE = {
    "lane optimiser": lambda p: AdamW(p, lr=RATES),
    "torch's": adam,
}


def run(make, leave, stop_at=None, data=None, **options):
    """The wide model, its optimiser, the history, and how many lanes took part in each step."""
    wide = make_wide(make_models(N))
    optimizer = MAKE[make](wide.parameters())
    counted = []

    def loss(y, target):
        if y.requires_grad:
            counted.append(len(y))
        return lane_loss(y, target)

    def stop(moment):
        for lane in (stop_at or {}).get((moment.event, moment.step), ()):
            moment.stop([lane], "by hand")

    stop.by_number = False
    history = fit(wide, optimizer, loss, data or loader(), epochs=6, leave=leave, callbacks=[stop], **options)
    return wide, optimizer, history, counted


@pytest.mark.parametrize("make", MAKE)
def test_lanes_that_left_are_back_and_the_others_are_what_they_would_be(make):
    stops = {("step", 5): [0, 3, 5, 6], ("step", 11): [1, 7]}
    plain, old, expected, all_lanes = run(make, False, stops)
    wide, optimizer, history, counted = run(make, True, stops)
    assert set(all_lanes) == {8} and sorted(set(counted)) == [2, 4, 8]
    assert counted == [8] * 5 + [4] * 6 + [2] * (len(counted) - 11)
    assert wide.n == N and history.stopped == expected.stopped
    for path, tensor in plain.state_dict().items():
        torch.testing.assert_close(wide.state_dict()[path], tensor, rtol=1e-9, atol=1e-12)
    present = ~history.losses.isnan()
    torch.testing.assert_close(history.losses[present], expected.losses[present], rtol=1e-9, atol=1e-12)
    assert present[:5].all() and present[-1].tolist() == [lane in (2, 4) for lane in range(N)]
    assert [p.shape[0] for p in wide.stacked_parameters()] == [N] * len(wide.stacked_parameters())
    for mine, other in zip(wide.parameters(), plain.parameters(), strict=True):
        for name, value in old.state[other].items():
            if value.dim():
                torch.testing.assert_close(optimizer.state[mine][name], value, rtol=1e-9, atol=1e-12)


def test_early_stop_folds_and_best_weights_are_the_same():
    found = []
    for leave in (False, True):
        torch.manual_seed(4)
        train, validation = fold_batches(make_set(40), 4, 5, n=N)
        stop = EarlyStop(patience=1, min_delta=5e-3)
        found.append(run("lane optimiser", leave, None, train, validation=validation, early_stop=stop))
    (plain, _, expected, all_lanes), (wide, _, history, counted) = found
    assert min(counted) < N == min(all_lanes)
    assert history.stopped == expected.stopped and len(history.stopped) >= N / 2
    torch.testing.assert_close(history.best, expected.best, rtol=1e-9, atol=1e-12)
    assert history.best_step.equal(expected.best_step) and history.best_lane == expected.best_lane
    for path, tensor in plain.state_dict().items():
        torch.testing.assert_close(wide.state_dict()[path], tensor, rtol=1e-9, atol=1e-12)


def test_a_checkpoint_has_all_lanes(tmp_path):
    stops = {("step", 5): [0, 3, 5, 6]}
    wide, *_ = run("lane optimiser", True, stops)
    saved, *_, counted = run("lane optimiser", True, stops, checkpoint=tmp_path)
    assert 4 in counted
    for path, tensor in wide.state_dict().items():
        torch.testing.assert_close(saved.state_dict()[path], tensor, rtol=1e-9, atol=1e-12)
    again = make_wide(make_models(N))
    options = {"epochs": 6, "checkpoint": tmp_path, "resume": True}
    history = fit(again, MAKE["lane optimiser"](again.parameters()), lane_loss, loader(), **options)
    assert sorted(history.stopped) == [0, 3, 5, 6] and again.n == N
    for path, tensor in wide.state_dict().items():
        torch.testing.assert_close(again.state_dict()[path], tensor, rtol=1e-9, atol=1e-12)


def test_lanes_stay_where_somebody_may_look_for_them():
    def counted(optimizer=adam, population=False, scheduler=None, callback=None, weights=None):
        wide, seen = make_wide(make_models(N)), []
        given = optimizer(wide.parameters())

        def loss(y, target):
            seen.append(len(y))
            losses = lane_loss(y, target)
            return losses if weights is None else losses * weights

        def stop(moment):
            if (moment.event, moment.step) == ("step", 3):
                moment.stop([0, 1, 2, 3, 4], "by hand")

        stop.by_number = False
        options = {"callbacks": [c for c in (stop, callback) if c], "epochs": 3}
        if scheduler:
            options["scheduler"] = scheduler(given)
        fit(wide, Population(wide, given) if population else given, loss, loader(), **options)
        assert wide.n == N
        return set(seen)

    lane = MAKE["lane optimiser"]
    assert counted() == counted(lane) == counted(adam, scheduler=lambda o: StepLR(o, 5)) == {8, 3}
    assert counted(lane, population=True) == {8}
    assert counted(lane, scheduler=lambda o: LaneSchedulers(o, lambda own, _: StepLR(own, 5))) == {8}
    assert counted(callback=lambda moment: None) == {8}
    # A loss with something for each of the N lanes: tried with fewer, refused, and all stay.
    assert counted(weights=torch.linspace(0.5, 1, N, dtype=torch.float64)) == {8, 3}


def test_an_error_brings_all_lanes_back():
    wide = make_wide(make_models(N))
    before = copy.deepcopy(wide.state_dict())

    def stop(moment):
        if moment.step == 2:
            moment.stop([0, 1, 2, 3], "by hand")
        if moment.step == 4:
            raise KeyboardInterrupt

    stop.by_number = False
    with pytest.raises(KeyboardInterrupt):
        fit(wide, adam(wide.parameters()), lane_loss, loader(), epochs=3, callbacks=[stop])
    assert wide.n == N and {k: v.shape for k, v in wide.state_dict().items()} == {
        k: v.shape for k, v in before.items()
    }


@pytest.mark.parametrize(
    "loss", [torch.nn.CrossEntropyLoss(), torch.nn.functional.mse_loss, torch.nn.MSELoss()]
)
def test_a_mean_over_all_lanes_is_refused_with_the_remedy(loss):
    wide = make_wide(make_models(N))
    with pytest.raises(
        ArgumentError, match=r"one number for all lanes.*use lane_losses\.(cross_entropy|mse)"
    ):
        fit(wide, adam(wide.parameters()), loss, loader(), epochs=1)
