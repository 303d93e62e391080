"""A study in lanes is the study trial by trial."""

import copy
import sys

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import wide_compiler
from wide_compiler import AlignmentError, InputError
from wide_compiler.training import SGD, AdamW, PerLane, lane_losses

optuna = pytest.importorskip("optuna")
from wide_compiler.initialize import reinitialize  # noqa: E402
from wide_compiler.integrations.optuna import optimize  # noqa: E402

optuna.logging.set_verbosity(optuna.logging.WARNING)
EPOCHS = 3
CONFIG = wide_compiler.WideConfig(tune_seconds=0)


def network():
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1)).double()


def suggest(trial):
    return {
        "lr": trial.suggest_float("lr", 1e-4, 1e-1, log=True),
        "weight_decay": trial.suggest_float("weight_decay", 0.0, 0.1),
        "beta1": trial.suggest_float("beta1", 0.5, 0.95),
    }


def data(size=30, seed=0):
    x = torch.randn(size, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return TensorDataset(x, x.prod(1, keepdim=True).sin())


def loader():
    return DataLoader(data(), 8, shuffle=True)


MODEL = network()
VALIDATION = [data(12, seed=1).tensors]


def adamw(parameters):
    return AdamW(parameters)


def in_lanes(study, n_trials=10, lanes=4, **options):
    arguments = {
        "model": MODEL,
        "sample": VALIDATION[0][0][:2],
        "optimizer": adamw,
        "loss": lane_losses.mse,
        "data": loader(),
        "validation": VALIDATION,
        "epochs": EPOCHS,
        "config": CONFIG,
        **options,
    }
    return optimize(study, arguments.pop("suggest", suggest), n_trials=n_trials, lanes=lanes, **arguments)


def objective(trial):
    """One trial in plain PyTorch."""
    hyper = suggest(trial)
    with torch.random.fork_rng():
        torch.manual_seed(trial.number)
        model = network()
        torch.manual_seed(trial.number)
        reinitialize(model)
    optimizer = torch.optim.AdamW(
        model.parameters(), hyper["lr"], betas=(hyper["beta1"], 0.999), weight_decay=hyper["weight_decay"]
    )
    for epoch in range(EPOCHS):
        with torch.random.fork_rng():
            torch.manual_seed(epoch)
            batches = list(loader())
        for x, y in batches:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
        with torch.no_grad():
            x, y = VALIDATION[0]
            value = nn.functional.mse_loss(model(x), y).item()
        trial.report(value, epoch + 1)
        if trial.should_prune():
            raise optuna.TrialPruned
    return value


def study(pruner=None, seed=7, **options):
    sampler = optuna.samplers.RandomSampler(seed=seed)
    return optuna.create_study(sampler=sampler, pruner=pruner or optuna.pruners.NopPruner(), **options)


@pytest.mark.parametrize("lanes", [1, 4, 10])
def test_same_values_for_the_same_suggestions(lanes):
    alone, wide = study(), study()
    alone.optimize(objective, n_trials=10)
    search = in_lanes(wide, lanes=lanes)
    assert [t.params for t in wide.trials] == [t.params for t in alone.trials]
    for mine, theirs in zip(wide.trials, alone.trials, strict=True):
        assert mine.state == theirs.state == optuna.trial.TrialState.COMPLETE
        for step, value in theirs.intermediate_values.items():
            assert mine.intermediate_values[step] == pytest.approx(value, rel=1e-9)
        assert mine.value == pytest.approx(theirs.value, rel=1e-9)
    assert wide.best_trial.number == alone.best_trial.number
    assert wide.best_value == pytest.approx(alone.best_value, rel=1e-9)
    assert search.refilled == 10 - lanes and search.epochs == -(-10 // lanes) * EPOCHS
    x, y = VALIDATION[0]
    got = nn.functional.mse_loss(search.best_model(x), y).item()
    assert got == pytest.approx(wide.best_value, rel=1e-9)


def test_a_pruned_trial_makes_room_for_the_next():
    """Every lane is in the epoch of its own trial, and each trial is what it is alone."""
    threshold = optuna.pruners.ThresholdPruner(upper=0.2)
    alone, wide = study(threshold), study(threshold)
    alone.optimize(objective, n_trials=12)
    search = in_lanes(wide, n_trials=12, lanes=3)
    states = [t.state for t in alone.trials]
    assert [t.state for t in wide.trials] == states
    assert states.count(optuna.trial.TrialState.PRUNED) >= 2 <= states.count(optuna.trial.TrialState.COMPLETE)
    for mine, theirs in zip(wide.trials, alone.trials, strict=True):
        assert mine.params == theirs.params
        assert list(mine.intermediate_values) == list(theirs.intermediate_values)
        assert mine.value == pytest.approx(theirs.value, rel=1e-9)
    used = sum(len(t.intermediate_values) for t in alone.trials)
    assert search.refilled == 9 and search.epochs < 12 // 3 * EPOCHS and search.epochs >= used / 3
    assert {t.user_attrs["lane"] for t in wide.trials} == {0, 1, 2}


def test_maximise_and_callbacks():
    seen = []
    wide = study(direction="maximize")
    in_lanes(
        wide,
        n_trials=5,
        lanes=2,
        metric=lambda y, t: -lane_losses.mse(y, t),
        callbacks=[lambda s, trial: seen.append(trial.number)],
    )
    assert sorted(seen) == list(range(5)) and wide.best_value == max(t.value for t in wide.trials)


def test_a_trial_that_is_nan_fails_and_is_replaced():
    wide = study()
    rates = iter([1e-2, 1e200, 1e-2, 1e-2])
    in_lanes(
        wide,
        n_trials=4,
        lanes=2,
        suggest=lambda trial: {"lr": next(rates)},
        optimizer=lambda p: SGD(p, 1.0),
    )
    states = [t.state.name for t in wide.trials]
    assert states == ["COMPLETE", "FAIL", "COMPLETE", "COMPLETE"]
    assert wide.trials[2].value == wide.trials[2].value < float("inf")


def test_one_model_for_each_trial():
    def model(trial):
        made = network()
        with torch.no_grad():
            made[0].weight.mul_(trial.number + 1)
        return made

    wide = study()
    in_lanes(wide, n_trials=4, lanes=2, model=model)
    assert len({t.value for t in wide.trials}) == 4


def test_bad_input():
    two = optuna.create_study(directions=["minimize", "maximize"])
    with pytest.raises(ValueError, match="one objective, this one has 2"):
        in_lanes(two)
    with pytest.raises(ValueError, match="n_trials must be a positive"):
        in_lanes(study(), n_trials=0)
    with pytest.raises(InputError, match="PerLane gives each lane its own"):
        in_lanes(study(), data=PerLane([loader()] * 4))
    with pytest.raises(ValueError, match="unknown precision 'fp8'"):
        in_lanes(study(), precision="fp8")
    with pytest.raises(ValueError, match="'warmth'"):
        in_lanes(study(), suggest=lambda trial: {"warmth": 1.0})

    def growing(trial):
        return nn.Sequential(nn.Linear(3, 6), nn.Dropout(0.1 * trial.number), nn.Linear(6, 1)).double()

    with pytest.raises(AlignmentError, match="trial 2 differs from that of trial 0"):
        in_lanes(study(), n_trials=3, lanes=2, model=growing)


def test_without_optuna_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)  # as Python notes a module that is not to be found
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'wide_compiler\[optuna\]'"):
        in_lanes(study=None)


def test_nothing_given_is_changed():
    before = copy.deepcopy(MODEL.state_dict())
    state = torch.get_rng_state()
    in_lanes(study(), n_trials=3, lanes=2)
    assert all(v.equal(before[k]) for k, v in MODEL.state_dict().items())
    assert torch.get_rng_state().equal(state)
