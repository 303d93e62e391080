"""The controller's tensor: what PyTorch does with it, and what once gave wrong numbers without a word."""

import copy
import io
import threading

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves

import wide_compiler.signals as gt
from signals.placed import signal, work
from wide_compiler.errors import UnsupportedError

pytestmark = pytest.mark.usefixtures("workers")


@pytest.fixture(params=["here", "one", "rows", "columns"])
def place(request):
    """Tensors on worker 0, on another worker, cut by rows, cut by columns."""
    if request.param == "here":
        return gt.tensor
    axis = 1 if request.param == "columns" else 0
    signal("place", [2] if request.param == "one" else [0, 1, 2], axis)

    def put(data):
        with gt.signal.context("place"):
            return gt.tensor(data)

    return put


def same(handle, plain):
    torch.testing.assert_close(handle.detach().cpu(), plain.detach(), rtol=1e-6, atol=1e-6)


X = torch.arange(21.0).reshape(7, 3) - 9


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x[2:5].mul_(10),
        lambda x: x.view(-1)[4:9].add_(1),
        lambda x: x.t()[1].fill_(7),
        lambda x: x[:, 1].copy_(x[:, 0]),
        lambda x: x.unbind(0)[3].zero_(),
        lambda x: x.diagonal().add_(5),
        lambda x: x[::2].neg_(),
        lambda x: x[1:].transpose(0, 1)[0:2].sub_(3),
        lambda x: x.__setitem__((slice(None), 2), 4.0),
        lambda x: x.__setitem__(x > 3, -1.0),
        lambda x: x.__setitem__(torch.tensor([0, 4]), torch.ones(3)),
        lambda x: x.view(7, 3).unsqueeze(0).expand(1, 7, 3)[0, 3].add_(2),
    ],
)
def test_writes_through_views_reach_everything(place, write):
    x, plain = place(X), X.clone()
    views = [lambda t: t.view(-1), lambda t: t.t(), lambda t: t[1:6], lambda t: t[:, 1]]
    ours, theirs = [v(x) for v in views], [v(plain) for v in views]
    base = (x * 1, plain * 1)
    write(x)
    write(plain)
    same(x, plain)
    for a, b in zip(ours, theirs, strict=True):  # views made before the write see it
        same(a, b)
    same(*base)
    ours[1].mul_(2)  # and a write through one of them reaches the others
    theirs[1].mul_(2)
    same(x, plain)
    same(ours[0], theirs[0])
    same(ours[2], theirs[2])


def test_data_is_replaced(place):
    p, q = nn.Parameter(place(X)), nn.Parameter(X.clone())
    view, plain_view = p.detach()[0], q.detach()[0]
    p.data, q.data = place(X + 1), X + 1
    p.data.mul_(2)
    q.data.mul_(2)
    same(p, q)
    same(view, plain_view)  # the old memory
    p.data = X.double()
    assert p.dtype == torch.float64 and p.cpu().dtype == torch.float64


def test_running_statistics(place):
    ours, theirs = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    for _ in range(3):
        same(ours(place(X)), theirs(X))
    same(ours.running_mean, theirs.running_mean)
    same(ours.running_var, theirs.running_var)
    assert ours.num_batches_tracked.item() == 3
    same(ours.eval()(place(X)), theirs.eval()(X))


@pytest.mark.parametrize("function", [torch.var, torch.std, torch.var_mean])
@pytest.mark.parametrize("options", [{}, {"dim": 0}, {"dim": (0, -1), "keepdim": True}, {"correction": 0}])
def test_variances(place, function, options):
    ours, theirs = function(place(X * 1e3 + 7), **options), function(X * 1e3 + 7, **options)
    for a, b in zip(tree_leaves(ours), tree_leaves(theirs), strict=True):
        same(a, b)


def test_batch_norm_stays_cut():
    signal("three", [0, 1, 2])
    with gt.signal.context("three"):
        x = gt.tensor(torch.randn(7, 2, 3, 3))
        before = [s["all_gathers"] for s in gt.debug.worker_stats()]
        out = nn.BatchNorm2d(2)(x)
    assert gt.debug.placement(out) == ((0, 1, 2), "S(0)")
    assert [s["all_gathers"] for s in gt.debug.worker_stats()] == before


def test_batch_norm_without_statistics(place):
    """Three channels cut over three workers, and seven rows."""
    ours, theirs = place(X).requires_grad_(), X.clone().requires_grad_()
    for x in (ours, theirs):
        F.batch_norm(x, None, None, training=True).pow(3).sum().backward()
    same(ours.grad, theirs.grad)


def test_tied_parameters_stay_tied():
    signal("dp", [0, 1])
    a = nn.Linear(3, 3, bias=False)
    b = nn.Linear(3, 3, bias=False)
    b.weight = a.weight
    model = gt.adopt(nn.Sequential(a, b))
    assert model[0].weight is model[1].weight and len(list(model.parameters())) == 1
    alone = copy.deepcopy(model)
    assert alone[0].weight is alone[1].weight
    with gt.signal.context("dp"):
        model(gt.tensor(X)).sum().backward()
    w = model[0].weight.detach().cpu().requires_grad_()
    (X @ w.t() @ w.t()).sum().backward()
    same(model[0].weight.grad, w.grad)


def test_draws_do_not_depend_on_the_layout():
    def draws(put):
        gt.manual_seed(11)
        x = put(torch.ones(8, 6))
        return [
            gt.randn(8, 6),
            gt.rand(5),
            gt.randint(0, 9, (7, 2)),
            gt.randperm(6),
            F.dropout(x, 0.4),
            torch.rand_like(x),
            x.clone().normal_(),
            x.clone().bernoulli_(0.3),
            nn.init.kaiming_uniform_(x.clone()),
            torch.bernoulli(x * 0.5),
            x.clone().view(-1)[3:40].uniform_(),
            torch.multinomial(x, 3),
        ]

    reference = [t.cpu() for t in draws(gt.tensor)]
    for workers, axis in (([0, 1, 2], 0), ([1, 3], 1), ([2], 0)):
        name = signal(f"d{workers}", workers, axis)
        with gt.signal.context(name):
            got = draws(gt.tensor)
        for a, b in zip(got, reference, strict=True):
            assert torch.equal(a.cpu(), b)
    assert reference[0].std() > 0.5
    assert not torch.equal(gt.randn(8, 6).cpu(), gt.randn(8, 6).cpu())
    kept = reference[4] != 0
    assert 0.3 < kept.double().mean() < 0.9 and torch.allclose(reference[4][kept], torch.tensor(1 / 0.6))


def test_values_come_out_as_ever(place):
    x = place(X)
    assert x.sum().item() == X.sum().item()
    assert np.array_equal(x.numpy(), X.numpy()) and np.array_equal(np.asarray(x), X.numpy())
    assert np.array_equal(x.data.numpy(), X.numpy())
    assert x.tolist() == X.tolist()
    assert "workers=" in repr(x) and "-9." in repr(x)
    assert f"{x.sum():.1f}" == f"{X.sum():.1f}"
    assert bool((x < 100).all()) and not (x < -100).any()
    assert torch.equal(x, x.clone())
    assert x.shape == X.shape and x.dtype == X.dtype and len(x) == 7
    same(torch.cat([row.unsqueeze(0) for row in x]), X)
    assert x[x > 3].shape == X[X > 3].shape


def test_cpu_is_differentiable(place):
    x = place(X).requires_grad_()
    (x.cpu() * 2).sum().backward()
    assert x.grad.cpu().eq(2).all()


def test_plain_tensors_meet_handles(place):
    x, bias = place(X), torch.ones(3, requires_grad=True)
    (x + bias).sum().backward()
    assert torch.equal(bias.grad.cpu(), torch.full((3,), 7.0))
    plain = torch.zeros(7, 3)
    plain += x
    assert type(plain) is torch.Tensor and torch.equal(plain, X)
    scale = torch.full((3,), 2.0)
    same(x * scale, X * 2)
    scale.mul_(3)  # a copy on the workers is not used after the plain tensor changed
    same(x * scale, X * 6)


def test_saving_and_copying(place):
    model = nn.Linear(3, 2)
    plain = copy.deepcopy(model.state_dict())
    gt.adopt(model)
    file = io.BytesIO()
    torch.save({**model.state_dict(), "parameter": model.weight}, file)
    assert b"wide_compiler" not in file.getvalue()  # loaded where there is no such package
    file.seek(0)
    loaded = torch.load(file)
    parameter = loaded.pop("parameter")
    assert type(parameter) is nn.Parameter and parameter.requires_grad
    assert all(type(t) in (torch.Tensor, nn.Parameter) for t in loaded.values())
    for name, value in plain.items():
        assert torch.equal(loaded[name], value)
    x = place(X)
    same(copy.deepcopy(x).add_(1), X + 1)
    same(x, X)


def test_fused_and_shape_changing_ops_are_refused():
    model = gt.adopt(nn.Linear(3, 2))
    model(gt.tensor(X)).sum().backward()
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    with pytest.raises((UnsupportedError, RuntimeError)):
        optimizer.step()
    with pytest.raises(UnsupportedError, match="returns a new tensor"):
        gt.tensor(X).resize_(3)


def test_a_tensor_turned_in_place(place):
    def results(x):
        y = x * 2
        before = y.detach()
        yield y.t_().clone()
        yield y.mul_(3).sum()
        y.unsqueeze_(0).squeeze_().unsqueeze_(1).squeeze_(1).transpose_(0, 1)[0, 0] = 100.0
        yield y
        yield before  # the same memory, in its old shape
        leaf = x.clone().requires_grad_()
        ((leaf * 1).t_() * torch.arange(7.0)).sum().backward()
        yield leaf.grad

    for handle, plain in zip(results(place(X)), results(X), strict=True):
        assert handle.shape == plain.shape
        same(handle, plain)


def test_threads_that_see_new_shapes_at_once(place):
    found, wrong = {}, []

    def work(i):
        try:
            found[i] = (place(torch.full((6 + i, 3), float(i))) * 2).sum().item()
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert found == {i: 6.0 * i * (6 + i) for i in range(8)}


def test_foreach_optimisers():
    torch.manual_seed(0)
    a, b = nn.Linear(3, 2), nn.Linear(3, 2)
    b.load_state_dict(a.state_dict())
    gt.adopt(a)
    for model, x in ((a, gt.tensor(X)), (b, X)):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=True)
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
    same(a.weight, b.weight)


def test_partial_sums_are_added_before_they_are_rounded(place):
    torch.manual_seed(0)
    a, b = torch.randn(4, 7, dtype=torch.float64), torch.randn(7, 4, dtype=torch.float64)
    x = place(a.t().contiguous()).t() @ place(b)  # the sum over dimension 7 is cut by rows
    for change in (
        lambda t: t.half(),
        lambda t: (t * 3).long(),
        lambda t: (t * 3).sum(0, dtype=torch.int64),
        lambda t: t.amax(0).to(torch.int8),
    ):
        got, expected = change(x).cpu(), change(a @ b)
        assert got.dtype == expected.dtype and torch.equal(got, expected), (got, expected)


def test_bad_shapes_fail_at_once(place):
    with pytest.raises(RuntimeError, match="reduction dim"):
        place(X) @ place(X)
    with pytest.raises(RuntimeError, match="broadcast"):
        place(X) + place(torch.ones(5))


def test_the_rows_of_a_wide_model_need_no_collective():
    """Lanes on axis 0: every worker has its own models."""
    signal("lanes", [0, 1, 2, 3])
    with gt.signal.context("lanes"):
        weight = gt.randn(8, 5, 3).requires_grad_()
        x = gt.randn(8, 6, 3)
    before = [s["all_gathers"] for s in gt.debug.worker_stats()]
    with work() as done, gt.signal.context("lanes"):
        out = torch.bmm(x, weight.transpose(1, 2)).tanh()
        out.sum((1, 2)).backward(torch.ones(8))
    assert gt.debug.placement(weight.grad) == ((0, 1, 2, 3), "S(0)")
    assert [s["all_gathers"] for s in gt.debug.worker_stats()] == before
    assert all(d["aten.bmm.default"] == 2 for d in done)


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x.data_ptr(),
        lambda x: x.untyped_storage(),
        lambda x: x.storage(),
        lambda x: x.share_memory_(),
        lambda x: x.pin_memory(),
        lambda x: torch.from_dlpack(x),
        lambda x: safetensors.torch.save({"x": x}),
        lambda x: torch.nn.Linear(3, 2).share_memory() and torch.nn.Parameter(x).share_memory_(),
    ],
    ids=["data_ptr", "untyped_storage", "storage", "share", "pin", "dlpack", "safetensors", "parameter"],
)
def test_memory_that_is_not_here_is_refused(use):
    x = gt.ones(4, 3)
    with pytest.raises(UnsupportedError, match="lie on workers"):
        use(x)
    assert x.sum().item() == 12
