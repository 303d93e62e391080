"""Signals from Python and YAML; every error names the full path of what is wrong."""

import os
import warnings

import pytest
import torch

import wide_compiler.signals as gt
from wide_compiler.signals import signal_config


@pytest.fixture(autouse=True)
def _forget():
    yield
    gt.clear_configs()


def write(tmp_path, text):
    path = tmp_path / "signals.yaml"
    path.write_text(text)
    return path


def test_yaml(tmp_path):
    path = write(
        tmp_path,
        "a:\n  shard:\n    axis: 1\n    workers: [0, 2]\n  backward: b\n  compile: true\n"
        "b: {shard: {workers: [1]}}\n",
    )
    gt.load_config(path)
    assert signal_config.find("a") == gt.SignalConfig(
        gt.ShardConfig(1, [0, 2]), backward_signal="b", compile=True
    )
    assert signal_config.find("b") == gt.SignalConfig(gt.ShardConfig(0, [1]))
    assert signal_config.highest_worker() == 2


def test_meshes_of_two_dimensions(tmp_path):
    """Three ways to say it: dimensions by size, a grid in YAML, a grid in Python."""
    gt.load_config(
        write(
            tmp_path,
            "sizes: {shard: [{axis: 0, workers: 2}, {axis: null, workers: 2, parameters: 1}]}\n"
            "grid: {shard: {axis: [0, null], workers: [[0, 1], [2, 3]], parameters: [null, 1]}}\n"
            "both: {shard: [{axis: 0, workers: 2}, {axis: 1, workers: 3}]}\n",
        )
    )
    python = gt.SignalConfig(gt.ShardConfig([0, None], [[0, 1], [2, 3]], [None, 1]))
    assert signal_config.find("sizes") == signal_config.find("grid") == python
    both = signal_config.find("both").shard
    assert (both.grid, both.ids, both.axes, both.parameter_axes) == (
        (2, 3),
        (0, 1, 2, 3, 4, 5),
        (0, 1),
        (None, 1),
    )
    assert signal_config.highest_worker() == 5


def test_python_beside_yaml(tmp_path):
    gt.load_config(write(tmp_path, "a: {shard: {workers: [0]}}"))
    gt.register_config("a", gt.SignalConfig(shard=gt.ShardConfig(axis=0, workers=[0, 1])))
    gt.register_config("c", gt.SignalConfig())
    assert signal_config.known() == ["a", "c"]
    assert signal_config.find("a").shard.workers == (0, 1)


def test_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("GT_CONFIG", str(write(tmp_path, "from_env: {shard: {workers: [3]}}")))
    assert signal_config.highest_worker() == 3
    monkeypatch.setenv("GT_CONFIG", str(tmp_path / "missing.yaml"))
    with pytest.raises(FileNotFoundError, match=r"missing\.yaml"):
        signal_config.find("from_env")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "forward_layer1: {shard: {axsi: 0, workers: [0]}}",
            r"forward_layer1\.shard\.axsi: unknown key.*axis",
        ),
        ("a: {shrad: {workers: [0]}}", r"a\.shrad: unknown key; known are shard, backward, compile"),
        ("a: {shard: {axis: 0}}", r"a\.shard\.workers: field required"),
        ("a: {shard: {workers: [0, -1]}}", r"a\.shard\.workers\[1\] .*got -1"),
        ("a: {shard: {workers: [0, x]}}", r"a\.shard\.workers\[1\] .*got 'x'"),
        ("a: {shard: {workers: []}}", r"a\.shard\.workers is empty"),
        ("a: {shard: {workers: [1, 1]}}", r"a\.shard\.workers names a worker twice"),
        ("a: {shard: {axis: -1, workers: [0]}}", r"a\.shard\.axis .*got -1"),
        ("a: {shard: {axis: one, workers: [0]}}", r"a\.shard\.axis .*got 'one'"),
        (
            "a: {shard: {axis: [0, 1], workers: [[0, 1], [2]]}}",
            r"a\.shard\.workers\[1\] has 1 .*workers\[0\] has 2",
        ),
        ("a: {shard: {axis: [0, 1], workers: [[0, 1], [2, x]]}}", r"a\.shard\.workers\[1\]\[1\] .*got 'x'"),
        ("a: {shard: {axis: 0, workers: [[0, 1], [2, 3]]}}", r"a\.shard\.axis .*which has 2, got 0"),
        ("a: {shard: {workers: [0], parameters: -1}}", r"a\.shard\.parameters .*got -1"),
        ("a: {shard: [{axis: 0, workers: 2}, {axsi: 1, workers: 2}]}", r"a\.shard\.1\.axsi: unknown key"),
        (
            "a: {shard: [{axis: 0, workers: [0, 1]}, {axis: 1, workers: 2}]}",
            r"a\.shard\[0\]\.workers must be",
        ),
        ("a: {compile: 3}", r"a\.compile: .*got 3"),
        ("a: {backward: [b]}", r"a\.backward: .*string"),
        ("a: 5", r"a: .*got 5"),
        ("- a", r"got a list"),
        ("3: {}", r"must be a string, got 3"),
        ("", "is empty"),
        ("# only a comment", "is empty"),
        ("a: [", "is not YAML"),
    ],
)
def test_bad_yaml(tmp_path, text, message):
    with pytest.raises(ValueError, match=message) as caught:
        gt.load_config(write(tmp_path, text))
    assert "signals.yaml" in str(caught.value)


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no signal config at .*nowhere\.yaml"):
        gt.load_config(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gt.ShardConfig(axis=-1, workers=[0]), "axis must be an int, 0 or more, got -1"),
        (lambda: gt.ShardConfig(axis=True, workers=[0]), "axis must be an int"),
        (lambda: gt.ShardConfig(axis=0, workers=[]), "is empty"),
        (lambda: gt.ShardConfig(axis=0, workers=3), "list of worker ids, got 3"),
        (lambda: gt.ShardConfig(axis=0, workers="01"), "list of worker ids"),
        (lambda: gt.ShardConfig(axis=0, workers=[0, 1.0]), r"workers\[1\] must be an int"),
        (lambda: gt.ShardConfig(axis=0, workers=[2, 2]), "names a worker twice"),
        (lambda: gt.SignalConfig(shard=[0, 1]), "must be a ShardConfig"),
        (lambda: gt.SignalConfig(backward_signal=3), "name of a signal, got 3"),
        (lambda: gt.SignalConfig(compile="yes"), "True or False, got 'yes'"),
        (lambda: gt.register_config("", gt.SignalConfig()), "non-empty string"),
        (lambda: gt.register_config("a", {"shard": None}), "a: expected a SignalConfig, got dict"),
        (lambda: gt.cpu_workers(0), "at least 1, got 0"),
        (lambda: gt.gpu_workers("2"), "at least 1, got '2'"),
    ],
)
def test_bad_python(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.usefixtures("workers")
class TestWithWorkers:
    def test_axis_out_of_range(self):
        gt.register_config("deep", gt.SignalConfig(shard=gt.ShardConfig(axis=2, workers=[0, 1])))
        with pytest.raises(
            ValueError, match=r"deep\.shard\.axis is 2, out of range for a tensor of shape \(4, 4\)"
        ):
            gt.signal.tensor(gt.zeros(4, 4), name="deep")

    def test_unknown_signal_warns_once_and_changes_nothing(self):
        gt.register_config("known_one", gt.SignalConfig())
        with (
            pytest.warns(UserWarning, match="unknown signal 'never_heard'.*known_one") as told,
            gt.signal.context("never_heard"),
        ):
            assert torch.ones(2).sum() == 2
        assert [w.filename for w in told] == [__file__]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with gt.signal.context("never_heard"):
                pass

    def test_the_warning_is_at_the_line_that_names_the_signal(self):
        with pytest.warns(UserWarning, match="unknown signal 'entered'") as entered:
            gt.signal.enter("entered")
        gt.signal.exit("entered")
        with pytest.warns(UserWarning, match="unknown signal 'moved_to'") as moved:
            gt.signal.tensor(gt.zeros(2), name="moved_to")
        assert [w.filename for w in (*entered, *moved)] == [__file__, __file__]

    def test_exit_in_the_wrong_order(self):
        gt.register_config("a", gt.SignalConfig())
        with pytest.raises(ValueError, match="no signal has been entered"):
            gt.signal.exit("a")
        gt.signal.enter("a")
        with pytest.raises(ValueError, match="entered last is 'a'"):
            gt.signal.exit("b")
        gt.signal.exit("a")

    def test_no_gpu_is_said(self):
        if torch.cuda.is_available() or os.environ.get("GT_WORKERS", "").startswith("ray"):
            pytest.skip("there is one, or Ray looks for one on its machines")
        with pytest.warns(UserWarning, match="no GPU here"):
            gt.gpu_workers(4)
