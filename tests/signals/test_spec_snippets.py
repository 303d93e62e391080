"""What the documentation of signals shows, run as it stands on four workers."""

import os
import textwrap

import pytest
import torch

import wide_compiler.signals as gt
from signals.placed import signal, work
from wide_compiler.signals import ShardConfig, SignalConfig

pytestmark = pytest.mark.usefixtures("workers")

TRAINING = """
forward_pass:
  shard:
    axis: 0
    workers: [0, 1, 2, 3]
  backward: backward_pass
  compile: true

backward_pass:
  shard:
    axis: 0
    workers: [0, 1, 2, 3]
  compile: true

parameter_updates:
  shard:
    axis: 0
    workers: [0, 1, 2, 3]
"""


def test_quick_example(tmp_path, monkeypatch):
    (tmp_path / "config.yaml").write_text(
        textwrap.dedent("""
        forward_layer1:
          shard:
            axis: 0                  # Shard batch dimension
            workers: [0, 1, 2, 3]    # Use workers 0-3
          backward: backward_layer1  # Different config for gradients

        backward_layer1:
          shard:
            axis: 0
            workers: [0, 1, 2, 3]
        """)
    )
    monkeypatch.setitem(os.environ, "GT_CONFIG", str(tmp_path / "config.yaml"))
    w = gt.randn(64, 8)
    with work() as done, gt.signal.context("forward_layer1"):
        x = gt.randn(100, 64)
        y = x @ w
    assert gt.debug.placement(x) == gt.debug.placement(y) == ((0, 1, 2, 3), "S(0)")
    assert [d["aten.mm.default"] for d in done] == [1, 1, 1, 1]
    torch.testing.assert_close(y.cpu(), x.cpu() @ w.cpu())


def test_python_api():
    config = SignalConfig(
        shard=ShardConfig(axis=0, workers=[0, 1, 2, 3]), backward_signal="backward_layer1", compile=False
    )
    gt.register_config("forward_layer1", config)
    signal("backward_layer1", [0, 1, 2, 3])
    with gt.signal.context("forward_layer1"):
        x = gt.randn(128, 64)
    assert gt.debug.placement(x) == ((0, 1, 2, 3), "S(0)")


def test_dynamic_configuration():
    def configure_for_batch_size(batch_size):
        if batch_size >= 256:
            workers = [0, 1, 2, 3]
        else:
            workers = [0, 1]
        gt.register_config("training", SignalConfig(shard=ShardConfig(axis=0, workers=workers)))

    model = torch.nn.Linear(4, 2)
    for batch_size, workers in ((256, (0, 1, 2, 3)), (64, (0, 1))):
        configure_for_batch_size(batch_size)
        batch = gt.randn(batch_size, 4)
        with gt.signal.context("training"):
            output = model(batch)
        assert gt.debug.placement(output) == (workers, "S(0)")


def test_context_with_a_backward_signal():
    signal("forward", [0, 1])
    signal("backward", [2, 3])
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    with work() as done, gt.signal.context("forward", backward="backward"):
        loss = model(gt.randn(8, 3)).sum()
        loss.backward()
    assert [d["aten.tanh.default"] for d in done] == [1, 1, 0, 0]
    assert [d["aten.tanh_backward.default"] for d in done] == [0, 0, 1, 1]


def test_function_call():
    signal("signal_name", [0, 1, 2])
    x = gt.randn(100, 64)
    x_sharded = gt.signal.tensor(x, name="signal_name")
    assert gt.debug.placement(x) == ((0,), "whole")
    assert gt.debug.placement(x_sharded) == ((0, 1, 2), "S(0)")
    torch.testing.assert_close(x_sharded.cpu(), x.cpu(), rtol=0, atol=0)
    x_sharded.zero_()
    assert x.cpu().abs().sum() > 0  # a copy


def test_function_call_is_differentiable():
    signal("signal_name", [1, 2])
    x = gt.randn(4, 3).requires_grad_()
    (gt.signal.tensor(x, name="signal_name") * 3).sum().backward()
    assert x.grad.cpu().eq(3).all()


def test_enter_and_exit():
    signal("signal_name", [0, 1, 2, 3])
    gt.signal.enter("signal_name")
    x = gt.randn(100, 64)
    gt.signal.exit("signal_name")
    y = gt.randn(100, 64)
    assert gt.debug.placement(x) == ((0, 1, 2, 3), "S(0)")
    assert gt.debug.placement(y) == ((0,), "whole")


def test_mixed_configuration(tmp_path):
    (tmp_path / "base_config.yaml").write_text("base: {shard: {axis: 0, workers: [0, 1]}}")
    gt.load_config(tmp_path / "base_config.yaml")
    gt.register_config("dynamic_layer", SignalConfig(shard=ShardConfig(axis=0, workers=[2, 3])))
    with gt.signal.context("base"):
        a = gt.ones(4)
    with gt.signal.context("dynamic_layer"):
        b = gt.ones(4)
    assert gt.debug.placement(a)[0] == (0, 1)
    assert gt.debug.placement(b)[0] == (2, 3)


def test_model_parallel_weight():
    signal("model_parallel", [0, 1], axis=1)
    with gt.signal.context("model_parallel"):
        weight = gt.randn(1024, 512)
    assert gt.debug.placement(weight) == ((0, 1), "S(1)")


def test_matmul_patterns_and_reductions():
    signal("data_parallel", [0, 1, 2, 3])
    B_whole = gt.randn(64, 32)
    with gt.signal.context("data_parallel"):
        A = gt.randn(128, 64)
        B = gt.randn(64, 32)
        C = A @ B  # B is gathered
        D = A @ gt.signal.tensor(B_whole.t(), name="data_parallel").t()
        total = A.sum()
        avg = A.mean()
    assert gt.debug.placement(B)[1] == "S(0)"
    assert gt.debug.placement(C)[1] == "S(0)"
    torch.testing.assert_close(C.cpu(), A.cpu() @ B.cpu())
    torch.testing.assert_close(D.cpu(), A.cpu() @ B_whole.cpu())
    torch.testing.assert_close(total.cpu(), A.cpu().sum(), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(avg.cpu(), A.cpu().mean(), rtol=1e-4, atol=1e-6)


def test_complete_example(tmp_path, monkeypatch):
    (tmp_path / "training_config.yaml").write_text(TRAINING)
    monkeypatch.setitem(os.environ, "GT_CONFIG", str(tmp_path / "training_config.yaml"))
    from wide_compiler.signals.nn import SGD, Linear, Module

    class Model(Module):
        def __init__(self):
            super().__init__()
            self.layer = Linear(784, 10)

        def forward(self, x):
            return self.layer(x)

    model, alone = Model(), Model()
    alone.load_state_dict(model.state_dict())
    X, y = torch.randn(40, 784), torch.randn(40, 10)
    X_train, y_train = gt.tensor(X), gt.tensor(y)
    optimizer = SGD(model.parameters(), lr=0.01)
    reference = torch.optim.SGD(alone.parameters(), lr=0.01)
    with work() as done:
        for _epoch in range(30):
            with gt.signal.context("forward_pass"):
                pred = model(X_train)
                loss = ((pred - y_train) ** 2).mean()

            loss.backward()

            with gt.signal.context("parameter_updates"):
                optimizer.step()
                optimizer.zero_grad()

            expected = ((alone(X) - y) ** 2).mean()
            expected.backward()
            reference.step()
            reference.zero_grad()
            assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert [d["aten.addmm.default"] for d in done] == [30] * 4
    assert [d["aten.mm.default"] for d in done] == [30] * 4
    torch.testing.assert_close(
        model.layer.weight.detach().cpu(), alone.layer.weight.detach(), rtol=1e-5, atol=1e-6
    )


def test_verify_tensor_placement(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(os.environ, "GT_INSTRUCTION_LOG", str(tmp_path / "debug.log"))
    monkeypatch.setitem(os.environ, "GT_DEBUG_DISPATCHER", "1")
    from wide_compiler.observe import instruction_log

    instruction_log.configure()
    try:
        signal("dp", [0, 1, 2])
        with gt.signal.context("dp"):
            x = gt.randn(100, 64)
            (x @ x.t()).sum().item()
    finally:
        monkeypatch.undo()
        instruction_log.configure()
    lines = [
        line for line in (tmp_path / "debug.log").read_text().splitlines() if "WorkerCreateTensor" in line
    ]
    assert [line.split()[1] for line in lines] == ["worker=0", "worker=1", "worker=2"]
    assert "shape=(34, 64) of=(100, 64)" in lines[0] and "shape=(32, 64)" in lines[2]
    assert "placement=Shard(0)" in lines[0] and "test_spec_snippets.py:" in lines[0]
    said = capsys.readouterr().err
    assert "aten.mm.default" in said and "on workers [0, 1, 2]" in said
