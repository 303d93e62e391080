"""What is plain is seen: its writes, the modules and batches of a context, and work that never left the
script."""

import copy
import warnings
import weakref

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wide_compiler.signals as gt
from signals.placed import signal, work
from wide_compiler.errors import ArgumentError, UsageError

pytestmark = pytest.mark.usefixtures("workers")

array = np.zeros(6, np.float32)
WRITES = {
    "numpy": (lambda: torch.from_numpy(array), lambda x: array.__setitem__(2, 5.0)),
    "data": (lambda: torch.zeros(6), lambda x: x.data.fill_(5)),
    "in place": (lambda: torch.zeros(6), lambda x: x.add_(5)),
    "a view": (lambda: torch.zeros(6), lambda x: x[2:3].fill_(5)),
    "detach": (lambda: torch.zeros(6, requires_grad=True), lambda x: x.detach().fill_(5)),
    "minus zero": (lambda: torch.zeros(6), lambda x: x.data.mul_(-1)),
    "nan": (lambda: torch.full((6,), torch.nan), lambda x: x.data.fill_(1)),
    "complex": (
        lambda: torch.zeros(6, dtype=torch.complex64),
        lambda x: torch.view_as_real(x).numpy().fill(2),
    ),
    "scalar": (lambda: torch.zeros(()), lambda x: x.numpy().fill(3)),
}


@pytest.mark.parametrize("how", WRITES)
def test_a_plain_operand_is_sent_again_when_its_values_have_changed(how):
    make, write = WRITES[how]
    array.fill(0)
    x = make()
    with gt.signal.context(signal("dp", [0, 1])):
        ones = gt.ones(6)
        for _ in range(2):
            expected = (torch.ones(6) * x).detach()
            got = (ones * x).detach().cpu()
            assert torch.equal(got.nan_to_num(7), expected.nan_to_num(7))
            if not got.is_complex():
                assert torch.equal(got.signbit(), expected.signbit())
            write(x)


def test_a_plain_operand_that_has_not_changed_is_sent_once():
    x = torch.full((6,), torch.nan)
    with gt.signal.context(signal("dp", [0, 1])):
        ones = gt.ones(6)
        kept = [(ones * x) for _ in range(3)]
        before = gt.debug.worker_stats()[0]["live_tensors"]
        kept += [(ones * x) for _ in range(5)]
        assert gt.debug.worker_stats()[0]["live_tensors"] == before + 5


@pytest.mark.parametrize("kind", ["parameter", "tensor", "vector_to_parameters"])
def test_data_set_to_a_handle(kind):
    handle = gt.randn(3, 2)
    plain = torch.zeros(3, 2) if kind == "tensor" else nn.Parameter(torch.zeros(3, 2))
    if kind == "vector_to_parameters":
        nn.utils.vector_to_parameters(handle.flatten(), [plain])
    else:
        plain.data = handle
    assert isinstance(plain, gt.SignalTensor) and plain.requires_grad == (kind != "tensor")
    assert isinstance(plain, nn.Parameter) == (kind != "tensor")
    assert torch.equal(plain.detach().cpu(), handle.cpu())
    with torch.no_grad():
        handle.add_(1)  # as in one process they share memory
    assert torch.equal(plain.detach().cpu(), handle.cpu())
    other = torch.zeros(2)
    other.data = torch.ones(2)
    assert other.tolist() == [1, 1]


class ByKeyword(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 2))

    def forward(self, *, batch):
        return batch["x"] @ self.weight


def test_a_plain_module_on_a_plain_batch_runs_on_the_workers():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    alone, x, y = copy.deepcopy(model), torch.randn(12, 4), torch.randint(0, 2, (12,))
    criterion = nn.CrossEntropyLoss()
    expected = criterion(alone(x), y)
    expected.backward()
    with work() as done, gt.signal.context(signal("dp", [0, 1, 2])):
        out = model(x)
        loss = criterion(out, y)
    loss.backward()
    assert gt.debug.placement(out) == ((0, 1, 2), "S(0)")
    assert [d["aten.addmm.default"] for d in done] == [2, 2, 2, 0]
    torch.testing.assert_close(loss.item(), expected.item())
    for a, b in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(a.grad.cpu(), b.grad)
    for a, b in zip(model.buffers(), alone.buffers(), strict=True):
        torch.testing.assert_close(a.cpu(), b)


def test_a_module_called_by_keyword_is_adopted_and_its_batch_placed():
    for inside in (True, False):
        model = ByKeyword()
        expected, x = model.weight.detach().clone(), torch.randn(6, 4)
        if inside:
            with gt.signal.context(signal("dp", [0, 1])):
                out = model(batch={"x": x})
            assert gt.debug.placement(out) == ((0, 1), "S(0)")
        else:
            out = model(batch={"x": gt.tensor(x)})
        assert isinstance(model.weight, gt.SignalTensor)
        torch.testing.assert_close(out.detach().cpu(), x @ expected)


def test_a_batch_that_needs_a_gradient_gets_it():
    layer, x = nn.Linear(3, 2), torch.randn(4, 3, requires_grad=True)
    expected = torch.autograd.grad(layer(x).sum(), x)[0]
    with gt.signal.context(signal("dp", [0, 1])):
        layer(x).sum().backward()
    assert torch.allclose(x.grad.cpu(), expected)


def test_work_that_stays_in_the_script_is_told():
    signal("idle", [0, 1])
    x = torch.randn(4, 4)
    told = pytest.warns(UserWarning, match=r"'idle': \d+ op\(s\) ran in this process.*gt.tensor")
    with told as warned, gt.signal.context("idle"):
        x @ x
    assert [w.filename for w in warned] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with gt.signal.context("idle"):  # once is enough
            x @ x
        with gt.signal.context(signal("busy", [0, 1])):
            gt.tensor(x) @ x


def test_a_parameter_that_cannot_be_swapped_says_what_to_do():
    layer = nn.Linear(3, 2)
    held = weakref.ref(layer.weight)
    refused = pytest.raises(UsageError, match=r"Linear.weight cannot go to the workers now.*adopt")
    with refused, gt.signal.context(signal("dp", [0, 1])):
        layer(torch.randn(4, 3))
    assert held() is layer.weight


def test_a_graph_from_before_the_adoption_is_not_followed_silently():
    layer = nn.Linear(3, 2)
    loss = layer(torch.randn(4, 3)).sum()
    with gt.signal.context(signal("dp", [0, 1])):
        layer(torch.randn(4, 3))
    with pytest.raises(RuntimeError, match="swapped"):
        loss.backward()


def test_under_axis_1_a_layer_made_outside_is_cut():
    layer1, layer2, x = nn.Linear(8, 8), nn.Linear(8, 6), torch.randn(8, 8)
    expected = copy.deepcopy(layer2)(copy.deepcopy(layer1)(x))
    signal("layer1_data_parallel", [0, 1, 2, 3])
    signal("layer2_model_parallel", [0, 1], axis=1)
    with gt.signal.context("layer1_data_parallel"):
        hidden = layer1(x)
    with gt.signal.context("layer2_model_parallel"):
        output = layer2(hidden)
    assert gt.debug.placement(layer1.weight) == ((0, 1, 2, 3), "R")
    assert gt.debug.placement(layer2.weight) == ((0, 1), "S(1)")
    torch.testing.assert_close(output.detach().cpu(), expected)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("a:\n  shard: {axis: 0, workers: [0]}\nb:\na:\n  compile: true\n", "lines 1 and 4"),
        ("a:\n  shard:\n    axis: 0\n    axis: 1\n    workers: [0]\n", "lines 3 and 4"),
    ],
)
def test_a_name_that_stands_twice_in_yaml_is_an_error(tmp_path, text, lines):
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ArgumentError, match=f"is there twice, in {lines}"):
        gt.load_config(tmp_path / "c.yaml")


def test_a_functional_loss_with_plain_targets():
    x, y = torch.randn(6, 3), torch.randint(0, 3, (6,))
    with gt.signal.context(signal("dp", [0, 1])):
        assert F.cross_entropy(gt.tensor(x), y).item() == pytest.approx(
            F.cross_entropy(x, y).item(), rel=1e-5
        )


def _doubles(gradient):
    return gradient * 2


def _doubles_in_place(parameter):
    parameter.grad.mul_(2)


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_gradient_hooks_of_parameters_stay_when_the_module_is_adopted(register):
    hook = _doubles if register == "register_hook" else _doubles_in_place
    model = nn.Linear(4, 2)
    alone = copy.deepcopy(model)
    handles = [getattr(m.weight, register)(hook) for m in (model, alone)]
    signal("rows", [0, 1])
    x = torch.randn(6, 4)
    for removed in (False, True):
        if removed:
            [handle.remove() for handle in handles]
        model.zero_grad(), alone.zero_grad()
        with gt.signal.context("rows"):
            loss = model(x).square().mean()
        loss.backward()
        alone(x).square().mean().backward()
        torch.testing.assert_close(model.weight.grad.cpu(), alone.weight.grad)


def test_a_plain_module_copied_in_a_context_stays_plain():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    with gt.signal.context(signal("dp", [0, 1])):
        twin = copy.deepcopy(model)
    for mine, own in zip(twin.state_dict().values(), model.state_dict().values(), strict=True):
        assert type(mine) is torch.Tensor and torch.equal(mine, own)
        assert mine.data_ptr() != own.data_ptr()
