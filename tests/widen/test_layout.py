"""Members that read or share memory in ways that stacking changes: strides, offsets, overlapping elements."""

import pytest
import torch
from torch import nn

import wide_compiler
from fn import Fn
from wide_compiler import WideConfig, WideError


def members(function, **make):
    torch.manual_seed(0)
    return [
        Fn(function, **{name: nn.Parameter(torch.randn(shape)) for name, shape in make.items()})
        for _ in range(3)
    ]


def compiled(models, sample):
    return wide_compiler.compile(models, sample, config=WideConfig(tune_seconds=0))


def assert_equal_with_gradients(models, wide, x):
    outputs = wide.each([x + lane for lane in range(3)])
    expected = [model(x + lane) for lane, model in enumerate(models)]
    torch.testing.assert_close(torch.stack(outputs), torch.stack(expected))
    sum((o * o).sum() for o in outputs).backward()
    sum((e * e).sum() for e in expected).backward()
    for name, parameter in models[0].named_parameters():
        own = torch.stack([model.get_parameter(name).grad for model in models])
        torch.testing.assert_close(wide.tensors()[name].grad, own)
        assert parameter.grad is not None


READERS = {
    "as_strided": lambda m, x: m.w.as_strided((2, 2), (1, 2), 1).sum() * x,
    "as_strided_copy": lambda m, x: torch.as_strided_copy(m.w, (2, 2), (1, 2), 1).sum() * x,
    "as_strided_scatter": lambda m, x: torch.as_strided_scatter(m.w, x[:2], (2,), (3,), 0).sum() * x,
    "as_strided of the input": lambda m, x: x.as_strided((2,), (2,), 1) * m.w[0, 0],
    "resize_": lambda m, x: (x * m.w.sum()).detach().clone().resize_(2) * m.w[0, 0],
}


@pytest.mark.parametrize("name", READERS)
def test_ops_that_read_the_layout_are_right(name):
    models = members(READERS[name], w=(3, 3))
    wide = compiled(models, torch.randn(6))
    # Views by strides are read by values; a scatter, and resizing what may have another size, run as a loop.
    assert wide.explain(measure=False).way == (
        "loop" if name in ("as_strided_scatter", "resize_") else "wide"
    )
    assert_equal_with_gradients(models, wide, torch.randn(6))


def test_copies_that_read_no_layout_keep_their_lanes():
    for function in (
        lambda m, x: torch.expand_copy(m.w, (2, 3, 3)) * x[0],
        lambda m, x: torch.unfold_copy(m.w, 0, 2, 1) * x[0],
        lambda m, x: torch.transpose_copy(m.w, 0, 1) * x[0],
    ):
        models = members(function, w=(3, 3))
        wide = compiled(models, torch.randn(6))
        assert wide.explain(measure=False).way != "loop"
        assert_equal_with_gradients(models, wide, torch.randn(6))


def test_a_model_that_cannot_be_captured_reads_its_layout_in_the_loop_too():
    def forward(m, x):
        scale = 2.0 if float(x.sum()) > 0 else 3.0  # a branch on values
        return m.w.as_strided((3,), (1,), 2) * scale + x[:3]

    models = members(forward, w=(3, 3))
    wide = compiled(models, torch.randn(6))
    assert wide.explain(measure=False).way == "loop"
    assert_equal_with_gradients(models, wide, torch.randn(6))


def test_strides_of_a_member_are_kept_where_they_are_read():
    models = members(lambda m, x: m.w.as_strided((6,), (1,)) * x, w=(2, 3))
    for model in models:
        model.w = nn.Parameter(torch.randn(3, 2).t())
    wide = compiled(models, torch.randn(6))
    assert_equal_with_gradients(models, wide, torch.randn(6))
    assert wide.lane(1).w.stride() == models[1].w.stride()


class Expanded(nn.Module):
    """A buffer whose elements share memory: a write to one is a write to many."""

    def __init__(self, write, make=lambda: torch.randn(3, 1).expand(3, 4)):
        super().__init__()
        self.write = write
        self.w = nn.Parameter(torch.randn(4))
        self.register_buffer("seen", make())

    def forward(self, x):
        self.write(self.seen, x)
        return self.seen * self.w + x.sum()


def write_column(seen, x):
    seen[:, 0] += 1.0


def write_element(seen, x):
    seen[1, 2] = 5.0


def write_by_value(seen, x):
    if float(x.sum()) > -1e9:  # cannot be captured
        seen[0, 0] = 7.0


@pytest.mark.parametrize("write", [write_column, write_element, write_by_value])
def test_writes_to_an_expanded_buffer_reach_all_elements_that_share_memory(write):
    models = [Expanded(write) for _ in range(3)]
    wide = compiled(models, torch.randn(2))
    explanation = wide.explain(measure=False)
    assert explanation.way == "loop"
    assert write is write_by_value or ("seen" in explanation.why and "clone()" in explanation.why)
    for _ in range(2):
        x = torch.randn(2)
        got = wide.shared(x)
        torch.testing.assert_close(got, torch.stack([model(x) for model in models]))
    for lane, model in enumerate(models):
        torch.testing.assert_close(wide.tensors()["seen"][lane], model.seen)
        torch.testing.assert_close(wide.lane(lane)(x), model(x))


def test_overlapping_windows_are_written_as_the_member_writes_them():
    models = [Expanded(write_element, lambda: torch.randn(6).as_strided((3, 4), (1, 1))) for _ in range(3)]
    wide = compiled(models, torch.randn(2))
    assert wide.explain(measure=False).way == "loop"
    x = torch.randn(2)
    torch.testing.assert_close(wide.shared(x), torch.stack([model(x) for model in models]))


def test_an_expanded_buffer_that_is_only_read_runs_by_rules():
    models = [Expanded(lambda seen, x: None) for _ in range(3)]
    wide = compiled(models, torch.randn(2))
    assert wide.explain(measure=False).coverage == 1.0
    x = torch.randn(2)
    torch.testing.assert_close(wide.shared(x), torch.stack([model(x) for model in models]))


@pytest.mark.parametrize("convert", [torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr])
def test_sparse_tensors_are_refused_with_what_to_do(convert):
    models = members(lambda m, a, x: torch.sparse.mm(a, x) @ m.w, w=(3, 3))
    sparse, x = convert(torch.eye(3)), torch.randn(3, 3)
    with pytest.raises(WideError, match=r"argument 0 is a sparse_\w+ tensor, expected a dense one.*to_dense"):
        compiled(models, (sparse, x))
    wide = compiled(models, (torch.eye(3), x))
    with pytest.raises(WideError, match="argument 0 is a sparse"):
        wide.shared(sparse, x)
    for model in models:
        model.register_buffer("a", convert(torch.eye(3)))
    with pytest.raises(WideError, match=r"lane 0: a is a sparse_\w+ tensor"):
        compiled(models, (torch.eye(3), x))


class Bags(nn.Module):
    """Table look-ups with sparse gradients, behind a branch on values where `by_value`."""

    def __init__(self, by_value):
        super().__init__()
        self.by_value = by_value
        self.bag, self.table = nn.EmbeddingBag(7, 3, mode="sum", sparse=True), nn.Embedding(7, 3, sparse=True)

    def forward(self, i):
        scale = 2.0 if self.by_value and int(i.sum()) > 0 else 1.0
        return self.bag(i) * scale + self.table(i).sum(1)


@pytest.mark.parametrize("by_value", [False, True])
def test_sparse_gradients_are_dense_in_every_way_of_running(by_value):
    models = [Bags(by_value) for _ in range(3)]
    i = torch.tensor([[1, 2], [2, 6]])
    wide = compiled(models, i)
    assert (wide.explain(measure=False).way == "loop") == by_value
    assert by_value or wide.explain(measure=False).coverage == 1.0
    wide.shared(i).square().sum().backward()
    for lane, model in enumerate(models):
        model(i).square().sum().backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad.is_sparse
            torch.testing.assert_close(wide.tensors()[name].grad[lane], parameter.grad.to_dense())


@pytest.mark.parametrize("several", [False, True])
def test_sparse_outputs_are_handed_out_by_lane(several):
    def forward(m, x):
        sparse = (m.w * x).to_sparse()
        return (sparse, x * 2) if several else sparse

    models = members(forward, w=(3,))
    wide = compiled(models, torch.randn(2, 3))
    xs = [torch.randn(2, 3, requires_grad=True) for _ in range(3)]
    for out, model, x in zip(wide.each(xs), models, xs, strict=True):
        mine, own = (out, model(x)) if not several else (out[0], model(x)[0])
        assert mine.is_sparse
        torch.testing.assert_close(mine.to_dense(), own.to_dense())
