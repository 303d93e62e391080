"""Metrics by name, torchmetrics objects among them, higher ones too; TensorBoard's curves."""

import pytest
import torch
import torchmetrics
from torch import nn

import wide_compiler
from wide_compiler import ArgumentError, WideConfig
from wide_compiler.training import AdamW, EarlyStop, TensorBoard, evaluate, fit, lane_losses

N = 4


def make():
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)) for _ in range(N)]
    wide = wide_compiler.compile(models, torch.randn(2, 4), config=WideConfig(tune_seconds=0))
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(1))
    y = (x[:, :3] + 0.5 * x[:, 1:]).argmax(1)
    return (
        wide,
        list(zip(x[:40].split(10), y[:40].split(10), strict=True)),
        [(x[40:53], y[40:53]), (x[53:], y[53:])],
    )


def accuracy(out, target):
    return (out.argmax(-1) == target).float().mean(-1)


def test_objects_of_torchmetrics_see_each_lane_alone():
    wide, _, held_out = make()
    f1 = torchmetrics.classification.MulticlassF1Score(3)
    got = evaluate(wide, {"f1": f1, "accuracy": accuracy}, held_out)
    assert list(got) == ["f1", "accuracy"]
    for lane, model in enumerate(wide.lanes()):
        own = f1.clone()
        for x, y in held_out:
            own.update(model(x), y)
        torch.testing.assert_close(got["f1"][lane], own.compute().double())
    torch.testing.assert_close(evaluate(wide, accuracy, held_out), got["accuracy"])


def test_the_highest_of_a_named_metric_is_kept(tmp_path):
    wide, train, held_out = make()
    metrics = {
        "loss": lane_losses.cross_entropy,
        "accuracy": torchmetrics.classification.MulticlassAccuracy(3, average="micro"),
    }
    board = TensorBoard(tmp_path, every=2)
    history = fit(
        wide,
        AdamW(wide.parameters(), lr=[0.3, 0.1, 0.03, 0.01]),
        lane_losses.cross_entropy,
        train,
        epochs=12,
        validation=held_out,
        validate_every=3,
        metric=metrics,
        monitor="accuracy",
        mode="max",
        early_stop=EarlyStop(patience=4),
        callbacks=[board],
    )
    table = history.metrics["accuracy"]
    assert table is history.validation and table.shape == history.metrics["loss"].shape
    assert history.validated_at[0] == 3 and len(table) == len(history.validated_at)
    seen = table.nan_to_num(-1.0)
    torch.testing.assert_close(history.best, seen.max(0).values)
    assert history.best_step.tolist() == [history.validated_at[i] for i in seen.argmax(0).tolist()]
    assert history.best_lane == int(history.best.argmax())
    torch.testing.assert_close(evaluate(wide, metrics["accuracy"], held_out), history.best)

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for lane in range(N):
        events = EventAccumulator(str(tmp_path / f"lane{lane}"))
        events.Reload()
        assert set(events.Tags()["scalars"]) == {"loss", "accuracy"}
        curve = events.Scalars("accuracy")
        torch.testing.assert_close(torch.tensor([e.value for e in curve]), table[: len(curve), lane].float())


def test_unknown_names_and_modes_are_refused():
    wide, train, held_out = make()
    optimizer = AdamW(wide.parameters())
    options = {"epochs": 1, "validation": held_out}
    with pytest.raises(ArgumentError, match="monitor='f1' is none of the metrics a, b"):
        fit(wide, optimizer, accuracy, train, metric={"a": accuracy, "b": accuracy}, monitor="f1", **options)
    with pytest.raises(ArgumentError, match="mode must be 'min' or 'max'"):
        fit(wide, optimizer, accuracy, train, mode="best", **options)
    with pytest.raises(ArgumentError, match="must be a function or a torchmetrics object"):
        fit(wide, optimizer, accuracy, train, metric={"a": 3}, **options)


def test_forty_lanes_of_cross_validation_are_forty_trainings():
    """5 folds x 8 learning rates on scikit-learn's iris: losses, best epochs and best weights."""
    from sklearn.datasets import load_iris
    from torch.utils.data import TensorDataset

    from wide_compiler.training import fold_batches, folds

    x, y = load_iris(return_X_y=True)
    x, y = torch.tensor((x - x.mean(0)) / x.std(0)), torch.tensor(y)
    rates = [10 ** (-3 + 0.35 * i) for i in range(8)]
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    wide = wide_compiler.compile(net, x[:2], n=40, init="copy", config=WideConfig(tune_seconds=0))
    train, validation = fold_batches(TensorDataset(x, y), 5, 40, n=40, shuffle=False)
    lane_rates = [rate for rate in rates for _ in range(5)]
    history = fit(
        wide,
        AdamW(wide.parameters(), lr=lane_rates),
        lane_losses.cross_entropy,
        train,
        epochs=25,
        validation=validation,
        early_stop=EarlyStop(patience=2),
    )
    inside, outside = folds(len(x), 5, 0)
    assert len(history.stopped) > 3
    for lane, rate in enumerate(lane_rates):
        model, best, weights, waited = _copied(net), float("inf"), None, 0
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
        rows, held_out = inside[lane % 5], outside[lane % 5]
        for epoch in range(25):
            for part in rows.split(40):
                loss = nn.functional.cross_entropy(model(x[part]), y[part])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            with torch.no_grad():
                value = float(nn.functional.cross_entropy(model(x[held_out]), y[held_out]))
            waited = 0 if value < best else waited + 1
            if value < best:
                best, weights, at = value, _copied(model).state_dict(), (epoch + 1) * 3
            if waited == 2:
                break
        assert abs(float(history.best[lane]) - best) < 1e-9 and int(history.best_step[lane]) == at
        for path, tensor in wide.lane(lane).state_dict().items():
            torch.testing.assert_close(tensor, weights[path], rtol=0, atol=1e-9)


def _copied(model):
    import copy

    return copy.deepcopy(model)
