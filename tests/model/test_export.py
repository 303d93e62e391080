"""`wide.export`: the program that comes out gives what the wide model gives, for any batch size."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wide_compiler
from nightly import NIGHTLY
from wide_compiler.benchmark.nets import Gpt
from wide_compiler.errors import ArgumentError, MissingExtraError, UnsupportedError, ValidationError
from wide_compiler.model import export as exporting

N = 3


class Net(nn.Module):
    """Convolution, batch norm, a mask as keyword, and two outputs."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4), nn.Linear(4, 2)

    def forward(self, x, mask=None):
        h = F.relu(self.norm(self.conv(x))).mean(-1)
        return {"logits": self.head(h if mask is None else h * mask), "features": h}


def lanes(make, n=N):
    return [make().eval() for _ in range(n)]


def input_of(door, batch):
    shape = {"shared": (batch, 3, 8), "stacked": (N, batch, 3, 8), "packed": (batch, N * 3, 8)}[door]
    return torch.randn(shape)


def call(wide, door, *args, **kwargs):
    with torch.no_grad():
        return (wide if door == "packed" else getattr(wide, door))(*args, **kwargs)


@pytest.mark.parametrize("door", exporting.DOORS)
def test_a_program_for_any_batch(door):
    wide = wide_compiler.compile(lanes(Net), torch.randn(4, 3, 8))
    program = wide.export(door=door).module()
    for batch in (2, 7):
        x = input_of(door, batch)
        got, expected = program(x), call(wide, door, x)
        for name in ("logits", "features"):
            torch.testing.assert_close(got[name], expected[name])


def test_a_file_holds_a_copy_with_keywords(tmp_path):
    wide = wide_compiler.compile(lanes(Net), torch.randn(4, 3, 8), sample_kwargs={"mask": torch.ones(4, 4)})
    file = tmp_path / "ensemble.pt2"
    wide.export(file)
    x, mask = torch.randn(5, 3, 8), torch.rand(5, 4)
    expected = call(wide, "shared", x, mask=mask)["logits"]
    with torch.no_grad():
        wide.get_parameter("head.bias").zero_()
    program = torch.export.load(file).module()
    torch.testing.assert_close(program(x, mask=mask)["logits"], expected)


def test_one_batch_size_and_another_sample():
    wide = wide_compiler.compile(lanes(Net), torch.randn(4, 3, 8))
    x = torch.randn(6, 3, 16)
    program = wide.export(sample=x, dynamic_batch=False).module()
    torch.testing.assert_close(program(x)["logits"], call(wide, "shared", x)["logits"])
    with pytest.raises((RuntimeError, AssertionError)):
        program(torch.randn(5, 3, 16))


def test_onnx_is_run_by_onnxruntime(tmp_path):
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package)
    runtime = pytest.importorskip("onnxruntime")
    file = tmp_path / "ensemble.onnx"
    wide = wide_compiler.compile(lanes(Net), torch.randn(4, 3, 8))
    wide.export(file)
    session = runtime.InferenceSession(file, providers=["CPUExecutionProvider"])
    assert [slot.name for slot in session.get_inputs()] == ["x"]
    for batch in (2, 7):
        x = torch.randn(batch, 3, 8)
        got, _ = session.run(None, {"x": x.numpy()})
        torch.testing.assert_close(torch.from_numpy(got), call(wide, "shared", x)["logits"])


@pytest.mark.skipif(not NIGHTLY, reason="long: make nightly")
def test_a_transformer_in_onnx(tmp_path):
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    wide = wide_compiler.compile(lanes(Gpt, 2), torch.randint(0, 16, (3, 5)))
    assert wide.export(tmp_path / "gpt.onnx") is not None  # compared with the model on the way


class Cholesky(nn.Linear):
    def forward(self, x):
        return torch.linalg.lu_factor(x @ x.mT + torch.eye(x.shape[-1]))[0] @ self.weight


def test_onnx_names_the_op_that_it_lacks(tmp_path):
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    wide = wide_compiler.compile(lanes(lambda: Cholesky(4, 4)), torch.randn(3, 4, 4))
    wide.export()
    with pytest.raises(UnsupportedError, match=r"ONNX cannot express .*lu"):
        wide.export(tmp_path / "lu.onnx")
    assert not (tmp_path / "lu.onnx").exists()


class Branching(nn.Linear):
    def forward(self, x):
        return super().forward(x) if float(x.sum()) > 0 else x


@pytest.mark.parametrize(
    ("make", "train", "says"),
    [
        (
            lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)),
            True,
            "writes 1.num_batches_tracked.*eval",
        ),
        (lambda: nn.Sequential(nn.Linear(3, 3), nn.Dropout()), True, r"random numbers.*wide\.eval\(\)"),
        (lambda: Branching(3, 3), False, "loop of their own Python, because"),
    ],
)
def test_what_is_no_pure_function_is_refused(make, train, says):
    wide = wide_compiler.compile([make() for _ in range(N)], torch.randn(4, 3)).train(train)
    before = {name: tensor.clone() for name, tensor in wide.state_dict().items()}
    with pytest.raises(UnsupportedError, match=says):
        wide.export()
    assert all(torch.equal(before[name], tensor) for name, tensor in wide.state_dict().items())


def test_arguments_that_cannot_be():
    wide = wide_compiler.compile(lanes(lambda: nn.Linear(3, 3)), torch.randn(4, 3))
    with pytest.raises(ArgumentError, match=r"'each'.*shared, stacked, packed.*stack the lists"):
        wide.export(door="each")
    for name in ("model.pth", "model"):
        with pytest.raises(ArgumentError, match=r"\.pt2 .* or \.onnx"):
            wide.export(name)


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    wide = wide_compiler.compile(lanes(lambda: nn.Linear(3, 3)), torch.randn(4, 3))
    with pytest.raises(MissingExtraError, match=r"wide_compiler\[onnx\]"):
        wide.export("model.onnx")


def test_a_program_that_disagrees_is_not_given_out(monkeypatch):
    wide = wide_compiler.compile(lanes(lambda: nn.Linear(3, 3)), torch.randn(4, 3))
    other = torch.export.export(
        exporting.ExportedDoor(
            wide_compiler.compile(lanes(lambda: nn.Linear(3, 3)), torch.randn(4, 3)), "shared", ("input",)
        ),
        (torch.randn(4, 3),),
    )
    monkeypatch.setattr(torch.export, "export", lambda *args, **kwargs: other)
    with pytest.raises(ValidationError, match="disagrees with the wide model"):
        wide.export()
